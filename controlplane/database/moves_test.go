package database_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// newMoveRig returns a rig whose hosts share a snapshot store.
func newMoveRig(t *testing.T, replicas, hosts int, fault func(f *record.Flow, at flow.Point) error) *rig {
	t.Helper()
	r := newRig(t, replicas, hosts, fault)
	store := fakehost.NewStore()
	for _, h := range r.hosts {
		h.SetStore(store)
	}
	testcluster.Await(t, "the store", func() bool {
		sessions := r.LeaderNode().Hosts.Sessions()
		for _, h := range r.hosts {
			if !sessions[h.ID].Heartbeat.Store {
				return false
			}
		}
		return true
	})
	return r
}

// heldMove makes a rig with two hosts whose first move is held before it arrives.
// arriving is closed once it is held, and the caller closes goOn.
func heldMove(t *testing.T, replicas int) (r *rig, arriving, goOn chan struct{}) {
	t.Helper()
	arriving, goOn = make(chan struct{}), make(chan struct{})
	var once sync.Once
	r = newMoveRig(t, replicas, 2, func(f *record.Flow, at flow.Point) error {
		if f.Kind == "sandbox.move" && f.Step == "arrive" && at == flow.BeforeAct {
			once.Do(func() { close(arriving); <-goOn })
		}
		return nil
	})
	return r, arriving, goOn
}

func (r *rig) evacuate(h *fakehost.Host) {
	r.t.Helper()
	testcluster.Await(r.t, "a leader that evacuates", func() bool {
		_, err := r.LeaderNode().Replicas.EvacuateAgent(r.t.Context(), h.ID, api.EvacuateAgent{})
		return err == nil
	})
}

// evacuated waits for the end of an evacuation.
func (r *rig) evacuated(h *fakehost.Host) api.AgentEvacuation {
	r.t.Helper()
	var out api.AgentEvacuation
	testcluster.Await(r.t, "the end of the evacuation", func() bool {
		a, err := r.LeaderNode().Replicas.Agent(r.t.Context(), h.ID)
		if err == nil && a.Evacuation != nil {
			out = *a.Evacuation
		}
		return err == nil && out.Done
	})
	return out
}

// moved checks that a database is on another host as the same database: with the same
// sandbox and archive, and without a restore.
func (r *rig) moved(before api.Database, was *record.Sandbox, from *fakehost.Host) {
	r.t.Helper()
	box, now := r.box(before.ID)
	spec, told := now.DatabaseSpec(box.ID)
	row := r.row(before.ID)
	if now == from || box.ID != was.ID || box.Generation <= was.Generation || !box.Exclusive || !told || spec.Restore != nil || len(row.Archives) != 1 || spec.Archive.Name != row.Archive().Name {
		r.t.Errorf("%+v is told %t, %+v; archives %+v", box, told, spec, row.Archives)
	}
	if r.archives.Info(row.Archive().Name).Fenced {
		r.t.Error("its archive is fenced")
	}
}

// A database leaves a host that is being evacuated, whether or not it runs, and whether
// or not it has archived anything yet.
func TestADatabaseMovesToAnotherHost(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, 2, nil)
	d := r.running()
	was, from := r.box(d.ID)
	r.evacuate(from)
	if got := r.evacuated(from); got.Moved != 1 || got.Staying != 0 {
		t.Fatalf("%+v", got)
	}
	again := r.becomes(d.ID, api.DatabaseRunning)
	if again.Password != d.Password || again.Host != d.Host || again.Error != "" {
		t.Errorf("%+v", again)
	}
	r.moved(d, was, from)
	r.settled(1)

	// Move it back, this time asleep.
	if _, err := r.LeaderNode().Replicas.UndrainAgent(t.Context(), from.ID); err != nil {
		t.Fatal(err)
	}
	was, now := r.box(d.ID)
	now.ChangeDatabase(was.ID, func(s *hostapi.DatabaseState) { s.IdleSince = time.Now().Add(-time.Hour) })
	r.becomes(d.ID, api.DatabaseHibernated)
	r.evacuate(now)
	if got := r.evacuated(now); got.Moved != 1 || got.Staying != 0 {
		t.Fatalf("%+v", got)
	}
	r.moved(d, was, now)
	if got, _ := r.get(d.ID); got.Status != api.DatabaseHibernated {
		t.Errorf("%+v", got)
	}
	r.settled(1)
}

