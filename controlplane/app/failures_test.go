package app_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// TestFailures: a deployment that fails says why, leaves the one before serving, and
// leaves nothing of itself.
func TestFailures(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, tc := range map[string]struct {
		behave func(g *guests)
		text   string
	}{
		"build": {func(g *guests) {
			g.plan = appapi.BuildStatus{State: appapi.StateFailed, Phase: appapi.PhaseBuild, Error: "npm run build exited with 1:\n\x1b[31mError: x\x00" + strings.Repeat("y", 100<<10)}
		}, "npm run build exited with 1:\n[31mError: xyyy"},
		"build says nothing": {func(g *guests) { g.plan = appapi.BuildStatus{State: appapi.StateFailed, Phase: appapi.PhaseBuild} }, "the build failed in its phase build"},
		"loopback": {func(g *guests) {
			g.port, g.status = 1, func(r *appapi.RunStatus) {
				r.Listening = []appapi.Listen{{Port: 3000, Loopback: true}, {Port: 9}}
				r.LastLines = []string{"Listening…"}
			}
		}, "the app listens on 127.0.0.1:3000 only: bind 0.0.0.0; it wrote last:\nListening…"},
		"other port": {func(g *guests) { g.port = 8000 }, "the app listens on port 8000, not on $PORT (3000)"},
		"exits": {func(g *guests) {
			g.port, g.status = 1, func(r *appapi.RunStatus) {
				r.State, r.Starts, r.ExitCode, r.Listening = appapi.StateExited, 3, new(7), nil
				r.LastLines = []string{"boom\x1b[0m", "  at x ", "", "\u2028"}
			}
		}, "the app exited with code 7; it wrote last:\nboom[0m\n  at x"},
		"memory": {func(g *guests) {
			g.port, g.status = 1, func(r *appapi.RunStatus) {
				r.State, r.Starts, r.Signal, r.Listening = appapi.StateExited, 9, "OOM", nil
			}
		}, "the app ran out of memory"},
		"answers once": {func(g *guests) {
			g.fleeting, g.status = true, func(r *appapi.RunStatus) {
				r.State, r.Starts, r.ExitCode, r.Listening = appapi.StateExited, 3, new(1), nil
			}
		}, "the app exited with code 1"},
		"mute":     {func(g *guests) { g.mute = true }, "the app takes connections on port 3000, and answers nothing within"},
		"nowhere":  {func(g *guests) { g.port, g.status = 1, func(r *appapi.RunStatus) { r.Listening = nil } }, "the app does not answer on port 3000 within"},
		"no guest": {func(g *guests) { g.down = true }, "its virtual machine does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			a, first := r.live()
			r.guests.set(tc.behave)
			d := r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
			if !strings.HasPrefix(d.Error, tc.text) || len(d.Error) > 4<<10 || d.SnapshotID != "" || d.FinishedAt.IsZero() {
				t.Errorf("error %q, want %q: %+v", d.Error, tc.text, d)
			}
			row := r.row(a.ID)
			if row.Status != record.AppRunning || row.DeploymentID != first.ID || len(row.Instances) != 1 || row.Instances[0].DeploymentID != first.ID {
				t.Errorf("the one before serves no more: %+v", row)
			}
			r.settled(1)
		})
	}
}

// TestAnAppThatAnswersWithoutEndGoesLive: of an answer to the health check only the beginning
// is read.
func TestAnAppThatAnswersWithoutEndGoesLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	r.guests.set(func(g *guests) { g.endless = true })
	r.live()
	r.settled(1)
}

// TestBudget: a build that does not end is ended.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	r.late(d.ID)
	row := r.ends(d.ID, record.DeploymentFailed)
	if row.Error != "it took longer than "+timescale.Limit(20*time.Second).String()+", the phase after sandbox" {
		t.Errorf("error %q", row.Error)
	}
	if r.row(a.ID).Status != record.AppCreated {
		t.Errorf("app is %s", r.row(a.ID).Status)
	}
	r.settled(0)
}

