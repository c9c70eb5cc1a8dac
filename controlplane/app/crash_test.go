package app_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
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
)

// twice drops every step of the flows of apps once at each point, as a leader's death
// there does: each step runs at least twice.
func twice() func(f *record.Flow, at flow.Point) error {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(f *record.Flow, at flow.Point) error {
		if f.Kind != app.KindDeploy && f.Kind != app.KindWake && f.Kind != app.KindDelete {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		key := f.ID + "/" + f.Step + "/" + string(at)
		if seen[key] {
			return nil
		}
		seen[key] = true
		return errCrash
	}
}

// TestEachStepTwice: a deploy, a wake, a rollback, a failure and a delete, each of whose
// steps is cut off before it acts, before it commits and after that.
func TestEachStepTwice(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, twice())
	a, d := r.live(sleepy)
	if n := r.guests.at(r.deployment(d.ID).SandboxID).builds; n != 1 {
		t.Errorf("%d builds", n)
	}
	r.becomes(a.ID, record.AppHibernated)
	if err := r.apps().Awake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{AutoHibernate: api.SetTo(false)}); err != nil {
		t.Fatal(err)
	}
	if r.row(a.ID).Status == record.AppHibernated { // it was quicker
		if err := r.apps().Awake(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
	}
	second := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	back, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	r.ends(back.ID, record.DeploymentLive)
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
	r.settled(1)
	if r.row(a.ID).DeploymentID != back.ID || r.deployment(second.ID).SnapshotID == "" {
		t.Errorf("%+v", r.row(a.ID))
	}
	if err := r.apps().Delete(t.Context(), caller, a.ID); err != nil {
		t.Fatal(err)
	}
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	r.settled(0)
	if blobs := r.hosts[0].Blobs(); len(blobs) > 0 {
		t.Errorf("blobs %q are left", blobs)
	}
}

// stepOf names a point in the flows of an app; "": the flow is another's.
func stepOf(f *record.Flow, at flow.Point) string {
	if f.Kind != app.KindDeploy && f.Kind != app.KindWake && f.Kind != app.KindDelete {
		return ""
	}
	return f.Kind + " " + f.Step + " " + string(at)
}

// life deploys an app twice, with caches, lets it sleep and wake, and rolls it back. It ends
// early when the app is being deleted.
func (r *rig) life(appID string) {
	r.t.Helper()
	gone := func() bool {
		a, ok := raftstore.Get(r.Leader().Store.View(), record.Apps, appID)
		return !ok || a.Status == record.AppDeleting
	}
	// each passes on to the next stage when the app is as is says.
	each := func(what string, begin func() error, is func(a *record.App) bool) bool {
		r.t.Helper()
		for !gone() && begin() != nil { // the leader is another one now
			r.await("a leader", func() bool { return r.Leader() != nil })
		}
		r.await(what, func() bool {
			a, ok := raftstore.Get(r.Leader().Store.View(), record.Apps, appID)
			return !ok || a.Status == record.AppDeleting || is(a)
		})
		return !gone()
	}
	var last string
	deployed := func(a *record.App) bool { return a.DeploymentID == last }
	deploy := func(key string, do func(i core.Idempotency) (api.Deployment, error)) func() error {
		return func() error {
			d, err := do(testplane.Key(key, ""))
			last = d.ID
			return err
		}
	}
	anew := func(i core.Idempotency) (api.Deployment, error) {
		return r.apps().Deploy(r.t.Context(), caller, appID, api.CreateDeployment{}, i)
	}
	back := func(i core.Idempotency) (api.Deployment, error) {
		return r.apps().RollBack(r.t.Context(), caller, appID, api.RollBackApp{}, i)
	}
	nothing := func() error { return nil }
	_ = each("the first deployment", deploy("first", anew), deployed) &&
		each("sleep", nothing, func(a *record.App) bool { return a.Status == record.AppHibernated && len(a.Draining) == 0 }) &&
		each("a wake", func() error { return r.apps().Awake(r.t.Context(), appID) }, func(*record.App) bool { return true }) &&
		each("the second deployment", deploy("second", anew), deployed) &&
		each("the rollback", deploy("back", back), deployed)
}

