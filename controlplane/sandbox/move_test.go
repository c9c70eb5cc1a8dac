package sandbox_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// moveRig is a plane with a host h1 that is to be emptied and a larger one, h2, which
// share a snapshot store.
type moveRig struct {
	*testplane.Plane
	t     *testing.T
	h1    *fakehost.Host
	store *fakehost.Store
}

func newMoveRig(t *testing.T, replicas int, fault func(f *record.Flow, at flow.Point) error) *moveRig {
	t.Helper()
	p := testplane.New(t, replicas, fault)
	r := &moveRig{Plane: p, t: t, h1: p.Host("h1", 4<<10), store: fakehost.NewStore()}
	r.h1.SetStore(r.store)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		return nil
	})
	testcluster.Await(t, "the store", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	return r
}

// target starts the other host, once the sandboxes are on the first.
func (r *moveRig) target(id string, memoryMB int) *fakehost.Host {
	h := r.Host(id, memoryMB)
	h.SetStore(r.store)
	testcluster.Await(r.t, "the stores", func() bool {
		s := r.LeaderNode().Hosts.Sessions()
		return s["h1"].Heartbeat.Store && s[id].Heartbeat.Store
	})
	return h
}

// running places a sandbox that runs on h1.
func (r *moveRig) running(id string) string {
	r.t.Helper()
	id = (id + "aaaaaaaaaaaaaaaaaaaaaaaaaa")[:hostapi.IDLength]
	r.Place(r.h1, &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Generation: 1, HostSeq: 1, CPU: 1, MemoryMB: 512, DiskMB: 2048})
	return id
}

func (r *moveRig) evacuate() {
	r.t.Helper()
	if _, err := r.LeaderNode().Replicas.EvacuateAgent(r.t.Context(), "h1", api.EvacuateAgent{AtOnce: new(2)}); err != nil {
		r.t.Fatal(err)
	}
}

// evacuated waits for the end of the evacuation.
func (r *moveRig) evacuated() api.AgentEvacuation {
	r.t.Helper()
	var out api.AgentEvacuation
	testcluster.Await(r.t, "the end of the evacuation", func() bool {
		a, err := r.LeaderNode().Replicas.Agent(r.t.Context(), "h1")
		if err == nil && a.Evacuation != nil {
			out = *a.Evacuation
		}
		return err == nil && out.Done
	})
	return out
}

// on waits until a sandbox has a status on a host, and nothing is under way.
func (r *moveRig) on(id string, h *fakehost.Host, status record.SandboxStatus) *record.Sandbox {
	r.t.Helper()
	var row *record.Sandbox
	testcluster.Await(r.t, string(status)+" on "+h.ID, func() bool {
		view := r.Leader().Store.View()
		row, _ = raftstore.Get(view, record.Sandboxes, id)
		_, live := flow.Live(view, flow.Subject(record.Sandboxes.Name, id))
		return row != nil && row.HostID == h.ID && row.Status == status && row.Move == nil && !live
	})
	return row
}

// alone checks that a host alone has a box of the sandbox, and the store nothing.
func (r *moveRig) alone(id string, h *fakehost.Host, others ...*fakehost.Host) {
	r.t.Helper()
	testcluster.Await(r.t, "one box", func() bool {
		_, there := h.Boxes()[id]
		for _, o := range others {
			if _, double := o.Boxes()[id]; double || len(o.Captures()) > 0 {
				return false
			}
		}
		return there && len(h.Captures()) == 0 && len(r.store.Captures()) == 0
	})
}

func (r *moveRig) caller() *testplane.Node { return r.LeaderNode() }

func TestAHostIsEvacuated(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	runs, sleeps, paused, attached := r.running("r"), r.running("s"), r.running("p"), r.running("v")
	n := r.caller()
	if _, err := n.Sandboxes.Hibernate(t.Context(), testplane.Caller, sleeps); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Sandboxes.Pause(t.Context(), testplane.Caller, paused); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, attached)
		s = s.Clone()
		s.Volumes = []record.VolumeMount{{Name: "data", MountPath: "/data"}}
		raftstore.Put(tx, record.Sandboxes, s)
		return nil
	})
	h2 := r.target("h2", 16<<10)
	r.evacuate()
	got := r.evacuated()
	if got.Moved != 2 || got.Staying != 2 || len(got.Stays) != 2 {
		t.Fatalf("evacuation: %+v", got)
	}
	why := map[string]string{}
	for _, s := range got.Stays {
		why[s.ID] = s.Reason
	}
	if why[hostapi.ShortID(paused)] != "it is paused: resume or hibernate it" ||
		why[hostapi.ShortID(attached)] != "the volume data is attached, and volumes stay on their host" {
		t.Errorf("reasons: %v", why)
	}
	if row := r.on(runs, h2, record.SandboxRunning); row.Generation != 2 {
		t.Errorf("generation %d", row.Generation)
	}
	r.on(sleeps, h2, record.SandboxHibernated)
	r.alone(runs, h2, r.h1)
	r.alone(sleeps, h2, r.h1)
	if n := r.h1.Transitions("wake"); n != 0 {
		t.Errorf("%d wakes on the host that was left", n)
	}
	// Once it can, what stayed is moved too.
	if _, err := n.Sandboxes.Resume(t.Context(), testplane.Caller, paused); err != nil {
		t.Fatal(err)
	}
	r.on(paused, h2, record.SandboxRunning)
}

