package billing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// asked counts what a provider is asked.
type asked struct {
	mu   sync.Mutex
	of   map[string]int
	fail bool
	err  error
	says map[string]Subscription
	hold func()
}

func (a *asked) Subscription(_ context.Context, workspaceID, _ string) (Subscription, error) {
	if a.hold != nil {
		a.hold()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail {
		return Subscription{}, errors.New("away")
	}
	if a.err != nil {
		return Subscription{}, a.err
	}
	a.of[workspaceID]++
	return a.says[workspaceID], nil
}

// followRig is the loop of a term, with a clock that the test moves a pass at a time.
type followRig struct {
	*testcluster.Cluster
	t    *testing.T
	now  time.Time
	says *asked
	pass func(context.Context)
}

func newFollowRig(t *testing.T, workspaces int) *followRig {
	r := &followRig{Cluster: testcluster.New(t, 1), t: t, now: time.Now(), says: &asked{of: map[string]int{}, says: map[string]Subscription{}}}
	r.Update(func(tx *raftstore.Tx) error {
		for i := range workspaces {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: fmt.Sprint("ws", i)}, CustomerID: fmt.Sprint("cus", i)})
		}
		return nil
	})
	r.lead()
	return r
}

// lead begins the loop of another leader.
func (r *followRig) lead() {
	r.t.Helper()
	tiers, err := limits.Load("", "free")
	if err != nil {
		r.t.Fatal(err)
	}
	clock := func() time.Time { return r.now }
	random := 0.0
	b := New(core.New(core.Core{Store: r.Leader().Store, Tiers: tiers, Clock: clock}), Config{Provider: r.says, Random: func() float64 {
		random += 0.37
		return random - float64(int(random))
	}})
	all := b.Loops(loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: clock, Logger: testcluster.Log()}))
	if len(all) != 1 {
		r.t.Fatalf("%d loops", len(all))
	}
	r.pass = all[0].Pass
}

func (r *followRig) run(d time.Duration) {
	for range int(d / passEvery) {
		r.pass(r.t.Context())
		r.now = r.now.Add(passEvery)
	}
}

func (r *followRig) workspace(id string) *record.Workspace {
	w, _ := raftstore.Get(r.Leader().Store.View(), record.Workspaces, id)
	return w
}

// A subscription that changes at the provider is seen without anybody's call.
func TestSubscriptionsAreFollowed(t *testing.T) {
	r := newFollowRig(t, 30)
	for i := range 30 {
		id := fmt.Sprint("ws", i)
		r.says.says[id] = Subscription{CustomerID: fmt.Sprint("cus", i), Status: record.SubscriptionActive, Tier: "pro"}
	}
	before := r.Leader().Store.Status().LastLogIndex
	r.run(90 * time.Minute)
	for i := range 30 {
		if w := r.workspace(fmt.Sprint("ws", i)); w.SubscriptionStatus != record.SubscriptionActive || w.Tier != "pro" || w.CustomerID != fmt.Sprint("cus", i) {
			t.Errorf("%+v", w)
		}
		if n := r.says.of[fmt.Sprint("ws", i)]; n < 1 || n > 2 {
			t.Errorf("ws%d was asked about %d times in 90 minutes", i, n)
		}
	}
	if written := r.Leader().Store.Status().LastLogIndex - before; written > 32 {
		t.Errorf("%d writes for 30 changes", written)
	}
	r.says.says["ws7"] = Subscription{CustomerID: "cus7", Status: record.SubscriptionPastDue, Tier: "pro"}
	r.run(70 * time.Minute)
	if w := r.workspace("ws7"); w.SubscriptionStatus != record.SubscriptionPastDue {
		t.Errorf("%+v", w)
	}
	// The next leader does not ask about all at once.
	r.says.of = map[string]int{}
	r.lead()
	r.pass(t.Context())
	if n := len(r.says.of); n > 3 {
		t.Errorf("a new leader asked about %d of 30 at once", n)
	}
	r.run(70 * time.Minute)
	if n := len(r.says.of); n != 30 {
		t.Errorf("a new leader asked about %d of 30 in an hour", n)
	}
}

// What the provider does not know stays as the operator has set it, and is asked for rarely.
func TestStrangersToTheProvider(t *testing.T) {
	r := newFollowRig(t, 0)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, SubscriptionStatus: record.SubscriptionActive, Tier: "team"})
		return nil
	})
	r.run(24 * time.Hour)
	if w := r.workspace("ws"); w.SubscriptionStatus != record.SubscriptionActive || w.Tier != "team" {
		t.Errorf("%+v", w)
	}
	if n := r.says.of["ws"]; n < 3 || n > 5 {
		t.Errorf("asked %d times in a day", n)
	}
}

