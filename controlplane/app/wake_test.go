package app_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// sleepy is an app that sleeps after a second.
func sleepy(in *api.CreateApp) { in.AutoHibernate, in.IdleTimeoutSeconds = nil, new(1) }

// asleep makes an app that sleeps.
func (r *rig) asleep() (api.App, api.Deployment) {
	r.t.Helper()
	a, d := r.live(sleepy)
	r.becomes(a.ID, record.AppHibernated)
	r.await("the end of its sandbox", func() bool { return len(r.row(a.ID).Draining) == 0 })
	return a, d
}

// TestSleepAndWake: an idle app has no sandbox, and comes back from its artifact, once
// for all who ask.
func TestSleepAndWake(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.asleep()
	r.settled(0)
	out, err := r.apps().Get(t.Context(), caller, a.ID)
	if err != nil || out.Status != api.AppHibernated || out.SandboxID != "" || out.DeploymentID != d.ID {
		t.Errorf("asleep: %+v, %v", out, err)
	}
	_, err = r.apps().Logs(t.Context(), caller, a.ID, 0)
	want(t, err, apierror.EConflict, "app is not running")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := r.apps().Awake(t.Context(), a.ID); err != nil {
				t.Errorf("wake: %v", err)
			}
		})
	}
	all.Wait()
	row := r.row(a.ID)
	if row.Status != record.AppRunning || len(row.Instances) != 1 || row.Instances[0].Port != 3000 {
		t.Fatalf("awake: %+v", row)
	}
	box, _ := r.Sandbox(row.Instances[0].SandboxID)
	if g := r.guests.at(box.ID); box.FromSnapshot != r.deployment(d.ID).SnapshotID || g.builds != 0 || g.starts != 1 {
		t.Errorf("its sandbox: %+v, %+v", box, g)
	}
	if n := len(raftstore.All(r.Leader().Store.View(), record.Deployments)); n != 1 {
		t.Errorf("%d deployments", n)
	}
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Errorf("wake what is awake: %v", err)
	}
}

func TestAwakeRefuses(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	want(t, r.apps().Awake(t.Context(), a.ID), apierror.EConflict, "app has no live deployment")
	want(t, r.apps().Awake(t.Context(), "app-none"), apierror.ENotFound, "not found")
	b, _ := r.asleep()
	r.edit(b.ID, func(a *record.App) { a.Paused = true })
	want(t, r.apps().Awake(t.Context(), b.ID), apierror.EQuota, "app is paused")
	if s := r.row(b.ID).Status; s != record.AppHibernated {
		t.Errorf("it is %s", s)
	}
}

// TestActivityKeepsAwake: requests and open connections do, and old ones do not.
func TestActivityKeepsAwake(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live(sleepy)
	box := r.row(a.ID).Instances[0].SandboxID
	begun := time.Now()
	hear := func(act app.Activity) {
		act.AppID = a.ID
		r.apps().Heard("edge", []app.Activity{act})
	}
	r.await("three seconds of connections", func() bool {
		hear(app.Activity{Open: map[string]int{box: 1}})
		return time.Since(begun) > 3*time.Second
	})
	if s := r.row(a.ID).Status; s != record.AppRunning {
		t.Fatalf("with an open connection it is %s", s)
	}
	begun = time.Now()
	r.await("two seconds of requests", func() bool {
		hear(app.Activity{LastRequest: time.Now()})
		return time.Since(begun) > 2*time.Second
	})
	row := r.row(a.ID)
	if row.Status != record.AppRunning || row.LastRequestAt.IsZero() || time.Since(row.LastRequestAt) > 3*time.Second {
		t.Errorf("with requests it is %s, last at %s", row.Status, row.LastRequestAt)
	}
	hear(app.Activity{LastRequest: time.Now().Add(time.Hour)}) // by a clock that goes ahead
	last := r.becomes(a.ID, record.AppHibernated).LastRequestAt
	if last.After(time.Now()) {
		t.Errorf("last request at %s", last)
	}
}

// TestStaleIsDeployed: a wake after a change of settings builds anew, with a row.
func TestStaleIsDeployed(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.asleep()
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{StartCommand: api.SetTo("node other.js")}); err != nil {
		t.Fatal(err)
	}
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	row := r.row(a.ID)
	now := r.deployment(row.DeploymentID)
	if now.ID == d.ID || now.Trigger != "wake" || now.Status != record.DeploymentLive || row.Stale {
		t.Errorf("awake: %+v, %+v", row, now)
	}
	if g := r.guests.at(now.SandboxID); g.build.StartCommand != "node other.js" {
		t.Errorf("built with %+v", g.build)
	}
}