// at waits until a deployment's flow is at a step.
func (r *rig) at(id, step string) {
	r.t.Helper()
	r.await("step "+step, func() bool {
		f, ok := flow.Live(r.Leader().Store.View(), app.DeploymentSubject(id))
		return ok && f.Step == step
	})
}

// late has a deployment be past its deadline.
func (r *rig) late(id string) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		if f, ok := flow.Live(tx, app.DeploymentSubject(id)); ok {
			f = f.Clone()
			f.Deadline = time.Now().Add(-time.Second)
			raftstore.Put(tx, record.Flows, f)
		}
		return nil
	})
}

// TestCancel at each place where a deployment waits.
func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	s, ctx := r.apps(), t.Context()
	a, live := r.live()
	_, err := s.CancelDeployment(ctx, caller, a.ID, live.ID)
	want(t, err, apierror.EConflict, "deployment has ended")

	r.guests.set(func(g *guests) { g.hold = true })
	builds := r.deploy(a.ID)
	r.at(builds.ID, "poll")
	waits := r.deploy(a.ID)
	r.at(waits.ID, "queue")
	for _, d := range []api.Deployment{waits, builds} {
		out, err := s.CancelDeployment(ctx, caller, a.ID, d.ID)
		if err != nil || out.Status != api.DeploymentFailed || out.Error != "cancelled" {
			t.Errorf("cancel: %+v, %v", out, err)
		}
		if again, err := s.CancelDeployment(ctx, caller, a.ID, d.ID); err != nil || again.Status != api.DeploymentFailed {
			t.Errorf("cancel again: %+v, %v", again, err)
		}
	}
	r.settled(1)
	if log := r.deployment(builds.ID).LogBlob; log == "" {
		t.Error("the log of what was cancelled is not kept")
	}
	// While its sandbox is being made.
	block := make(chan struct{})
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op != "put" || c.Done {
			return nil
		}
		select {
		case <-block:
		case <-ctx.Done():
		}
		return nil
	})
	d := r.deploy(a.ID)
	r.at(d.ID, "box")
	if _, err := s.CancelDeployment(ctx, caller, a.ID, d.ID); err != nil {
		t.Fatal(err)
	}
	close(block)
	r.settled(1)
}

// TestQueue: one at a time; of those that wait the newest is deployed, however it was begun.
func TestQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	builds := r.deploy(a.ID).ID
	r.at(builds, "poll")
	push := func() string {
		d, err := r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: "main"})
		if err != nil {
			t.Fatal(err)
		}
		return d.ID
	}
	waits := r.deploy(a.ID).ID
	for _, next := range []func() string{push, push, func() string { return r.deploy(a.ID).ID }} {
		former := waits
		waits = next()
		if d := r.deployment(former); d.Status != record.DeploymentFailed || d.Error != "superseded by a newer deployment" {
			t.Errorf("the one before is %s: %s", d.Status, d.Error)
		}
	}
	if d, b := r.deployment(waits), r.deployment(builds); d.Status != record.DeploymentQueued || b.Status != record.DeploymentBuilding {
		t.Errorf("one is %s while the other is %s", d.Status, b.Status)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	r.ends(builds, record.DeploymentLive)
	r.ends(waits, record.DeploymentLive)
	r.guests.set(func(g *guests) { g.hold = true })
	r.at(r.deploy(a.ID).ID, "poll")
	r.deploy(a.ID)
	if err := r.apps().Delete(t.Context(), caller, a.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
	if n := len(raftstore.All(r.Leader().Store.View(), record.Deployments)); n != 0 {
		t.Errorf("%d deployments are left", n)
	}
}

func TestDeploymentsOf(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	s, ctx := r.apps(), t.Context()
	a, first := r.live()
	key := testplane.Key("k", "b")
	one, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{GitRef: "v1"}, key)
	if err != nil || one.GitRef != "v1" {
		t.Fatalf("%+v, %v", one, err)
	}
	again, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{GitRef: "v1"}, key)
	if err != nil || again.ID != one.ID {
		t.Errorf("with the same key: %+v, %v", again, err)
	}
	r.ends(one.ID, record.DeploymentLive)
	page, next, err := s.Deployments(ctx, caller, a.ID, core.ListOptions{})
	if err != nil || next != "" || len(page) != 2 || page[0].ID != one.ID || !page[0].Current || page[1].ID != first.ID || page[1].Current {
		t.Errorf("list: %+v, %v", page, err)
	}
	if _, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{GitRef: "a b"}, noKey); apierror.CodeOf(err) != apierror.EInvalid {
		t.Errorf("a bad ref: %v", err)
	}
}

