package app_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// read reads a log to its end.
func read(t *testing.T, f core.Follower[sandbox.LogLine]) (lines []string) {
	t.Helper()
	defer f.Close()
	for {
		l, err := f.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l.Stream+" "+l.Line)
	}
}

func (r *rig) log(appID, id string) core.Follower[sandbox.LogLine] {
	r.t.Helper()
	f, err := r.apps().DeploymentLogs(r.t.Context(), caller, appID, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// TestDeploymentLogs: live from the guest, and from the blob afterwards.
func TestDeploymentLogs(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	f := r.log(a.ID, d.ID)
	var got []string
	for range 2 {
		l, err := f.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l.Stream+" "+l.Line)
	}
	r.guests.set(func(g *guests) { g.lines += "more \xff\r\n" + strings.Repeat("x", 20<<10) + "\nend" })
	r.guests.set(func(g *guests) { g.hold = false })
	got = append(got, read(t, f)...)
	want := []string{"stdout cloning", "stdout building", "stdout more \uFFFD", "stdout " + strings.Repeat("x", 16<<10), "stdout " + strings.Repeat("x", 4<<10), "stdout end"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("followed %.200q", got)
	}
	r.ends(d.ID, record.DeploymentLive)
	if got := read(t, r.log(a.ID, d.ID)); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("kept %.200q", got)
	}
	r.guests.set(func(g *guests) {
		g.plan, g.lines = appapi.BuildStatus{State: appapi.StateFailed, Error: "boom"}, "oops\n"
	})
	d = r.deploy(a.ID)
	if got := strings.Join(read(t, r.log(a.ID, d.ID)), "\n"); got != "stdout oops\nstderr deployment failed: boom" {
		t.Errorf("of a failure %q", got)
	}
	r.ends(d.ID, record.DeploymentFailed)
	r.settled(1)
	if got := strings.Join(read(t, r.log(a.ID, d.ID)), "\n"); got != "stdout oops\nstderr deployment failed: boom" {
		t.Errorf("of a failure, later %q", got)
	}
}

// TestLogThatBreaksOff: what its guest could no longer tell is told from what is kept.
func TestLogThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold, g.lines = true, "cloning\nbui" })
	d := r.deploy(a.ID)
	f := r.log(a.ID, d.ID)
	l, err := f.Next()
	if err != nil || l.Line != "cloning" {
		t.Fatalf("%+v, %v", l, err)
	}
	r.guests.set(func(g *guests) { g.cut = true })
	r.guests.set(func(g *guests) {
		g.lines, g.hold, g.plan = "cloning\nbuilding\nthe reason\n", false, appapi.BuildStatus{State: appapi.StateFailed, Error: "boom"}
	})
	got := strings.Join(read(t, f), "\n")
	if got != "stdout bui\nstdout lding\nstdout the reason\nstderr deployment failed: boom" {
		t.Errorf("followed %q", got)
	}
	r.settled(0)
}

// The output of an app that did not start is in the log of its deployment.
func TestLogsOfAnAppThatDidNotStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	_, err := r.apps().Logs(t.Context(), caller, a.ID, 0)
	if e := want(t, err, apierror.EConflict, "app is not running"); !strings.Contains(e.Detail, "it has none now") {
		t.Errorf("before a deployment: %q", e.Detail)
	}
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
	_, err = r.apps().Logs(t.Context(), caller, a.ID, 0)
	_, ferr := r.apps().FollowLogs(t.Context(), caller, a.ID, 0)
	for _, err := range []error{err, ferr} {
		if e := want(t, err, apierror.EConflict, "app is not running"); !strings.Contains(e.Detail, "berth app build-logs "+a.ID) {
			t.Errorf("after one that failed: %q", e.Detail)
		}
	}
}

func TestRunLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	body, err := r.apps().Logs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); string(text) != "the app writes\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	f, err := r.apps().FollowLogs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, f); len(got) != 1 || got[0] != "stdout the app writes" {
		t.Errorf("followed %q", got)
	}
}