// TestVariablesReachTheNextWake: the artifact is used, and the app started in it has the
// variables of that moment, whichever route changed them.
func TestVariablesReachTheNextWake(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live(sleepy, func(in *api.CreateApp) { in.Env = map[string]string{"A": "1", "B": "1"} })
	for name, change := range map[string]func() error{
		"put": func() error {
			_, err := r.apps().PutVariable(t.Context(), caller, a.ID, "A", api.PutAppVariable{Value: "put", Secret: new(false)})
			return err
		},
		"import": func() error {
			_, err := r.apps().ImportEnv(t.Context(), caller, a.ID, api.ImportAppEnv{Dotenv: "A=import", Secret: new(true)})
			return err
		},
		"": func() error { return r.apps().DeleteVariable(t.Context(), caller, a.ID, "A") },
	} {
		r.becomes(a.ID, record.AppHibernated)
		r.settled(0)
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := r.apps().Awake(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		row := r.row(a.ID)
		g := r.guests.at(row.Instances[0].SandboxID)
		if row.DeploymentID != d.ID || g.builds != 0 || g.run.Env["A"] != name || g.run.Env["B"] != "1" || (name == "import") != slices.Contains(g.run.Secrets, "A") {
			t.Errorf("%q: started with %q after %d builds, by %s", name, g.run.Env, g.builds, row.DeploymentID)
		}
	}
}

// TestAWokenAppThatExits is not waited for to the end of its time, and says why it does not
// start. Building it anew would not help: the next wake takes the same artifact.
func TestAWokenAppThatExits(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.Budget, c.Health = 2*time.Hour, time.Hour }) // an artifact is awaited until the budget less the health check
	a, d := r.asleep()
	r.guests.set(func(g *guests) {
		g.port = 4711
		g.status = func(st *appapi.RunStatus) {
			st.State, st.Starts, st.ExitCode, st.LastLines = appapi.StateExited, 3, new(7), []string{"no DATABASE_URL"}
		}
	})
	hasText(t, r.apps().Awake(t.Context(), a.ID), apierror.EUnwoken, "the app exited with code 7; it wrote last:\nno DATABASE_URL")
	if row := r.row(a.ID); row.Status != record.AppFailed || row.DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
	r.settled(0)
	r.guests.set(func(g *guests) { g.port, g.status = 0, nil })
	r.await("a wake that goes well", func() bool { return r.apps().Awake(t.Context(), a.ID) == nil })
	if row := r.row(a.ID); row.Status != record.AppRunning || row.Error != "" || row.DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
	if n := len(raftstore.All(r.Leader().Store.View(), record.Deployments)); n != 1 {
		t.Errorf("%d deployments: it was built anew", n)
	}
}

// TestTheMachineOfAWakeFails: it was restored, so it is restored once more and not built.
func TestTheMachineOfAWakeFails(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.asleep()
	r.guests.set(func(g *guests) { g.port = 4711 })
	done := make(chan error, 1)
	go func() { done <- r.LeaderNode().Apps.Awake(context.Background(), a.ID) }()
	var box *record.Sandbox
	r.await("the start in its sandbox", func() bool {
		for _, box = range raftstore.All(r.Leader().Store.View(), record.Sandboxes) {
			if r.guests.at(box.ID).starts > 0 && box.FromSnapshot != "" {
				return true
			}
		}
		return false
	})
	r.guests.set(func(g *guests) { g.port = 0 })
	r.host(box.ID).Become(box.ID, hostapi.StatusFailed)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	row := r.row(a.ID)
	if row.DeploymentID != d.ID || row.Instances[0].SandboxID == box.ID {
		t.Errorf("%+v", row)
	}
	if n := len(raftstore.All(r.Leader().Store.View(), record.Deployments)); n != 1 {
		t.Errorf("%d deployments: it was built anew", n)
	}
}

// TestArtifactGone: what cannot be restored is built anew.
func TestArtifactGone(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, lose := range map[string]func(r *rig, snapshot string){
		"capture": func(r *rig, snapshot string) { r.hosts[0].DropCapture(snapshot) },
		"row": func(r *rig, snapshot string) {
			r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Snapshots, snapshot); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			a, d := r.asleep()
			lose(r, r.deployment(d.ID).SnapshotID)
			if err := r.apps().Awake(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
			now := r.deployment(r.row(a.ID).DeploymentID)
			if now.Trigger != "wake" || r.guests.at(now.SandboxID).builds != 1 {
				t.Errorf("awake: %+v", now)
			}
		})
	}
}