// TestRollBack: from the artifact, without a build; and by a build where that is gone.
func TestRollBack(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	s, ctx := r.apps(), t.Context()
	a, first := r.live(func(in *api.CreateApp) { in.Port = new(3000) })
	_, err := s.RollBack(ctx, caller, a.ID, api.RollBackApp{}, noKey)
	want(t, err, apierror.EConflict, "nothing to roll back to")
	if _, err := s.Patch(ctx, caller, a.ID, api.PatchApp{Port: api.SetTo(4000)}); err != nil {
		t.Fatal(err)
	}
	second := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if in := r.row(a.ID).Instances[0]; in.Port != 4000 || r.row(a.ID).Stale {
		t.Errorf("after a deployment: %+v", in)
	}
	once := testplane.Key("once", "{}")
	back, err := s.RollBack(ctx, caller, a.ID, api.RollBackApp{}, once)
	if err != nil || back.Trigger != api.TriggerRollback || back.RollbackTo != first.ID || back.GitCommit == "" {
		t.Fatalf("%+v, %v", back, err)
	}
	d := r.ends(back.ID, record.DeploymentLive)
	row := r.row(a.ID)
	if g := r.guests.at(d.SandboxID); g.builds != 0 || row.DeploymentID != back.ID || row.Instances[0].Port != 3000 || d.SnapshotID != r.deployment(first.ID).SnapshotID {
		t.Errorf("rolled back: %+v, %+v", row, d)
	}
	if box, _ := r.Sandbox(d.SandboxID); box.FromSnapshot != d.SnapshotID {
		t.Errorf("its sandbox is from %q", box.FromSnapshot)
	}
	// Asked for again, because the answer was lost, it is not undone.
	if again, err := s.RollBack(ctx, caller, a.ID, api.RollBackApp{}, once); err != nil || again.ID != back.ID || again.Status != api.DeploymentQueued {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: second.ID}, testplane.Key("once", "another"))
	want(t, err, apierror.EConflict, "idempotency key reused")
	// The one before that is the second.
	forth, err := s.RollBack(ctx, caller, a.ID, api.RollBackApp{}, noKey)
	if err != nil || forth.RollbackTo != second.ID {
		t.Fatalf("%+v, %v", forth, err)
	}
	r.ends(forth.ID, record.DeploymentLive)
	failed := func() string {
		r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
		defer r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
		return r.ends(r.deploy(a.ID).ID, record.DeploymentFailed).ID
	}()
	_, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: failed}, noKey)
	want(t, err, apierror.EConflict, "deployment was never live")
	_, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: "dep-none"}, noKey)
	want(t, err, apierror.ENotFound, "not found")
	r.settled(1)

	// Its capture is gone from the host that has it alone.
	r.hosts[0].DropCapture(r.deployment(first.ID).SnapshotID)
	back, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: first.ID}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	d = r.ends(back.ID, record.DeploymentLive)
	if g := r.guests.at(d.SandboxID); g.builds != 1 || g.build.Git.Ref != d.GitCommit || d.SnapshotID == "" || d.SnapshotID == r.deployment(first.ID).SnapshotID {
		t.Errorf("a rollback that is built: %+v, %+v", d, g.build)
	}
	r.settled(1)
}

