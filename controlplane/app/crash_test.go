package app_test

import (
	"context"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
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