// find returns a deployment with a trigger.
func find(r *rig, trigger string) (*record.Deployment, bool) {
	for _, d := range raftstore.All(r.Leader().Store.View(), record.Deployments) {
		if d.Trigger == trigger {
			return d, true
		}
	}
	return nil, false
}

// TestWakeFails: the app says so, is left alone for a while, and wakes then.
func TestWakeFails(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.asleep()
	room := func(mb int) {
		r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = mb })
		r.await("the news", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.MemoryMB == mb })
	}
	room(100)
	err := r.apps().Awake(t.Context(), a.ID)
	hasText(t, err, apierror.EUnwoken, "no available compute node")
	if row := r.row(a.ID); row.Status != record.AppFailed || !strings.HasPrefix(row.Error, "no available compute node") {
		t.Errorf("it is %s: %s", row.Status, row.Error)
	}
	version := r.row(a.ID).ModifyIndex
	if err := r.apps().Awake(t.Context(), a.ID); apierror.CodeOf(err) != apierror.EUnwoken || r.row(a.ID).ModifyIndex != version {
		t.Errorf("at once again: %v", err)
	}
	room(16 << 10)
	r.await("a wake that goes well", func() bool { return r.apps().Awake(t.Context(), a.ID) == nil })
	if row := r.row(a.ID); row.Error != "" || row.Status != record.AppRunning {
		t.Errorf("it is %s: %s", row.Status, row.Error)
	}
}

// TestWakeBuildFails: no artifact, and no build.
func TestWakeBuildFails(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.asleep()
	r.edit(a.ID, func(a *record.App) { a.Stale = true })
	r.guests.set(func(g *guests) { g.plan = appapi.BuildStatus{State: appapi.StateFailed, Error: "no such branch"} })
	hasText(t, r.apps().Awake(t.Context(), a.ID), apierror.EUnwoken, "no such branch")
	if row := r.row(a.ID); row.Status != record.AppFailed || row.DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
	r.settled(0)
}

// TestLostInstance: it is replaced at once, without being asked.
func TestLostInstance(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, lose := range map[string]func(r *rig, box string){
		"failed": func(r *rig, box string) { r.host(box).Become(box, hostapi.StatusFailed) },
		"host": func(r *rig, box string) {
			h := r.host(box)
			h.Silence(true)
			r.t.Cleanup(func() { h.Silence(false) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 2, nil)
			store := fakehost.NewStore()
			for _, h := range r.hosts {
				h.SetStore(store)
			}
			r.await("the store", func() bool { return len(r.LeaderNode().Hosts.Stores()) == 2 })
			a, d := r.live()
			r.await("the upload", func() bool {
				s, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, r.deployment(d.ID).SnapshotID)
				return ok && s.Stored && s.Status == record.ResourceReady
			})
			box := r.row(a.ID).Instances[0].SandboxID
			lose(r, box)
			r.await("another instance", func() bool {
				row := r.row(a.ID)
				return row.Status == record.AppRunning && len(row.Instances) == 1 && row.Instances[0].SandboxID != box
			})
			if n := len(raftstore.All(r.Leader().Store.View(), record.Deployments)); n != 1 {
				t.Errorf("%d deployments: it is not from its artifact", n)
			}
		})
	}
}

// TestLostWithItsArtifact: the host had both; the app is built anew.
func TestLostWithItsArtifact(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a, _ := r.live()
	h := r.host(r.row(a.ID).Instances[0].SandboxID)
	h.Silence(true)
	r.await("a deployment in its place", func() bool {
		d, ok := find(r, "wake")
		return ok && d.Status == record.DeploymentLive && r.row(a.ID).DeploymentID == d.ID
	})
	h.Silence(false)
	r.settled(1)
}

// TestAlwaysOn: an app that never sleeps is tried again after a failure.
func TestAlwaysOn(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	r.edit(a.ID, func(a *record.App) { a.Stale = true })
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	box := r.row(a.ID).Instances[0].SandboxID
	r.host(box).Become(box, hostapi.StatusFailed)
	r.becomes(a.ID, record.AppFailed)
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
	r.becomes(a.ID, record.AppRunning)
	r.settled(1)
}

// TestDrainHasALimit: a connection that never ends does not keep an old instance.
func TestDrainHasALimit(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	old := r.row(a.ID).Instances[0].SandboxID
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.await("its end", func() bool {
		r.apps().Heard("edge", []app.Activity{{AppID: a.ID, Open: map[string]int{old: 1}}})
		_, ok := r.Sandbox(old)
		return !ok
	})
	r.settled(1)
}

