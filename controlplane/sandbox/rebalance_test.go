package sandbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// asleep places sandboxes that sleep on h1.
func (r *moveRig) asleep(names ...string) (ids []string) {
	r.t.Helper()
	for _, name := range names {
		id := r.running(name)
		if _, err := r.LeaderNode().Sandboxes.Hibernate(r.t.Context(), testplane.Caller, id); err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func (r *moveRig) rebalance(in api.Rebalance) api.Rebalancing {
	r.t.Helper()
	out, err := r.LeaderNode().Replicas.Rebalance(r.t.Context(), in)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// rebalanced waits for the end of a rebalancing.
func (r *moveRig) rebalanced() api.Rebalancing {
	r.t.Helper()
	var out api.Rebalancing
	testcluster.Await(r.t, "the end of the rebalancing", func() bool {
		var err error
		out, err = r.LeaderNode().Replicas.Rebalancing(r.t.Context())
		return err == nil && out.Done
	})
	return out
}

// placed counts sandboxes by their hosts.
func (r *moveRig) placed() map[string]int {
	out := map[string]int{}
	for _, s := range raftstore.All(r.Leader().Store.View(), record.Sandboxes) {
		out[s.HostID]++
	}
	return out
}

func TestANewHostGetsItsShare(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	runs := r.running("r")
	r.asleep("a", "b", "c")
	hibernated := r.h1.Transitions("hibernate")
	h2 := r.target("h2", 4<<10)
	would := r.rebalance(api.Rebalance{DryRun: true})
	if !would.DryRun || would.Planned != 2 || would.Waiting != 2 || len(would.Moves) != 2 || would.Moves[0].From != "h1" || would.Moves[0].To != "h2" {
		t.Fatalf("would move %+v", would)
	}
	for _, h := range would.Hosts {
		if want := map[string]int{"h1": 200, "h2": 0}[h.ID]; h.Share != want || h.ShareAfter != 100 {
			t.Errorf("%+v", h)
		}
	}
	if at := r.placed(); at["h1"] != 4 {
		t.Fatalf("a dry run has moved: %v", at)
	}
	if got := r.rebalance(api.Rebalance{AtOnce: new(2)}); got.Planned != 2 || got.BeganAt == nil {
		t.Fatalf("began %+v", got)
	}
	if got := r.rebalanced(); got.Moved != 2 || got.Failed != 0 || len(got.Stays) != 0 || got.EndedAt == nil {
		t.Errorf("ended %+v", got)
	}
	r.on(runs, r.h1, record.SandboxRunning)
	for _, s := range raftstore.All(r.Leader().Store.View(), record.Sandboxes) {
		if s.HostID == "h2" {
			r.on(s.ID, h2, record.SandboxHibernated)
			r.alone(s.ID, h2, r.h1)
		}
	}
	if at := r.placed(); at["h1"] != 2 || at["h2"] != 2 {
		t.Errorf("they are on %v", at)
	}
	if r.h1.Transitions("wake") != 0 || h2.Transitions("wake") != 0 || r.h1.Transitions("hibernate") != hibernated {
		t.Error("something was woken, or put to sleep")
	}
	r.rebalance(api.Rebalance{})
	if got := r.rebalanced(); got.Planned != 0 || got.Moved != 0 {
		t.Errorf("a second run did %+v", got)
	}
}

// A host that drains, or has no store, neither gives nor takes.
func TestARebalancingLeavesOtherHostsAlone(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	r.asleep("a", "b", "c", "d")
	r.target("h2", 4<<10)
	r.Host("h3", 4<<10) // without a store
	testcluster.Await(t, "h3", func() bool { _, heard := r.LeaderNode().Hosts.Session("h3"); return heard })
	n := r.LeaderNode().Replicas
	for _, drained := range []string{"h2", "h1"} {
		if _, err := n.DrainAgent(t.Context(), drained); err != nil {
			t.Fatal(err)
		}
		if got := r.rebalance(api.Rebalance{DryRun: true}); got.Planned != 0 || len(got.Hosts) != 1 {
			t.Errorf("without %s: %+v", drained, got)
		}
		if _, err := n.UndrainAgent(t.Context(), drained); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.rebalance(api.Rebalance{DryRun: true}); got.Planned != 2 || len(got.Hosts) != 2 {
		t.Errorf("with both: %+v", got)
	}
}

func TestTheNextLeaderGoesOnWithARebalancing(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newMoveRig(t, 3, nil)
	r.asleep("a", "b", "c", "d")
	h2 := r.target("h2", 4<<10)
	var once sync.Once
	cut := make(chan struct{})
	h2.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && c.Done {
			once.Do(func() { close(cut); <-ctx.Done() }) // the answer comes to nobody
		}
		return nil
	})
	r.rebalance(api.Rebalance{AtOnce: new(1)})
	<-cut
	old := r.Leader()
	r.Cut(old)
	defer r.Heal(old)
	testcluster.Await(t, "another leader", func() bool { return r.Leader() != old })
	if got := r.rebalanced(); got.Moved != 2 || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
	if at := r.placed(); at["h1"] != 2 || at["h2"] != 2 {
		t.Errorf("they are on %v", at)
	}
}

func TestNoMoreMoveAtATime(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	r.asleep("a", "b", "c", "d", "e", "f")
	h2 := r.target("h2", 4<<10)
	var most atomic.Int64
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		moving := int64(0)
		for _, s := range raftstore.All(r.Leader().Store.View(), record.Sandboxes) {
			if s.Move != nil {
				moving++
			}
		}
		if c.Op == "put" && moving > most.Load() {
			most.Store(moving)
		}
		return nil
	})
	r.rebalance(api.Rebalance{AtOnce: new(1)})
	if got := r.rebalanced(); got.Moved != 3 || most.Load() != 1 {
		t.Errorf("%d at a time: %+v", most.Load(), got)
	}
}