// TestDeletedAtEachStep: an app that is deleted at any point of a deployment, a wake or a
// rollback goes, and leaves nothing.
func TestDeletedAtEachStep(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	var mu sync.Mutex
	var points []string
	all := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
		mu.Lock()
		defer mu.Unlock()
		if p := stepOf(f, at); p != "" && !slices.Contains(points, p) {
			points = append(points, p)
		}
		return nil
	})
	all.guests.set(func(g *guests) { g.cache = "cache" })
	all.life(all.create(sleepy).ID)
	mu.Lock()
	defer mu.Unlock()
	if len(points) < 3*14 {
		t.Errorf("only %q were passed", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			var appID string
			deleted := make(chan error, 1)
			r = newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
				if stepOf(f, at) == point {
					once.Do(func() {
						go func() { deleted <- r.apps().Delete(context.Background(), caller, appID) }()
						r.await("the mark in its row", func() bool {
							a, ok := raftstore.Get(r.Leader().Store.View(), record.Apps, appID)
							return !ok || a.Status == record.AppDeleting
						})
					})
				}
				return nil
			})
			r.guests.set(func(g *guests) { g.cache = "cache" })
			appID = r.create(sleepy).ID
			r.life(appID)
			once.Do(func() { deleted <- r.apps().Delete(t.Context(), caller, appID) }) // this time it did not pass there
			if err := <-deleted; err != nil {
				t.Error(err)
			}
			r.settled(0)
			view := r.Leader().Store.View()
			if n, m, o := len(raftstore.All(view, record.Apps)), len(raftstore.All(view, record.Deployments)), len(raftstore.All(view, record.Snapshots)); n+m+o != 0 {
				t.Errorf("%d apps, %d deployments, %d snapshots are left", n, m, o)
			}
			if blobs := r.hosts[0].Blobs(); len(blobs) > 0 {
				t.Errorf("blobs %q are left", blobs)
			}
		})
	}
}

// TestLeadersDieAtEachStep: another replica leads after each point of a deployment, a wake,
// a rollback and a delete, and goes on with what the one before had not committed.
func TestLeadersDieAtEachStep(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]bool{}
	var r *rig
	r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
		p := stepOf(f, at)
		mu.Lock()
		defer mu.Unlock()
		if p == "" || seen[p] {
			return nil
		}
		seen[p] = true
		lead := r.Leader()
		go func() { _ = lead.Store.TransferLeadership(context.Background(), "") }() // it waits for this step, among others
		r.await("the end of its lead", func() bool { return !lead.Store.IsLeader() })
		return errCrash
	})
	r.guests.set(func(g *guests) { g.cache = "cache" })
	a := r.create(sleepy)
	r.life(a.ID)
	row := r.row(a.ID)
	if d := r.deployment(row.DeploymentID); d.Trigger != "rollback" {
		t.Errorf("it serves %+v", d)
	}
	for _, d := range raftstore.All(r.Leader().Store.View(), record.Deployments) {
		if d.Status != record.DeploymentLive {
			t.Errorf("%s is %s: %s", d.ID, d.Status, d.Error)
		}
	}
	r.await("its end", func() bool {
		if err := r.apps().Delete(t.Context(), caller, a.ID); err != nil {
			return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0
		}
		return true
	})
	r.settled(0)
	if blobs := r.hosts[0].Blobs(); len(blobs) > 0 {
		t.Errorf("blobs %q are left", blobs)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) < 3*16 {
		t.Errorf("only %d points were passed", len(seen))
	}
}

// TestEachCallFails: every kind of call to a host fails once, before it is done and after
// that.
func TestEachCallFails(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, failure := range map[string]error{
		"cut off": fakehost.ErrDrop, "draining": &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is stopping"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			var mu sync.Mutex
			failed := map[fakehost.Call]bool{}
			r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
				mu.Lock()
				defer mu.Unlock()
				kind := fakehost.Call{Op: c.Op, Done: c.Done}
				if c.Op == "put" && name == "cut off" || failed[kind] { // a sandbox's own flow tries another host, and there is none
					return nil
				}
				if c.Op == "put" {
					return nil
				}
				failed[kind] = true
				return failure
			})
			a, _ := r.live(sleepy)
			r.becomes(a.ID, record.AppHibernated)
			if err := r.apps().Awake(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
			if err := r.apps().Delete(t.Context(), caller, a.ID); err != nil {
				t.Fatal(err)
			}
			r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
			r.settled(0)
			mu.Lock()
			defer mu.Unlock()
			for _, op := range []string{"dial/997", "dial/3000", "capture", "delete", "blob.put"} {
				if !failed[fakehost.Call{Op: op}] {
					t.Errorf("%s never failed", op)
				}
			}
		})
	}
}

// TestLeaderDies in the middle of a build: the next one ends it.
func TestLeaderDies(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	a := r.create()
	r.guests.set(func(g *guests) { g.hold = true })
	d := r.deploy(a.ID)
	r.at(d.ID, "poll")
	if err := r.Leader().Store.TransferLeadership(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	row := r.ends(d.ID, record.DeploymentLive)
	if n := r.guests.at(row.SandboxID).builds; n != 1 {
		t.Errorf("%d builds", n)
	}
	r.settled(1)
}