// TestOrphans: what no app has goes.
func TestOrphans(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live()
	second := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.settled(1)
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.Deployments, d.ID)
		row = row.Clone()
		row.SnapshotID = ""
		raftstore.Put(tx, record.Deployments, row)
		return nil
	})
	r.await("the artifact's end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Snapshots)) == 1 })
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Apps, a.ID)
		raftstore.Delete(tx, record.Deployments, d.ID)
		raftstore.Delete(tx, record.Deployments, second.ID)
		return nil
	})
	r.await("the sandbox's end", func() bool {
		view := r.Leader().Store.View()
		return len(raftstore.All(view, record.Sandboxes))+len(raftstore.All(view, record.Snapshots)) == 0
	})
}

// TestInterrupted: rows that an old backup has in the middle of something end.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live()
	r.Update(func(tx *raftstore.Tx) error {
		row := r.row(a.ID).Clone()
		row.Instances, row.Status = nil, record.AppWaking
		raftstore.Put(tx, record.Apps, row)
		raftstore.Put(tx, record.Deployments, &record.Deployment{Meta: record.Meta{ID: "dep-stray"}, WorkspaceID: "ws", AppID: a.ID, Status: record.DeploymentQueued})
		return nil
	})
	if row := r.ends("dep-stray", record.DeploymentFailed); row.Error != "what made it was interrupted" {
		t.Errorf("error %q", row.Error)
	}
	if row := r.becomes(a.ID, record.AppRunning); row.DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
	r.edit(a.ID, func(a *record.App) { a.Status = record.AppDeleting })
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	r.settled(0)
}

// TestPushes: of those that wait the latest is deployed.
func TestPushes(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	first := r.deploy(a.ID)
	r.at(first.ID, "poll")
	var ids []string
	for i := range 3 {
		d, err := r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: fmt.Sprint("c", i)})
		if err != nil || d.Trigger != api.TriggerPush {
			t.Fatalf("%+v, %v", d, err)
		}
		ids = append(ids, d.ID)
	}
	for _, id := range ids[:2] {
		if d := r.deployment(id); d.Status != record.DeploymentFailed || d.Error != "superseded by a newer deployment" {
			t.Errorf("%+v", d)
		}
	}
	r.guests.set(func(g *guests) { g.hold = false })
	r.ends(first.ID, record.DeploymentLive)
	if d := r.ends(ids[2], record.DeploymentLive); d.GitRef != "c2" {
		t.Errorf("%+v", d)
	}
	if _, err := r.apps().Pushed(t.Context(), "other", a.ID, app.Push{GitRef: "x"}); apierror.CodeOf(err) != apierror.ENotFound {
		t.Errorf("another workspace's push: %v", err)
	}
	if _, err := r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: "-x"}); apierror.CodeOf(err) != apierror.EInvalid {
		t.Errorf("a bad ref: %v", err)
	}
	r.settled(1)
}

// errCrash drops a flow where it is.
var errCrash = errors.New("crash")

// TestRecalled: an app that is asked for while its sandbox is there still is served by
// that at once.
func TestRecalled(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live(sleepy)
	box := r.row(a.ID).Instances[0].SandboxID
	open := []app.Activity{{AppID: a.ID, Open: map[string]int{box: 1}}}
	r.await("sleep, with a request in the old sandbox", func() bool {
		row := r.row(a.ID)
		if len(row.Draining) > 0 {
			r.apps().Heard("edge", open)
			return true
		}
		return false
	})
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if row := r.row(a.ID); row.Status != record.AppRunning || len(row.Draining) != 0 || row.Instances[0].SandboxID != box {
		t.Errorf("%+v", row)
	}
}

// TestToldToEnd: the program of an instance that has drained is told to end before its
// sandbox is deleted, and never serves again, also if it takes its time.
func TestToldToEnd(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	ending := make(chan struct{})
	r.guests.set(func(g *guests) { g.ending = ending })
	a, _ := r.live(sleepy)
	old := r.row(a.ID).Instances[0].SandboxID
	r.becomes(a.ID, record.AppHibernated)
	told := func() (boxes []string) {
		r.guests.mu.Lock()
		defer r.guests.mu.Unlock()
		return slices.Clone(r.guests.ended)
	}
	r.await("the word to its program", func() bool { return len(told()) > 0 })
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if row := r.row(a.ID); row.Instances[0].SandboxID == old || len(row.Draining) != 1 {
		t.Errorf("%+v", row)
	}
	if _, ok := r.Sandbox(old); !ok {
		t.Error("its sandbox was deleted while its program was ending")
	}
	r.edit(a.ID, func(a *record.App) { a.AutoHibernate = false })
	close(ending)
	r.settled(1)
	if got := told(); len(got) != 1 || got[0] != old {
		t.Errorf("told to end: %q, not %s", got, old)
	}
}