// A client that connects during the move waits, and is served on the other host.
func TestAClientWaitsWhileItsDatabaseMoves(t *testing.T) {
	t.Parallel()
	r, arriving, goOn := heldMove(t, 1)
	d := r.running()
	was, from := r.box(d.ID)
	r.evacuate(from)
	<-arriving
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.databases().WakeForClient(ctx, d.ID); err == nil {
		t.Error("it was woken where it leaves")
	}
	woken := make(chan error, 1)
	go func() { woken <- r.databases().WakeForClient(t.Context(), d.ID) }()
	close(goOn)
	if err := <-woken; err != nil {
		t.Error(err)
	}
	r.evacuated(from)
	r.moved(d, was, from)
	r.settled(1)
}

// A database stays on its host while a clone copies its disk there.
func TestADatabaseThatIsCopiedStaysUntilThen(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	was, from := r.box(d.ID)
	for _, h := range r.hosts {
		h.SlowDatabases(true)
	}
	clone, err := r.databases().Clone(t.Context(), caller, d.ID, api.CloneDatabase{}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	var copied *record.Sandbox
	testcluster.Await(t, "the copy", func() bool {
		copied, _ = r.Sandbox(r.row(clone.ID).SandboxID)
		return copied != nil && copied.Status == record.SandboxRunning
	})
	r.evacuate(from)
	testcluster.Await(t, "an evacuation that waits", func() bool {
		a, err := r.LeaderNode().Replicas.Agent(t.Context(), from.ID)
		return err == nil && a.Evacuation != nil && a.Evacuation.Waiting == 2 && a.Evacuation.Moving == 0
	})
	if now, _ := r.box(d.ID); now.HostID != was.HostID || now.Move != nil {
		t.Errorf("it moves: %+v", now)
	}
	for _, h := range r.hosts {
		h.SlowDatabases(false)
	}
	from.ChangeDatabase(copied.ID, func(s *hostapi.DatabaseState) { s.Ready = true })
	r.becomes(clone.ID, api.DatabaseRunning)
	if got := r.evacuated(from); got.Moved != 2 || got.Staying != 0 {
		t.Fatalf("%+v", got)
	}
	r.settled(2)
}

// If the other hosts have no archives, the database stays where it is, unchanged.
func TestADatabaseThatNoHostTakesStays(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, 2, nil)
	d := r.running()
	was, from := r.box(d.ID)
	for _, h := range r.hosts {
		if h != from {
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "database.put" {
					return &hostapi.Error{Code: hostapi.CodeNoStore, Message: "no archive store"}
				}
				return nil
			})
		}
	}
	r.evacuate(from)
	got := r.evacuated(from)
	if got.Staying != 1 || len(got.Stays) != 1 || got.Stays[0].Reason != "no host takes it: no archive store" {
		t.Fatalf("%+v", got)
	}
	again := r.becomes(d.ID, api.DatabaseRunning)
	if now, h := r.box(d.ID); h != from || now.Generation != was.Generation || again.Error != "" {
		t.Errorf("%+v %+v", now, again)
	}
	r.settled(1)
}

// Whatever fails while a database arrives, and however often, it ends up on one host with
// its archive.
func TestADatabasesArrivalCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, pt := range points {
		t.Run(string(pt), func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			r := newMoveRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
				if f.Kind == "sandbox.move" && f.Step == "arrive" && at == pt && n.Add(1) <= 2 {
					return errors.New("crash")
				}
				return nil
			})
			d := r.running()
			was, from := r.box(d.ID)
			r.evacuate(from)
			testcluster.Await(t, "the other host", func() bool {
				s, ok := r.Sandbox(was.ID)
				return ok && s.HostID != from.ID && s.Move == nil
			})
			r.becomes(d.ID, api.DatabaseRunning)
			r.moved(d, was, from)
			testcluster.Await(t, "the step", func() bool { return n.Load() > 0 }) // after the commit, which shows first
			r.settled(1)
		})
	}
}