// TestARollbackThatDoesNotStart fails for the reason that its program gives, and is not built.
func TestARollbackThatDoesNotStart(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	second := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.settled(1)
	r.guests.set(func(g *guests) {
		g.port = 4711
		g.status = func(st *appapi.RunStatus) {
			st.State, st.Starts, st.ExitCode, st.LastLines = appapi.StateExited, 3, new(7), []string{"no DATABASE_URL"}
		}
	})
	back, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	d := r.ends(back.ID, record.DeploymentFailed)
	if want := "the app exited with code 7; it wrote last:\nno DATABASE_URL"; d.Error != want {
		t.Errorf("error %q", d.Error)
	}
	if slices.ContainsFunc(d.Phases, func(p record.DeployPhase) bool { return p.Name == appapi.PhaseBuild }) {
		t.Errorf("it was built: %+v", d.Phases)
	}
	if row := r.row(a.ID); row.DeploymentID != second.ID || row.Status != record.AppRunning {
		t.Errorf("%+v", row)
	}
	r.settled(1)
}

// TestTheRepositoryOfADeployment is that of the moment when it was asked for: its branch or
// commit means nothing in another one.
func TestTheRepositoryOfADeployment(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	var asked sync.Map
	r := newRig(t, 1, 1, nil, func(c *app.Config) {
		c.CloneToken = func(_ context.Context, _, _, repoURL string) (string, string, error) {
			asked.Store(repoURL, true)
			return "", "", nil
		}
	})
	const other = "https://git.example.com/team/other.git"
	a, first := r.live()
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.guests.set(func(g *guests) { g.hold = true })
	third := r.deploy(a.ID)
	r.at(third.ID, "poll")
	fourth := r.deploy(a.ID)
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{GitURL: api.SetTo(other), GitBranch: api.SetTo("trunk")}); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	cloned := func(id, url, ref string) {
		t.Helper()
		d := r.ends(id, record.DeploymentLive)
		if git := r.guests.at(d.SandboxID).build.Git; git == nil || git.URL != url || git.Ref != ref {
			t.Errorf("cloned %+v, not %s at %q", git, url, ref)
		}
		if _, ok := asked.Load(url); !ok {
			t.Errorf("no token was asked for %s", url)
		}
		asked.Clear()
	}
	cloned(fourth.ID, repo, "")
	cloned(r.deploy(a.ID).ID, other, "trunk")
	snapshot := r.deployment(first.ID).SnapshotID
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Snapshots, snapshot); return nil })
	back, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{DeploymentID: first.ID}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	cloned(back.ID, repo, r.deployment(first.ID).GitCommit)
}

// TestArtifactsAreDropped: five deployments keep theirs.
func TestArtifactsAreDropped(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, first := r.live()
	for range 6 {
		r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	}
	r.settled(1)
	view := r.Leader().Store.View()
	if n := len(raftstore.All(view, record.Snapshots)); n != 5 {
		t.Errorf("%d artifacts", n)
	}
	if d := r.deployment(first.ID); d.SnapshotID != "" || d.Status != record.DeploymentLive {
		t.Errorf("the first: %+v", d)
	}
}

// TestHostLost: a deployment begins again on another host, once.
func TestHostLost(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	first := r.host(r.deployment(d.ID).SandboxID)
	first.Silence(true)
	r.await("another sandbox", func() bool {
		box, ok := r.Sandbox(r.deployment(d.ID).SandboxID)
		return ok && box.HostID != first.ID && box.Status == record.SandboxRunning
	})
	r.guests.set(func(g *guests) { g.hold = false })
	r.ends(d.ID, record.DeploymentLive)
	first.Silence(false)
	r.settled(1)
}

func TestBothHostsLost(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	for range 2 {
		r.await("a build", func() bool { return r.guests.at(r.deployment(d.ID).SandboxID).builds == 1 })
		r.host(r.deployment(d.ID).SandboxID).Silence(true)
		lost := r.deployment(d.ID).SandboxID
		r.await("what comes then", func() bool { row := r.deployment(d.ID); return row.Status.Ended() || row.SandboxID != lost })
	}
	row := r.ends(d.ID, record.DeploymentFailed)
	if row.Error != "its host was lost, and the one after it too" {
		t.Errorf("error %q", row.Error)
	}
	for _, h := range r.hosts {
		h.Silence(false)
	}
	r.settled(0)
}