// What ran goes on where it arrives, although the month's budget is spent, which would keep
// what slept from waking.
func TestAMoveBeyondTheMonthsBudget(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("b")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{BudgetCents: new(0)}})
		return nil
	})
	h2 := r.target("h2", 16<<10)
	r.evacuate()
	r.on(id, h2, record.SandboxRunning)
}

func TestAMoveSurvivesACrashAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for _, step := range []string{"sleep", "leave", "choose", "arrive", "settle"} {
		for _, point := range []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit} {
			t.Run(step+" "+string(point), func(t *testing.T) {
				t.Parallel()
				var crashed atomic.Bool
				r := newMoveRig(t, 1, func(f *record.Flow, at flow.Point) error {
					if f.Kind == "sandbox.move" && f.Step == step && at == point && crashed.CompareAndSwap(false, true) {
						return context.DeadlineExceeded
					}
					return nil
				})
				id := r.running("c")
				h2 := r.target("h2", 16<<10)
				r.evacuate()
				r.on(id, h2, record.SandboxRunning)
				r.alone(id, h2, r.h1)
				testcluster.Await(t, "the crash", crashed.Load) // after the commit that is seen
				if h2.Made(id) != 1 || r.h1.Transitions("wake") != 0 || r.h1.Transitions("hibernate") != 1 || h2.Transitions("wake") != 1 {
					t.Errorf("made %d times, woken %d times before and %d after", h2.Made(id), r.h1.Transitions("wake"), h2.Transitions("wake"))
				}
			})
		}
	}
}

func TestTheNextLeaderGoesOnWithAMove(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for _, op := range []string{"hibernate", "patch", "store", "put", "wake"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			r := newMoveRig(t, 3, nil)
			id := r.running("l")
			h2 := r.target("h2", 16<<10)
			var once sync.Once
			cut := make(chan struct{})
			fault := func(ctx context.Context, c fakehost.Call) error {
				if c.Op == op && c.ID != "" && c.Done {
					once.Do(func() { close(cut); <-ctx.Done() }) // the answer comes to nobody
				}
				return nil
			}
			r.h1.SetFault(fault)
			h2.SetFault(fault)
			r.evacuate()
			<-cut
			old := r.Leader()
			r.Cut(old)
			defer r.Heal(old)
			r.on(id, h2, record.SandboxRunning)
			r.alone(id, h2, r.h1)
			if n := h2.Made(id); n != 1 {
				t.Errorf("made %d times", n)
			}
		})
	}
}

func TestAnotherHostTakesWhatTheTargetDoesNot(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("t")
	h2 := r.target("h2", 16<<10)
	h3 := r.target("h3", 8<<10)
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && c.Done { // it dies with the box made
			h2.Silence(true)
			return fakehost.ErrDrop
		}
		if c.Op == "put" || c.Op == "delete" {
			return fakehost.ErrDrop
		}
		return nil
	})
	r.evacuate()
	row := r.on(id, h3, record.SandboxRunning)
	h2.SetFault(nil)
	h2.Silence(false)
	r.alone(id, h3, r.h1, h2)
	if row.Generation != 3 {
		t.Errorf("generation %d, want a higher one than the box of h2", row.Generation)
	}
}

