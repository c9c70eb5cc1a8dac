package app_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
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