// Those of functions count, too: each keeps a connection to a host.
func TestOpenLogsOfFunctionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	f, _ := r.deployed("thumbs")
	s := r.functions()
	for range app.MaxLogs {
		l, err := s.FollowLogs(t.Context(), caller, f.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	_, err := s.FollowLogs(t.Context(), caller, f.ID, 1)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
	_, err = s.Logs(t.Context(), caller, f.ID, 1)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
}

// TestOpenLogsAreBounded: a workspace that leaves logs open is refused more, and gets
// them when it closes some.
func TestOpenLogsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live()
	var open []core.Follower[sandbox.LogLine]
	t.Cleanup(func() {
		for _, f := range open {
			_ = f.Close()
		}
	})
	for range app.MaxLogs - 1 {
		open = append(open, r.log(a.ID, d.ID))
	}
	f, err := r.apps().FollowLogs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.apps().DeploymentLogs(t.Context(), caller, a.ID, d.ID)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
	_, err = r.apps().FollowLogs(t.Context(), caller, a.ID, 10)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
	_, err = r.apps().Logs(t.Context(), caller, a.ID, 10)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
	for range 2 { // as a handler does, whose client is gone
		_ = f.Close()
	}
	if body, err := r.apps().Logs(t.Context(), caller, a.ID, 10); err != nil {
		t.Error(err)
	} else {
		_ = body.Close()
	}
	open = append(open, r.log(a.ID, d.ID))
	_, err = r.apps().Logs(t.Context(), caller, a.ID, 10)
	want(t, err, apierror.ERateLimited, "too many logs of apps at once")
}

// TestLogsOfInstances: all of them are told of, each line with its own, also of those that
// come later.
func TestLogsOfInstances(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nil, func(c *app.Config) { c.ScaleUp, c.ScaleDown = time.Hour, time.Hour })
	a, _ := r.live(func(in *api.CreateApp) { in.MaxInstances = new(2) })
	r.Update(func(tx *raftstore.Tx) error { return app.BeginWake(tx, a.ID) })
	r.await("a second instance", func() bool { return len(r.row(a.ID).Instances) == 2 })
	var ids, names []string
	writes := map[string]chan string{}
	for _, in := range r.row(a.ID).Instances {
		ids, names = append(ids, in.SandboxID), append(names, hostapi.ShortID(in.SandboxID))
		writes[in.SandboxID] = make(chan string)
	}
	body, err := r.apps().Logs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	want := fmt.Sprintf("[%s] the app writes\n[%s] the app writes\n", names[0], names[1])
	if text, err := io.ReadAll(iotest.OneByteReader(body)); string(text) != want || err != nil {
		t.Errorf("%q, %v", text, err)
	}

	r.guests.set(func(g *guests) { g.runLines = writes })
	f, err := r.apps().FollowLogs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	next := func() string {
		t.Helper()
		l, err := f.Next()
		if err != nil {
			t.Fatal(err)
		}
		return l.Instance + " " + l.Line
	}
	got := []string{next(), next()}
	slices.Sort(got)
	wanted := []string{names[0] + " the app writes", names[1] + " the app writes"}
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		t.Errorf("%q", got)
	}
	for i, id := range ids {
		writes[id] <- "more"
		if got := next(); got != names[i]+" more" {
			t.Errorf("%q", got)
		}
	}
	// A deployment takes the place of both with as many: what they write follows.
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.await("two instances of the deployment", func() bool {
		now := r.row(a.ID).Instances
		return len(now) == 2 && !slices.Contains(ids, now[0].SandboxID) && !slices.Contains(ids, now[1].SandboxID)
	})
	got, wanted = []string{next(), next()}, nil
	for _, in := range r.row(a.ID).Instances {
		wanted = append(wanted, hostapi.ShortID(in.SandboxID)+" the app writes")
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		t.Errorf("%q", got)
	}
	writes[ids[1]] <- "drains"
	if got := next(); got != names[1]+" drains" {
		t.Errorf("%q", got)
	}
	close(writes[ids[0]])
	close(writes[ids[1]])
	if l, err := f.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestClosedLogs: a follower that waits ends when it is closed.
func TestClosedLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	box := r.row(a.ID).Instances[0].SandboxID
	r.guests.set(func(g *guests) { g.runLines = map[string]chan string{box: make(chan string)} })
	f, err := r.apps().FollowLogs(t.Context(), caller, a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Next(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := f.Next()
		ended <- err
	}()
	_ = f.Close()
	if err := <-ended; err == nil {
		t.Error("it goes on")
	}
	_ = f.Close()
}

// TestAnAppOnLoopbackAloneGoesLive: it is reached, and its log says what that means elsewhere.
func TestAnAppOnLoopbackAloneGoesLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) {
		g.status = func(s *appapi.RunStatus) { s.Listening = []appapi.Listen{{Port: 8000}, {Port: 3000, Loopback: true}} }
	})
	const remark = "stderr the app listens on 127.0.0.1:3000 only: it is reached here, and would not be elsewhere; bind 0.0.0.0"
	d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if got := read(t, r.log(a.ID, d.ID)); len(got) == 0 || got[len(got)-1] != remark {
		t.Errorf("log %q", got)
	}
	r.guests.set(func(g *guests) { g.status = nil })
	d = r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if got := read(t, r.log(a.ID, d.ID)); slices.Contains(got, remark) {
		t.Errorf("log %q of one that listens everywhere", got)
	}
}