func TestTheHostDiesThatIsLeft(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		op   string
		done bool
	}{{"hibernate", true}, {"store", false}, {"store", true}} {
		t.Run(c.op, func(t *testing.T) {
			t.Parallel()
			r := newMoveRig(t, 1, nil)
			id := r.running("d")
			h2 := r.target("h2", 16<<10)
			var dead atomic.Bool
			r.h1.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == c.op && call.Done == c.done {
					dead.Store(true)
					r.h1.Silence(true)
				}
				if dead.Load() {
					return fakehost.ErrDrop
				}
				return nil
			})
			r.evacuate()
			testcluster.Await(t, "the host to be lost", func() bool {
				h, ok := raftstore.Get(r.Leader().Store.View(), record.Hosts, "h1")
				return ok && h.State == record.HostLost
			})
			dead.Store(false)
			r.h1.SetFault(nil)
			r.h1.Silence(false)
			// It stays or moves, as far as it has come, and there is one of it.
			testcluster.Await(t, "a sandbox that runs", func() bool {
				row, ok := r.Sandbox(id)
				return ok && row.Status == record.SandboxRunning && row.Move == nil
			})
			row, _ := r.Sandbox(id)
			if row.HostID == "h2" {
				r.alone(id, h2, r.h1)
			} else {
				r.alone(id, r.h1, h2)
			}
		})
	}
}

// A host that dies once everything is in the store is not needed any more.
func TestAMoveEndsWithoutTheHostThatIsLeft(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("w")
	h2 := r.target("h2", 16<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(reached); <-proceed })
		}
		return nil
	})
	r.evacuate()
	<-reached
	r.h1.SetFault(func(context.Context, fakehost.Call) error { return fakehost.ErrDrop })
	r.h1.Silence(true)
	close(proceed)
	r.on(id, h2, record.SandboxRunning)
	r.h1.SetFault(nil)
	r.h1.Silence(false)
	r.alone(id, h2, r.h1)
}

// Nor is one that loses the sandbox meanwhile: what is in the store is all that it was.
func TestAMoveSavesWhatTheHostThatIsLeftLoses(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("l")
	h2 := r.target("h2", 16<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(reached); <-proceed })
		}
		return nil
	})
	r.evacuate()
	<-reached
	r.h1.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) { delete(boxes, id) })
	testcluster.Await(t, "a sandbox that has failed", func() bool {
		row, ok := r.Sandbox(id)
		return ok && row.Status == record.SandboxFailed && !row.Unreachable
	})
	close(proceed)
	r.on(id, h2, record.SandboxRunning)
	r.alone(id, h2, r.h1)
}

// held is a rig whose h1 stores nothing until it is released.
func held(t *testing.T) (r *moveRig, h2 *fakehost.Host, id string, release func()) {
	t.Helper()
	r = newMoveRig(t, 1, nil)
	id = r.running("h")
	h2 = r.target("h2", 16<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.h1.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "store" && !c.Done {
			once.Do(func() {
				close(reached)
				select {
				case <-proceed:
				case <-ctx.Done():
				}
			})
		}
		return nil
	})
	r.evacuate()
	<-reached
	return r, h2, id, sync.OnceFunc(func() { close(proceed) })
}

func TestAWakeWaitsForTheMove(t *testing.T) {
	t.Parallel()
	r, h2, id, release := held(t)
	defer release()
	var woken sync.WaitGroup
	for range 3 {
		woken.Go(func() {
			sb, err := r.caller().Sandboxes.Wake(t.Context(), testplane.Caller, id)
			if err != nil || sb.Status != "running" || sb.AgentID != "h2" {
				t.Errorf("Wake = %+v, %v", sb, err)
			}
		})
	}
	r.Passes(3)
	if n := r.h1.Transitions("wake"); n != 0 {
		t.Errorf("%d wakes on the host that is left", n)
	}
	release()
	woken.Wait()
	r.on(id, h2, record.SandboxRunning)
	if n := h2.Transitions("wake"); n != 1 {
		t.Errorf("woken %d times", n)
	}
}

// What its owner has put to sleep sleeps on, although it ran when the move began.
func TestASandboxThatIsHibernatedWhileItMovesStaysAsleep(t *testing.T) {
	t.Parallel()
	t.Run("before the move does", func(t *testing.T) {
		t.Parallel()
		var once sync.Once
		begun, hibernated := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(hibernated) })
		defer release()
		r := newMoveRig(t, 1, func(f *record.Flow, at flow.Point) error {
			if f.Kind == "sandbox.move" && f.Step == "sleep" && at == flow.BeforeAct {
				once.Do(func() { close(begun); <-hibernated })
			}
			return nil
		})
		id := r.running("h")
		h2 := r.target("h2", 16<<10)
		r.evacuate()
		<-begun
		if _, err := r.caller().Sandboxes.Hibernate(t.Context(), testplane.Caller, id); err != nil {
			t.Fatal(err)
		}
		release()
		r.on(id, h2, record.SandboxHibernated)
	})
	t.Run("after", func(t *testing.T) {
		t.Parallel()
		r, h2, id, release := held(t)
		defer release()
		if _, err := r.caller().Sandboxes.Hibernate(t.Context(), testplane.Caller, id); err == nil {
			t.Fatal("it sleeps already")
		}
		release()
		r.on(id, h2, record.SandboxHibernated)
	})
}