// The host that a database leaves may be lost once everything is in the snapshot store.
// The database goes on without a failover, and the box that returns with the lost host
// never runs.
func TestADatabaseMovesThoughItsHostIsLost(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r, arriving, goOn := heldMove(t, 3)
	d := r.running()
	was, from := r.box(d.ID)
	r.evacuate(from)
	<-arriving
	from.Silence(true)
	failed := r.becomes(d.ID, api.DatabaseFailed)
	if *failed.FailoverAvailable || !strings.Contains(failed.FailoverReason, "arrives there with everything") {
		t.Errorf("a failover, which would lose data, is offered: %+v", failed)
	}
	if _, err := r.failOver(d.ID, false); apierror.CodeOf(err) != apierror.EConflict {
		t.Errorf("failover: %v", err)
	}
	close(goOn)
	r.becomes(d.ID, api.DatabaseRunning)
	r.moved(d, was, from)
	from.Silence(false)
	r.settled(1)
}

// A clone of the latest of a database that moves has what was committed before the move,
// though it is on the disk alone that moves.
func TestACloneWaitsForItsSourceToArrive(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r, arriving, goOn := heldMove(t, 3)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	_, from := r.box(d.ID)
	r.evacuate(from)
	<-arriving
	before := time.Now()
	clone, err := r.databases().Clone(t.Context(), caller, d.ID, api.CloneDatabase{}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	close(goOn)
	r.becomes(clone.ID, api.DatabaseRunning)
	if at := r.archives.Info(r.row(d.ID).Archive().Name).LastRestorable; at.Before(before) {
		t.Errorf("the clone was made of what was archived by %s, before the move", at)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	r.settled(2)
}

// One that never sleeps wakes, whatever put it to sleep.
func TestADatabaseThatNeverSleepsIsWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	d := r.becomes(r.create(api.CreateDatabase{AlwaysOn: true}).ID, api.DatabaseRunning)
	box, h := r.box(d.ID)
	h.Become(box.ID, hostapi.StatusHibernated)
	testcluster.Await(t, "a wake", func() bool { return h.Transitions("wake") > 0 })
	r.becomes(d.ID, api.DatabaseRunning)
}

// A host that could not resume what it had paused says that it is paused. No client has to
// come for one that never sleeps, also beyond a ceiling of the month, as it did not sleep.
func TestADatabaseThatNeverSleepsIsResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	d := r.becomes(r.create(api.CreateDatabase{AlwaysOn: true}).ID, api.DatabaseRunning)
	box, h := r.box(d.ID)
	r.quotas(record.Quotas{BudgetCents: new(0)})
	h.Become(box.ID, hostapi.StatusPaused)
	testcluster.Await(t, "a resume", func() bool { return h.Transitions("resume") > 0 })
	r.becomes(d.ID, api.DatabaseRunning)
}

// A rebalancing moves databases that sleep, and leaves those alone that run.
func TestASleepingDatabaseIsRebalanced(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, 2, nil)
	n := r.LeaderNode().Replicas
	drain := func(h *fakehost.Host, do func(context.Context, string) (api.Agent, error)) {
		if _, err := do(t.Context(), h.ID); err != nil {
			t.Fatal(err)
		}
	}
	drain(r.hosts[1], n.DrainAgent) // both are made on the first host
	sleeps, runs := r.running(), r.running()
	was, from := r.box(sleeps.ID)
	from.ChangeDatabase(was.ID, func(s *hostapi.DatabaseState) { s.IdleSince = time.Now().Add(-time.Hour) })
	r.becomes(sleeps.ID, api.DatabaseHibernated)
	was, _ = r.box(sleeps.ID)
	drain(r.hosts[1], n.UndrainAgent)
	would, err := n.Rebalance(t.Context(), api.Rebalance{DryRun: true})
	if err != nil || would.Planned != 1 || would.Moves[0].Kind != "database" || would.Moves[0].ID != sleeps.ID {
		t.Fatalf("%+v, %v", would, err)
	}
	if _, err := n.Rebalance(t.Context(), api.Rebalance{}); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the end of the rebalancing", func() bool {
		got, err := n.Rebalancing(t.Context())
		return err == nil && got.Done && got.Moved == 1 && got.Failed == 0
	})
	r.moved(sleeps, was, from)
	if _, h := r.box(runs.ID); h != from {
		t.Error("the one that runs has moved")
	}
	if err := r.databases().WakeForClient(t.Context(), sleeps.ID); err != nil {
		t.Error(err)
	}
	r.becomes(sleeps.ID, api.DatabaseRunning)
	r.settled(2)
}
