package app_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestScale: many open requests get instances, few lose them, and none goes with a
// request in it.
func TestScale(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	store := fakehost.NewStore()
	for _, h := range r.hosts {
		h.SetStore(store)
	}
	r.await("the store", func() bool { return len(r.LeaderNode().Hosts.Stores()) == 2 })
	a, d := r.live(func(in *api.CreateApp) { in.MaxInstances = new(3) })
	r.await("the upload", func() bool {
		s, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, r.deployment(d.ID).SnapshotID)
		return ok && s.Stored
	})
	hearing := func(of func(i int) int) {
		open := map[string]int{}
		row := r.row(a.ID)
		for i, in := range row.Instances {
			open[in.SandboxID] = of(i)
		}
		for _, in := range row.Draining {
			open[in.SandboxID] = 1
		}
		r.apps().Heard("edge", []app.Activity{{AppID: a.ID, LastRequest: time.Now(), Open: open}})
	}
	hear := func(each int) { hearing(func(int) int { return each }) }
	// A change that the next wake builds does not keep it from growing until then, with what
	// it is served by now.
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{StartCommand: api.SetTo("node other.js")}); err != nil {
		t.Fatal(err)
	}
	r.await("three instances", func() bool { hear(41); return len(r.row(a.ID).Instances) == 3 })
	if row := r.row(a.ID); !row.Stale || row.Instances[2].DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
	lost := r.row(a.ID).Instances[1].SandboxID
	r.host(lost).Become(lost, hostapi.StatusFailed)
	r.await("another in place of a lost one", func() bool {
		hear(20)
		row := r.row(a.ID)
		return len(row.Instances) == 3 && !slices.ContainsFunc(row.Instances, func(in record.AppInstance) bool { return in.SandboxID == lost })
	})
	on := map[string]bool{}
	for _, in := range r.row(a.ID).Instances {
		on[r.host(in.SandboxID).ID] = true
	}
	if len(on) != 2 {
		t.Errorf("they are on %d hosts", len(on))
	}
	begun := time.Now()
	r.await("that no more come", func() bool { hear(41); return time.Since(begun) > time.Second })
	if n := len(r.row(a.ID).Instances); n != 3 {
		t.Errorf("%d instances", n)
	}
	// Each has a WebSocket, which lasts for as long as it likes.
	three := r.row(a.ID).Instances
	begun = time.Now()
	r.await("several times what drains one", func() bool { hear(2); return time.Since(begun) > 2*time.Second })
	if row := r.row(a.ID); len(row.Instances) != 3 || len(row.Draining) > 0 {
		t.Errorf("one drains with requests in it: %+v", row)
	}
	r.await("a drained one", func() bool {
		hearing(func(i int) int { return 4 * (i % 2) }) // the first and the third have none
		return len(r.row(a.ID).Draining) > 0
	})
	drains := r.row(a.ID).Draining[0].SandboxID
	if drains != three[2].SandboxID {
		t.Errorf("%s drains of %+v", drains, three)
	}
	begun = time.Now()
	r.await("a second of that", func() bool { hear(20); return time.Since(begun) > time.Second })
	if _, ok := r.Sandbox(drains); !ok {
		t.Error("an instance is gone with a request in it")
	}
	r.await("one instance", func() bool { hear(0); return len(r.row(a.ID).Instances) == 1 })
	r.settled(1)
	// A lower limit has effect at once.
	r.await("instances", func() bool { hear(50); return len(r.row(a.ID).Instances) == 3 })
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{MaxInstances: api.SetTo(1)}); err != nil {
		t.Fatal(err)
	}
	r.await("one instance", func() bool { hear(50); return len(r.row(a.ID).Instances) == 1 })
	// Whatever an app asks for, its workspace's tier has to have it.
	allow := func(most *int) {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{AppInstances: most}})
			return nil
		})
	}
	allow(new(0)) // one always may
	if out, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{MaxInstances: api.SetTo(3)}); err != nil || out.MaxInstances != 3 {
		t.Fatalf("%+v, %v", out, err)
	}
	begun = time.Now()
	r.await("that none comes", func() bool { hear(50); return time.Since(begun) > time.Second })
	if n := len(r.row(a.ID).Instances); n != 1 {
		t.Errorf("%d instances in a workspace that may have one", n)
	}
	allow(nil)
	r.await("instances", func() bool { hear(50); return len(r.row(a.ID).Instances) == 3 })
	allow(new(2))
	r.await("two instances", func() bool { hear(50); return len(r.row(a.ID).Instances) == 2 })
}

// TestADeploymentKeepsTheInstances: as many as there were come up at once, however long the
// app would have to be busy otherwise.
func TestADeploymentKeepsTheInstances(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.ScaleUp, c.ScaleDown = time.Hour, time.Hour })
	a, _ := r.live(func(in *api.CreateApp) { in.MaxInstances = new(3) })
	for n := 2; n <= 3; n++ {
		r.Update(func(tx *raftstore.Tx) error { return app.BeginWake(tx, a.ID) })
		r.await("one more instance", func() bool { return len(r.row(a.ID).Instances) == n })
		r.settled(n)
	}
	d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.await("three instances", func() bool { return len(r.row(a.ID).Instances) == 3 })
	for _, in := range r.row(a.ID).Instances {
		if in.DeploymentID != d.ID {
			t.Errorf("%+v is not of the new deployment", in)
		}
	}
	r.settled(3)
}

// A ceiling of the month refuses to wake what sleeps. What ran and is brought up again is
// awaited.
func TestAppsBeyondTheMonthsBudget(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	b, _ := r.asleep()
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{BudgetCents: new(0)}})
		return nil
	})
	want(t, r.apps().Awake(t.Context(), b.ID), apierror.ERateLimited, "monthly budget exceeded")
	release := make(chan struct{})
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	r.lose(a.ID)
	r.becomes(a.ID, record.AppWaking)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.apps().Awake(ctx, a.ID); ctx.Err() == nil {
		t.Errorf("a visitor is not held: %v", err)
	}
	close(release)
	r.becomes(a.ID, record.AppRunning)
}