// TestToldToEndByADelete: the programs of an app that is deleted are told to end, too, also
// by the leader after the one that was asked.
func TestToldToEndByADelete(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	ending := make(chan struct{})
	r.guests.set(func(g *guests) { g.ending = ending })
	a, _ := r.live()
	box := r.row(a.ID).Instances[0].SandboxID
	told := func() (n int) {
		r.guests.mu.Lock()
		defer r.guests.mu.Unlock()
		for _, b := range r.guests.ended {
			if b == box {
				n++
			}
		}
		return n
	}
	deleted := make(chan error, 1)
	apps := r.apps()
	go func() { deleted <- apps.Delete(t.Context(), caller, a.ID) }()
	r.await("the word to its program", func() bool { return told() == 1 })
	if _, ok := r.Sandbox(box); !ok {
		t.Error("its sandbox was deleted while its program was ending")
	}
	if err := r.Leader().Store.TransferLeadership(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r.await("the word of the next leader", func() bool { return told() > 1 })
	if _, ok := r.Sandbox(box); !ok {
		t.Error("its sandbox was deleted while its program was ending, after a change of leaders")
	}
	close(ending)
	<-deleted // either it is gone, or the removal goes on without the caller
	r.settled(0)
}

// TestToldToEndWhileItStarts: the program of an app that is deleted is told to end also where
// it has just been started, by a deployment or by a wake, and does not serve yet.
func TestToldToEndWhileItStarts(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for _, name := range []string{"deployment", "wake"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			apps, woken := r.apps(), make(chan error, 1)
			var appID string
			if name == "wake" {
				a, _ := r.asleep()
				appID = a.ID
				r.guests.set(func(g *guests) { g.port = 4711 })
				go func() { woken <- apps.Awake(context.WithoutCancel(t.Context()), appID) }()
			} else {
				appID = r.create().ID
				r.guests.set(func(g *guests) { g.port = 4711 })
				r.deploy(appID)
				woken <- nil
			}
			var box string
			r.await("the start of its program", func() bool {
				for _, b := range raftstore.All(r.Leader().Store.View(), record.Sandboxes) {
					if box = b.ID; r.guests.at(box).port == 4711 {
						return true
					}
				}
				return false
			})
			ending := make(chan struct{})
			r.guests.set(func(g *guests) { g.ending = ending })
			deleted := make(chan error, 1)
			go func() { deleted <- apps.Delete(context.WithoutCancel(t.Context()), caller, appID) }()
			r.await("the word to its program", func() bool {
				r.guests.mu.Lock()
				defer r.guests.mu.Unlock()
				return slices.Contains(r.guests.ended, box)
			})
			r.await("the end of its deployment", func() bool {
				return !slices.ContainsFunc(raftstore.All(r.Leader().Store.View(), record.Flows), func(f *record.Flow) bool { return f.Kind == app.KindDeploy })
			})
			if row, ok := r.Sandbox(box); !ok || row.Status != record.SandboxRunning {
				t.Errorf("its sandbox is %+v while its program was ending", row)
			}
			close(ending)
			if err := <-deleted; err != nil {
				t.Error(err)
			}
			<-woken
			r.settled(0)
		})
	}
}

// TestEndedWithoutAnAnswer: a guest that does not answer loses its sandbox all the same.
func TestEndedWithoutAnAnswer(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live(sleepy)
	r.guests.set(func(g *guests) { g.down = true })
	r.becomes(a.ID, record.AppHibernated)
	r.settled(0)
}

// TestNotRecalled: an instance that was started with former variables is not the next wake.
func TestNotRecalled(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live(sleepy)
	box := r.row(a.ID).Instances[0].SandboxID
	if _, err := r.apps().PutVariable(t.Context(), caller, a.ID, "A", api.PutAppVariable{Value: "1"}); err != nil {
		t.Fatal(err)
	}
	open := []app.Activity{{AppID: a.ID, Open: map[string]int{box: 1}}}
	r.await("sleep, with a request in the old sandbox", func() bool {
		if row := r.row(a.ID); len(row.Draining) == 0 {
			return false
		}
		r.apps().Heard("edge", open)
		return true
	})
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	row := r.row(a.ID)
	if in := row.Instances[0]; in.SandboxID == box || r.guests.at(in.SandboxID).run.Env["A"] != "1" {
		t.Errorf("%+v", row)
	}
}
