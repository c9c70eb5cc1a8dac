package app_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// unhear has the leader be a new one that no host has found yet.
func (r *rig) unhear() {
	for _, h := range r.hosts {
		h.Silence(true)
	}
	n := r.LeaderNode()
	for { // until no heartbeat is on its way any more
		n.Hosts.Resign()
		n.Hosts.Lead(n.Store.Term())
		<-time.After(20 * time.Millisecond)
		if len(n.Hosts.Sessions()) == 0 {
			return
		}
	}
}

func (r *rig) speak() {
	for _, h := range r.hosts {
		h.Silence(false)
	}
}

// TestNewLeaderHasHeardNoHost: time limits that ran out while nobody led end nothing before
// the host could be asked.
func TestNewLeaderHasHeardNoHost(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	// deaf has the hosts be unheard at the first run of a step, and speak at the second.
	deaf := func(r **rig, kind, step string, before func()) (fault func(f *record.Flow, at flow.Point) error, runs *atomic.Int64) {
		runs = new(atomic.Int64)
		return func(f *record.Flow, at flow.Point) error {
			if f.Kind != kind || f.Step != step || at != flow.BeforeAct {
				return nil
			}
			switch runs.Add(1) {
			case 1:
				before()
				(*r).unhear()
			case 2:
				(*r).speak()
			}
			return nil
		}, runs
	}
	t.Run("wake", func(t *testing.T) {
		t.Parallel()
		var r *rig
		fault, runs := deaf(&r, app.KindWake, "health", func() {})
		r = newRig(t, 1, 1, fault, func(c *app.Config) { c.Health, c.Patience = time.Millisecond, 400*time.Millisecond })
		a, d := r.asleep()
		r.edit(a.ID, func(a *record.App) { a.AutoHibernate = false })
		if err := r.apps().Awake(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		if row := r.becomes(a.ID, record.AppRunning); row.DeploymentID != d.ID || runs.Load() < 2 {
			t.Errorf("after %d runs of the step it was built anew: %+v", runs.Load(), row)
		}
		r.settled(1)
	})
	t.Run("build", func(t *testing.T) {
		t.Parallel()
		var r *rig
		fault, runs := deaf(&r, app.KindDeploy, "poll", func() {})
		r = newRig(t, 1, 1, fault, func(c *app.Config) { c.GuestSilent = -1 }) // its first silence would be too long
		a := r.create()
		r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
		if runs.Load() < 2 {
			t.Error("the step was not repeated")
		}
		r.settled(1)
	})
	t.Run("capture", func(t *testing.T) {
		t.Parallel()
		var r *rig
		free := make(chan struct{})
		const limit = 2 * time.Second
		fault, runs := deaf(&r, app.KindDeploy, "captured", func() { <-time.After(limit) })
		r = newRig(t, 1, 1, fault, func(c *app.Config) { c.Capture = limit })
		r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
			if c.Op == "capture" && !c.Done {
				select {
				case <-free:
				case <-ctx.Done():
				}
			}
			return nil
		})
		a := r.create()
		d := r.deploy(a.ID)
		r.await("a second look at the capture", func() bool { return runs.Load() > 1 || r.deployment(d.ID).Status.Ended() })
		close(free)
		if d := r.ends(d.ID, record.DeploymentLive); d.SnapshotID == "" {
			t.Error("it has no artifact")
		}
		r.settled(1)
	})
}

// TestAGuestThatKnowsOfNoBuild: what is not said to be built is given again, but neither at
// once nor for ever: each time is two writes of the leader, and the whole source.
func TestAGuestThatKnowsOfNoBuild(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.GuestSilent = 300 * time.Millisecond })
	r.guests.set(func(g *guests) { g.forgets = true })
	d := r.ends(r.deploy(r.create().ID).ID, record.DeploymentFailed)
	if !strings.Contains(d.Error, "does not know of the build") {
		t.Errorf("it failed: %s", d.Error)
	}
	r.guests.set(func(g *guests) {
		if g.given < 2 || g.given > 5 {
			t.Errorf("the build was given %d times", g.given)
		}
	})
	r.settled(0)
}

// TestAGuestWithNewsEachTime: each is a write of the leader, and there is a pause before the
// next.
func TestAGuestWithNewsEachTime(t *testing.T) {
	t.Parallel()
	var polls, atOnce atomic.Int64
	r := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
		if f.Kind == app.KindDeploy && f.Step == "poll" && at == flow.BeforeAct {
			polls.Add(1)
			if f.WakeAt.IsZero() {
				atOnce.Add(1)
			}
		}
		return nil
	})
	r.guests.set(func(g *guests) { g.hold, g.restless = true, 1 })
	d := r.deploy(r.create().ID)
	r.await("some polls", func() bool { return polls.Load() >= 4 })
	r.guests.set(func(g *guests) { g.hold, g.restless = false, 0 })
	r.ends(d.ID, record.DeploymentLive)
	if n := atOnce.Load(); n != 1 {
		t.Errorf("%d of %d polls were at once, want the first alone", n, polls.Load())
	}
	r.settled(1)
}

// TestALateCaptureLeavesTimeToStart: a deployment does not spend its budget on its artifact.
func TestALateCaptureLeavesTimeToStart(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.Budget, c.Health, c.Capture = 10*time.Second, 7*time.Second, time.Hour })
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "capture" && !c.Done {
			<-ctx.Done()
		}
		return nil
	})
	if _, d := r.live(); r.deployment(d.ID).SnapshotID != "" {
		t.Errorf("it has an artifact: %+v", r.deployment(d.ID))
	}
	r.settled(1)
}

// TestCachesOfALeaderThatDies: what a host was given of them goes, though the time of the
// deployment is over before anybody can name it.
func TestCachesOfALeaderThatDies(t *testing.T) {
	t.Parallel()
	kept, late := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(late) })
	defer release()
	var once sync.Once
	r := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) (err error) {
		if f.Kind == app.KindDeploy && f.Step == "cache" && at == flow.BeforeCommit {
			once.Do(func() {
				close(kept)
				<-late
				err = errCrash
			})
		}
		return err
	})
	r.guests.set(func(g *guests) { g.cache = "caches" })
	a := r.create()
	d := r.deploy(a.ID)
	<-kept
	if len(r.caches()) != 1 {
		t.Error("no host has the caches")
	}
	r.late(d.ID)
	release()
	r.over(d.ID)
	r.await("that nothing is left of them", func() bool { return len(r.caches()) == 0 && len(r.row(a.ID).Uploads) == 0 })
	if r.row(a.ID).Cache != nil {
		t.Error("the app has a cache")
	}
	r.settled(1)
}

// TestAnUpgradeInTheMiddle: of the flow of an earlier version, which started the app before
// it captured it.
func TestAnUpgradeInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	free := make(chan struct{})
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "capture" && !c.Done {
			select {
			case <-free:
			case <-ctx.Done():
			}
		}
		return nil
	})
	a := r.create()
	d := r.deploy(a.ID)
	r.at(d.ID, "captured")
	r.Update(func(tx *raftstore.Tx) error {
		f, _ := flow.Live(tx, app.DeploymentSubject(d.ID))
		f = f.Clone()
		f.Step = "flip"
		raftstore.Put(tx, record.Flows, f)
		return nil
	})
	close(free)
	if d := r.ends(d.ID, record.DeploymentLive); d.SnapshotID == "" {
		t.Error("it has no artifact")
	}
	r.settled(1)
}