// What a host refuses stays asleep where it was, with the reason, and is tried again by
// the next rebalancing alone.
func TestWhatCannotBeMovedStaysAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	ids := r.asleep("a", "b")
	h2 := r.target("h2", 4<<10)
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" {
			return &hostapi.Error{Code: hostapi.CodeInvalid, Message: "another engine"}
		}
		return nil
	})
	r.rebalance(api.Rebalance{})
	got := r.rebalanced()
	if got.Moved != 0 || got.Failed != 2 || len(got.Stays) != 2 || got.Stays[0].Reason != "no host takes it: another engine" {
		t.Fatalf("%+v", got)
	}
	for _, id := range ids {
		r.on(id, r.h1, record.SandboxHibernated)
	}
	h2.SetFault(nil)
	if would := r.rebalance(api.Rebalance{DryRun: true}); would.Planned != 1 {
		t.Errorf("%+v", would)
	}
	r.rebalance(api.Rebalance{})
	if got := r.rebalanced(); got.Moved != 1 || got.Failed != 0 || len(got.Stays) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestARebalancingIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	r.asleep("a", "b", "c", "d", "e", "f")
	h2 := r.target("h2", 4<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(reached); <-proceed })
		}
		return nil
	})
	r.rebalance(api.Rebalance{AtOnce: new(1)})
	<-reached
	if err := r.LeaderNode().Replicas.StopRebalancing(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(proceed)
	if got := r.rebalanced(); got.BeganAt != nil || got.Moving != 0 {
		t.Errorf("%+v", got)
	}
	r.Settled(r.h1, h2)
	if at := r.placed(); at["h1"] != 5 || at["h2"] != 1 {
		t.Errorf("they are on %v", at)
	}
}

func TestABadRebalancingIsRefused(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	for _, in := range []api.Rebalance{{AtOnce: new(0)}, {AtOnce: new(65)}, {Percent: new(4)}, {Percent: new(1001)}} {
		if _, err := r.LeaderNode().Replicas.Rebalance(t.Context(), in); err == nil {
			t.Errorf("%+v is taken", in)
		}
	}
}