// However much is due, a pass asks a bounded number; one that fails asks no more for a while.
func TestTheProviderIsNotFlooded(t *testing.T) {
	r := newFollowRig(t, 200)
	r.pass(t.Context()) // spreads them
	r.now = r.now.Add(2 * time.Hour)
	r.pass(t.Context())
	if n := len(r.says.of); n != passMost {
		t.Errorf("%d in a pass", n)
	}
	r.run(4 * time.Minute)
	if n := len(r.says.of); n != 200 {
		t.Errorf("%d of 200 in the end", n)
	}
	r.says.of, r.says.fail = map[string]int{}, true
	r.now = r.now.Add(2 * time.Hour)
	r.pass(t.Context())
	r.says.fail = false
	r.run(backOff)
	if n := len(r.says.of); n != 0 {
		t.Errorf("%d right after a failure", n)
	}
	r.pass(t.Context())
	if n := len(r.says.of); n == 0 {
		t.Error("never again after a failure")
	}
}

// Who has paid does not stay paused: a paused workspace is asked about with every pass,
// also if it was to be asked about rarely before.
func TestAPausedWorkspaceIsAskedAboutSoon(t *testing.T) {
	r := newFollowRig(t, 0)
	paused := func(id string, at time.Time) {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}, PausedAt: at})
			return nil
		})
	}
	paused("ws", time.Time{})
	r.run(10 * time.Minute)
	paused("ws", r.now)
	r.says.says["ws"] = Subscription{CustomerID: "cus", Status: record.SubscriptionActive, Tier: "pro"}
	r.run(2 * time.Minute)
	if w := r.workspace("ws"); w.SubscriptionStatus != record.SubscriptionActive {
		t.Errorf("two minutes after it was paid for: %+v", w)
	}
	// However many are paused, half of what is asked is about the others.
	for i := range 3 * passMost {
		paused(fmt.Sprint("idle", i), r.now)
	}
	r.Update(func(tx *raftstore.Tx) error {
		for i := range passMost {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: fmt.Sprint("paid", i)}, CustomerID: "cus"})
		}
		return nil
	})
	r.pass(t.Context())
	r.now = r.now.Add(2 * time.Hour)
	r.says.of = map[string]int{}
	r.run(2 * time.Minute)
	others := 0
	for i := range passMost {
		others += r.says.of[fmt.Sprint("paid", i)]
	}
	if others != passMost || len(r.says.of) != 2*passMost {
		t.Errorf("%d of %d workspaces that are not paused, and %d in all", others, passMost, len(r.says.of))
	}
}

// One workspace does not use up what the operator may ask the provider, and a provider
// that was asked too much by others is not let alone for it.
func TestATenantAsksTheProviderNowAndThen(t *testing.T) {
	r := newFollowRig(t, 2)
	b := New(core.New(core.Core{Store: r.Leader().Store, Clock: func() time.Time { return r.now }}), Config{Provider: r.says})
	ask := func(id string) error {
		_, err := b.Sync(t.Context(), core.Caller{WorkspaceID: id})
		return err
	}
	if err := ask("ws0"); err != nil {
		t.Fatal(err)
	}
	e := apierror.As(ask("ws0"))
	if e == nil || e.Code != apierror.ERateLimited || e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
		t.Fatalf("again at once: %+v", e)
	}
	if err := ask("ws1"); err != nil {
		t.Errorf("another: %v", err)
	}
	r.now = r.now.Add(10 * time.Second)
	if err := ask("ws0"); err != nil {
		t.Errorf("ten seconds later: %v", err)
	}

	r.pass(t.Context())
	r.now = r.now.Add(7 * time.Hour)
	r.says.of, r.says.err = map[string]int{}, fmt.Errorf("%w: status 429", errTooMuch)
	r.pass(t.Context())
	r.says.err = nil
	r.now = r.now.Add(passEvery)
	r.pass(t.Context())
	if len(r.says.of) != 2 {
		t.Errorf("a minute after the provider was asked too much: %v", r.says.of)
	}
}

// What tenants ask waits for its turn.
func TestTenantsAskTheProviderInTurn(t *testing.T) {
	r := newFollowRig(t, 3*syncsAtOnce)
	in, out := make(chan struct{}), make(chan struct{})
	r.says.hold = func() { in <- struct{}{}; <-out }
	b := New(core.New(core.Core{Store: r.Leader().Store, Clock: func() time.Time { return r.now }}), Config{Provider: r.says})
	ended := make(chan error)
	for i := range 3 * syncsAtOnce {
		go func() {
			_, err := b.Sync(t.Context(), core.Caller{WorkspaceID: fmt.Sprint("ws", i)})
			ended <- err
		}()
	}
	for range syncsAtOnce {
		<-in
	}
	for i := range 3 * syncsAtOnce {
		select {
		case <-in:
			t.Fatal("one more is asked at once")
		case out <- struct{}{}:
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if i < 2*syncsAtOnce {
			<-in
		}
	}
}

func TestWithoutAProviderNobodyIsAsked(t *testing.T) {
	if all := New(core.New(core.Core{}), Config{}).Loops(nil); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
