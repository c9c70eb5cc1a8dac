package app_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A host that fails costs what is new of a function's log, and never what was kept.
func TestAKeptLogOutlivesTheFailuresOfHosts(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil, func(cfg *app.Config) { cfg.FunctionIdle = new(time.Second) })
	f, _ := r.deployed("thumbs")
	sleeps := func() {
		t.Helper()
		r.becomes(f.ID, record.AppHibernated)
		r.settled(0)
	}
	wakes := func(writes string) {
		t.Helper()
		r.guests.set(func(g *guests) { g.wrote = writes })
		if err := r.apps().Awake(t.Context(), f.ID); err != nil {
			t.Fatal(err)
		}
	}
	logs := func(when, want string) {
		t.Helper()
		body, err := r.functions().Logs(t.Context(), caller, f.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if got, _ := io.ReadAll(body); string(got) != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	// fail has every host cut off an operation on kept logs; "": none.
	fail := func(op string) {
		for _, h := range r.hosts {
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == op && strings.HasPrefix(c.ID, "log-"+f.ID) {
					return fakehost.ErrDrop
				}
				return nil
			})
		}
	}
	sleeps()
	logs("asleep", "the app writes\n")
	for _, op := range []string{"blob.put", "blob.get", "blob.delete"} {
		fail(op)
		wakes("lost\n")
		r.becomes(f.ID, record.AppHibernated)
		fail("")
		want := map[bool]string{false: "the app writes\n", true: "the app writes\nlost\n"}[op == "blob.delete"] // the former is left for later
		sleeps()
		logs("after a failed "+op, want)
	}
	wakes("kept\n")
	sleeps()
	logs("at the end", "the app writes\nlost\nkept\n")
	r.await("the end of the former logs", func() bool {
		n := 0
		for _, h := range r.hosts {
			for _, name := range h.Blobs() {
				if strings.HasPrefix(name, "log-"+f.ID) {
					n++
				}
			}
		}
		return n == 1 && len(r.row(f.ID).Uploads) == 1
	})
}

// However long it takes to keep the output of a workspace's functions, those of others sleep
// meanwhile.
func TestFunctionsOfOthersSleep(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 3, nil, func(cfg *app.Config) { cfg.FunctionIdle = new(time.Second) })
	s, ctx := r.functions(), t.Context()
	deploy := func(c core.Caller, name string) string {
		f, err := s.Create(ctx, c, api.CreateFunction{Name: name, Runtime: api.RuntimePython}, noKey)
		if err == nil {
			_, err = s.DeployFiles(ctx, c, f.ID, hello, noKey)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f.ID
	}
	other := deploy(stranger, "theirs")
	r.becomes(other, record.AppHibernated)

	var held atomic.Int64
	release := make(chan struct{})
	defer close(release)
	for _, h := range r.hosts {
		h.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "blob.put" && strings.HasPrefix(c.ID, "log-fn-") && !strings.HasPrefix(c.ID, "log-"+other) {
				held.Add(1)
				<-release
			}
			return nil
		})
	}
	var ids []string
	for i := range app.FunctionsAtOnce {
		ids = append(ids, deploy(caller, fmt.Sprint("ours", i)))
	}
	r.await("that all run", func() bool {
		var used []app.Activity // none sleeps before
		for _, id := range ids {
			used = append(used, app.Activity{AppID: id, LastRequest: time.Now()})
		}
		r.apps().Heard("r", used)
		return !slices.ContainsFunc(ids, func(id string) bool { return r.row(id).Status != record.AppRunning })
	})
	r.await("that all are put to sleep", func() bool { return held.Load() >= app.FunctionsAtOnce })
	if err := r.apps().Awake(ctx, other); err != nil {
		t.Fatal(err)
	}
	r.becomes(other, record.AppHibernated)
	if slices.ContainsFunc(ids, func(id string) bool { return r.row(id).Status != record.AppRunning }) {
		t.Error("it sleeps only after some of another workspace do")
	}
}