// TestBoxFails: what fails by itself does not begin again.
func TestBoxFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	box := r.deployment(d.ID).SandboxID
	r.host(box).Become(box, hostapi.StatusFailed)
	if row := r.ends(d.ID, record.DeploymentFailed); !strings.HasPrefix(row.Error, "its virtual machine failed") {
		t.Errorf("error %q", row.Error)
	}
	r.settled(0)
}

// TestNoRoom: where no host can take it, a deployment says so.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 100 })
	r.await("the news", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.MemoryMB == 100 })
	if d := r.ends(r.deploy(a.ID).ID, record.DeploymentFailed); !strings.HasPrefix(d.Error, "no available compute node") {
		t.Errorf("error %q", d.Error)
	}
	r.settled(0)
}

// TestNoArtifact: an app that cannot be captured goes live all the same.
func TestNoArtifact(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "capture" {
			return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "no room"}
		}
		return nil
	})
	_, d := r.live()
	if row := r.deployment(d.ID); row.SnapshotID != "" {
		t.Errorf("it has %q", row.SnapshotID)
	}
	r.settled(1)
}

// TestSettingsChangeMeanwhile: an app starts with the variables of that moment, and what is
// built with former settings is stale at once.
func TestSettingsChangeMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	if _, err := r.apps().PutVariable(t.Context(), caller, a.ID, "A", api.PutAppVariable{Value: "1", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{BuildCommand: api.SetTo("make")}); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	if run := r.guests.at(r.ends(d.ID, record.DeploymentLive).SandboxID).run; run.Env["A"] != "1" || !slices.Contains(run.Secrets, "A") {
		t.Errorf("its log would show what became secret during the build: %+v", run)
	}
	if !r.row(a.ID).Stale {
		t.Error("its artifact would be used")
	}
	r.guests.set(func(g *guests) { g.hold = true })
	d = r.deploy(a.ID)
	r.at(d.ID, "poll")
	if _, err := r.apps().PutVariable(t.Context(), caller, a.ID, "A", api.PutAppVariable{Value: "2"}); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	r.ends(d.ID, record.DeploymentLive)
	if r.row(a.ID).Stale {
		t.Error("a new one would not be used, for a variable")
	}
}

// TestDelete preempts everything, and leaves nothing.
func TestDelete(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	s, ctx := r.apps(), t.Context()
	a, _ := r.live(func(in *api.CreateApp) { in.MaxInstances = new(2) })
	if _, err := s.PutSource(ctx, caller, a.ID, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	r.deploy(a.ID)
	if err := s.Delete(ctx, caller, a.ID); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(ctx, caller, a.ID)
	want(t, err, apierror.ENotFound, "not found")
	r.settled(0)
	view := r.Leader().Store.View()
	if n, m, o := len(raftstore.All(view, record.Apps)), len(raftstore.All(view, record.Deployments)), len(raftstore.All(view, record.Snapshots)); n+m+o != 0 {
		t.Errorf("%d apps, %d deployments, %d snapshots are left", n, m, o)
	}
	if blobs := r.hosts[0].Blobs(); len(blobs) > 0 {
		t.Errorf("blobs %q are left", blobs)
	}
	want(t, s.Delete(ctx, caller, a.ID), apierror.ENotFound, "not found")
}

// TestEvents: a workspace's webhooks hear of deployments.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	_, err := r.LeaderNode().Webhooks.Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "http://127.0.0.1:1/"}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := r.live()
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
	var types []string
	for _, d := range raftstore.All(r.Leader().Store.View(), record.WebhookDeliveries) {
		types = append(types, d.Type)
	}
	slices.Sort(types)
	if !slices.Equal(types, []string{"deployment.building", "deployment.building", "deployment.failed", "deployment.succeeded"}) {
		t.Errorf("events %q", types)
	}
}