func TestADeleteEndsAMove(t *testing.T) {
	t.Parallel()
	r, h2, id, release := held(t)
	defer release()
	if err := r.caller().Sandboxes.Delete(t.Context(), testplane.Caller, id); err != nil {
		t.Fatal(err)
	}
	release()
	testcluster.Await(t, "nothing to be left", func() bool {
		_, row := r.Sandbox(id)
		return !row && len(r.h1.Boxes())+len(h2.Boxes())+len(r.h1.Captures())+len(h2.Captures())+len(r.store.Captures()) == 0
	})
}

func TestAnEvacuationIsGivenUp(t *testing.T) {
	t.Parallel()
	r, h2, id, release := held(t)
	defer release()
	a, err := r.caller().Replicas.UndrainAgent(t.Context(), "h1")
	if err != nil || a.Draining || a.Evacuation != nil {
		t.Fatalf("undrain: %+v, %v", a, err)
	}
	release()
	r.on(id, r.h1, record.SandboxRunning)
	r.alone(id, r.h1, h2)
}

func TestAHostWithoutRoomElsewhereKeepsItsSandboxes(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("f")
	r.Host("h2", 16<<10) // which has no store
	r.evacuate()
	got := r.evacuated()
	if got.Staying != 1 || got.Stays[0].Reason != "no other host with a snapshot store has room for it" {
		t.Fatalf("evacuation: %+v", got)
	}
	r.on(id, r.h1, record.SandboxRunning)
	r.alone(id, r.h1)
	r.target("h3", 16<<10)
	r.evacuate() // again
	testcluster.Await(t, "the sandbox to move", func() bool { row, _ := r.Sandbox(id); return row.HostID == "h3" })
}

func TestEvacuationsThatAreRefused(t *testing.T) {
	t.Parallel()
	p := testplane.New(t, 1, nil)
	p.Host("h1", 4<<10)
	c := p.LeaderNode().Replicas
	_, err := c.EvacuateAgent(t.Context(), "h1", api.EvacuateAgent{})
	testplane.Want(t, err, apierror.EConflict, "agent has no snapshot store")
	_, err = c.EvacuateAgent(t.Context(), "h9", api.EvacuateAgent{})
	testplane.Want(t, err, apierror.ENotFound, "")
	for _, n := range []int{0, -1, 65} {
		_, err = c.EvacuateAgent(t.Context(), "h1", api.EvacuateAgent{AtOnce: &n})
		testplane.Want(t, err, apierror.EInvalid, "invalid at_once")
	}
	if h, _ := raftstore.Get(p.Leader().Store.View(), record.Hosts, "h1"); h.Draining {
		t.Error("a refused evacuation drains")
	}
}

// The rows of what could not be moved do not fit into one transaction.
func TestManyThatCouldNotBeMovedAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	var ids []string
	for _, letter := range "abcdefghijklmnopqrstuvwxyz234567" {
		ids = append(ids, r.running(string(letter)))
	}
	refused := func(status record.SandboxStatus) {
		t.Helper()
		for _, id := range ids {
			edit(r.Plane, id, func(s *record.Sandbox) {
				s.Status, s.MoveError = status, "no other host with a snapshot store has room for it"
				s.Metadata = []byte(`{"notes":"` + strings.Repeat("x", 16<<10-16) + `"}`)
			})
		}
	}
	forgotten := func() {
		t.Helper()
		for _, id := range ids {
			if s, _ := r.Sandbox(id); s.MoveError != "" {
				t.Errorf("%s: %s", id, s.MoveError)
			}
		}
	}
	c := r.LeaderNode().Replicas
	refused(record.SandboxHibernated)
	if _, err := c.Rebalance(t.Context(), api.Rebalance{}); err != nil {
		t.Fatal(err)
	}
	forgotten()
	refused(record.SandboxPaused) // nothing moves
	got, err := c.EvacuateAgent(t.Context(), "h1", api.EvacuateAgent{})
	if err != nil || got.Evacuation == nil || got.Evacuation.Staying != len(ids) || !strings.HasPrefix(got.Evacuation.Stays[0].Reason, "it is paused") {
		t.Fatalf("%+v, %v", got.Evacuation, err)
	}
	forgotten()
}
