package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	id := make([]byte, 26)
	for i := range id {
		id[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(id)
}

// create begins a create on the leader, like the use case.
func create(p *testplane.Plane, n *testplane.Node, id string) (flowID string, err error) {
	s := &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: record.SandboxStarting, Template: "base"}
	env, err := n.Sandboxes.Flows.NewEnv(map[string]string{"A": "1"})
	if err != nil {
		return "", err
	}
	s.EnvRef = env.Ref
	if err := n.Sandboxes.Flows.Place(n.Store.View(), s); err != nil {
		return "", err
	}
	flowID = flow.NewID()
	err = n.Store.Update(context.Background(), func(tx *raftstore.Tx) error {
		if err := env.Put(tx, s.WorkspaceID, 1); err != nil {
			return err
		}
		return n.Sandboxes.Flows.Begin(tx, flowID, s, sandbox.Create{Data: resource.Data{RequestID: "req"}})
	})
	return flowID, err
}

// mustCreate begins a create and waits for its end.
func mustCreate(t *testing.T, p *testplane.Plane, id string) error {
	t.Helper()
	n := p.LeaderNode()
	flowID, err := create(p, n, id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return n.Engine.Wait(ctx, flowID, nil)
}

func remove(t *testing.T, p *testplane.Plane, id string) {
	t.Helper()
	p.Update(func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if !ok {
			return nil
		}
		_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, "req")
		return err
	})
}

func TestCreateAndDelete(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	id := newID()
	flowID, err := create(p, p.LeaderNode(), id)
	if err != nil {
		t.Fatal(err)
	}
	var made sandbox.Created
	if err := p.LeaderNode().Engine.Wait(t.Context(), flowID, &made); err != nil {
		t.Fatal(err)
	}
	s, ok := p.Sandbox(id)
	if !ok || s.Status != record.SandboxRunning || s.HostID != "h1" || s.Generation != 1 || s.MemoryMB != 512 || s.StartedAt.IsZero() {
		t.Fatalf("%+v", s)
	}
	if len(made.Stages) == 0 || made.Answered.Before(made.Dispatched) {
		t.Fatalf("%+v", made)
	}
	remove(t, p, id)
	if rows := p.Settled(h); len(rows) != 0 {
		t.Fatalf("rows left: %d", len(rows))
	}
}

// refuseOnce returns a fault that fails the first call of an operation.
func refuseOnce(op string, done bool, err error) func(context.Context, fakehost.Call) error {
	var n atomic.Int64
	return func(_ context.Context, c fakehost.Call) error {
		if c.Op == op && c.Done == done && n.Add(1) == 1 {
			return err
		}
		return nil
	}
}

// One host fails a create in every possible way; the other one takes it.
func TestAnotherHostIsTried(t *testing.T) {
	tier.Slow(t)
	for name, fault := range map[string]func(context.Context, fakehost.Call) error{
		"out of memory":             refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}),
		"draining":                  refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeDraining, Message: "going down"}),
		"template missing":          refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeTemplateMissing, Message: "none"}),
		"guest does not answer":     refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeGuest, Message: "mute"}),
		"fails inside":              refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}),
		"a younger box":             refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeStaleGeneration, Message: "stale"}),
		"dies before the create":    refuseOnce("put", false, fakehost.ErrDrop),
		"dies after the create":     refuseOnce("put", true, fakehost.ErrDrop),
		"answer that is not a code": refuseOnce("put", false, &hostapi.Error{Code: "surprise", Message: "?"}),
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			first := p.Host("h1", 8192) // more room: it is chosen first
			second := p.Host("h2", 2048)
			first.SetFault(fault)
			id := newID()
			if err := mustCreate(t, p, id); err != nil {
				t.Fatal(err)
			}
			s, _ := p.Sandbox(id)
			if s.Status != record.SandboxRunning || s.HostID != "h2" || s.Generation != 2 {
				t.Fatalf("%+v", s)
			}
			p.Settled(first, second) // and nothing is left on the first
		})
	}
}

func TestNoHostIsLeft(t *testing.T) {
	tier.Slow(t)
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"all full", &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}, core.ErrNoHost},
		{"all unreachable", fakehost.ErrDrop, core.ErrUnreachable},
		{"all fail", &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}, sandbox.ErrNotStarted},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			hosts := []*fakehost.Host{p.Host("h1", 4096), p.Host("h2", 4096)}
			for _, h := range hosts {
				h.SetFault(func(_ context.Context, call fakehost.Call) error {
					if call.Op == "put" && !call.Done {
						return c.err
					}
					return nil
				})
			}
			if err := mustCreate(t, p, newID()); !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if rows := p.Settled(hosts...); len(rows) != 0 {
				t.Fatalf("%d rows left", len(rows))
			}
		})
	}
}

// A template that no host has when the flow looks for a host, as after the change of leaders,
// is told as in the first check.
func TestATemplateThatIsUnknownLaterIsGuessed(t *testing.T) {
	r := testplane.NewRig(t, 1)
	flowID := flow.NewID()
	s := &record.Sandbox{Meta: record.Meta{ID: newID()}, WorkspaceID: "ws", Status: record.SandboxStarting, Template: "bsae"}
	r.Update(func(tx *raftstore.Tx) error {
		return r.Flows.Begin(tx, flowID, s, sandbox.Create{Data: resource.Data{RequestID: "req"}})
	})
	e := testplane.Want(t, r.Node.Engine.Wait(t.Context(), flowID, nil), apierror.EInvalid, "unknown template")
	if e.Detail != `no template "bsae"; did you mean "base"?; available: base` {
		t.Error(e.Detail)
	}
}

func TestMemoryIsReservedBeforeItIsUsed(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4*(512+32)+100) // room for four
	block := make(chan struct{})
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			select {
			case <-block:
			case <-ctx.Done():
			}
		}
		return nil
	})
	n := p.LeaderNode()
	var flows []string
	for range 4 {
		id, err := create(p, n, newID())
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, id)
	}
	if _, err := create(p, n, newID()); err == nil {
		t.Fatal("a fifth sandbox was placed while four are on their way")
	}
	close(block)
	for _, id := range flows {
		if err := n.Engine.Wait(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.Settled(h)
}

var points = []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit}

// A crash at every point of every step, where the first host refuses so that every
// step is reached: the sandbox runs once, and on one host.
func TestCreateCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, kind := range []string{sandbox.Resource.CreateKind(), sandbox.Resource.DeleteKind()} {
		steps := []string{"start", "place"}
		if kind == sandbox.Resource.DeleteKind() {
			steps = []string{"remove"}
		}
		for _, step := range steps {
			for _, at := range points {
				t.Run(fmt.Sprint(kind, " ", step, " ", at), func(t *testing.T) {
					t.Parallel()
					var n atomic.Int64
					p := testplane.New(t, 1, func(f *record.Flow, pt flow.Point) error {
						if f.Kind == kind && f.Step == step && pt == at && n.Add(1) <= 2 {
							return errors.New("crash")
						}
						return nil
					})
					h1, h2 := p.Host("h1", 8192), p.Host("h2", 2048)
					h1.SetFault(refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}))
					id := newID()
					if err := mustCreate(t, p, id); err != nil {
						t.Fatal(err)
					}
					if n := h1.Made(id) + h2.Made(id); n != 1 {
						t.Fatalf("%d boxes were made", n)
					}
					p.Settled(h1, h2)
					remove(t, p, id)
					if rows := p.Settled(h1, h2); len(rows) != 0 {
						t.Fatal("rows left")
					}
					// The last point of the last step comes after the row's end.
					testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				})
			}
		}
	}
}

// The leader is cut off at every point of every step: the sandbox ends up running or
// is removed.
func TestLeaderDiesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, kind := range []string{sandbox.Resource.CreateKind(), sandbox.Resource.DeleteKind()} {
		steps := []string{"start", "place"}
		if kind == sandbox.Resource.DeleteKind() {
			steps = []string{"remove"}
		}
		for _, step := range steps {
			for _, at := range points {
				t.Run(fmt.Sprint(kind, " ", step, " ", at), func(t *testing.T) {
					t.Parallel()
					var once sync.Once
					var p *testplane.Plane
					var old atomic.Pointer[testcluster.Replica]
					p = testplane.New(t, 3, func(f *record.Flow, pt flow.Point) error {
						if f.Kind == kind && f.Step == step && pt == at {
							once.Do(func() {
								l := p.Leader()
								old.Store(l)
								p.Cut(l)
							})
						}
						return nil
					})
					h1, h2 := p.Host("h1", 8192), p.Host("h2", 2048)
					h1.SetFault(refuseOnce("put", false, &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}))
					id := newID()
					flowID, err := create(p, p.LeaderNode(), id)
					if err != nil {
						t.Fatal(err)
					}
					if kind == sandbox.Resource.DeleteKind() {
						testcluster.Await(t, "a running sandbox", func() bool {
							s, ok := p.Sandbox(id)
							return ok && s.Status == record.SandboxRunning
						})
						remove(t, p, id)
					}
					testcluster.Await(t, "the leader's end", func() bool { return old.Load() != nil })
					rows := p.Settled(h1, h2)
					if kind == sandbox.Resource.CreateKind() && (len(rows) != 1 || rows[0].Status != record.SandboxRunning) {
						t.Fatalf("flow %s ended with %d rows", flowID, len(rows))
					}
					if kind == sandbox.Resource.DeleteKind() && len(rows) != 0 {
						t.Fatal("rows left")
					}
					p.Heal(old.Load())
				})
			}
		}
	}
}

func TestDeletePreemptsACreate(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	arrived := make(chan struct{})
	var once sync.Once
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(arrived) })
			<-ctx.Done() // hangs until the caller goes
			return fakehost.ErrDrop
		}
		return nil
	})
	n := p.LeaderNode()
	id := newID()
	flowID, err := create(p, n, id)
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	remove(t, p, id)
	if err := n.Engine.Wait(t.Context(), flowID, nil); !errors.Is(err, flow.ErrPreempted) {
		t.Fatalf("preempted create: %v", err)
	}
	if rows := p.Settled(h); len(rows) != 0 {
		t.Fatal("rows left")
	}
	// A late call of the create is refused.
	client, err := n.Hosts.Client("h1")
	if err != nil {
		t.Fatal(err)
	}
	h.SetFault(nil)
	if _, err := client.PutBox(t.Context(), id, hostapi.BoxSpec{Generation: 1, Template: "base"}); !hostapi.HasCode(err, hostapi.CodeStaleGeneration) {
		t.Fatalf("late create: %v", err)
	}
}

func TestDeleteOnALostHost(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	id := newID()
	if err := mustCreate(t, p, id); err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	down.Store(true)
	h.SetFault(func(context.Context, fakehost.Call) error {
		if down.Load() {
			return fakehost.ErrDrop
		}
		return nil
	})
	h.Silence(true)
	remove(t, p, id)
	testcluster.Await(t, "the row's end", func() bool { _, ok := p.Sandbox(id); return !ok })
	if len(h.Boxes()) != 1 {
		t.Fatal("the box should still be there")
	}
	down.Store(false)
	h.Silence(false) // it comes back, with the box
	p.Settled(h)
}

func TestANewLeaderWaitsForItsHosts(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 3, nil)
	h := p.Host("h1", 4096)
	h.Silence(true)
	old := p.Leader()
	p.Cut(old)
	defer p.Heal(old)
	// The new leader has heard no host. A create must wait, not fail.
	done := make(chan error, 1)
	id := newID()
	var n *testplane.Node
	testcluster.Await(t, "a new leadership", func() bool {
		n = p.LeaderNode()
		return n.Hosts.Warming(n.Store.View())
	})
	flowID, err := create(p, n, id)
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := p.Sandbox(id); s.HostID != "" {
		t.Fatalf("placed on %s, which has not been heard", s.HostID)
	}
	go func() { done <- n.Engine.Wait(context.Background(), flowID, nil) }()
	h.Silence(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.Settled(h)
}

// Simultaneous creates and deletes, with hosts that fail at random and leaders that
// change: in the end rows and boxes agree.
func TestStorm(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 3, nil)
	var hosts []*fakehost.Host
	for i := range 3 {
		h := p.Host(fmt.Sprintf("h%d", i), 8192)
		h.SetFault(func(_ context.Context, c fakehost.Call) error {
			switch rand.IntN(12) {
			case 0:
				return fakehost.ErrDrop
			case 1:
				if !c.Done {
					return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}
				}
			}
			return nil
		})
		hosts = append(hosts, h)
	}
	var ids, kept []string // kept are those that ran and that nobody has deleted
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for range 6 {
				id := newID()
				n := p.LeaderNode()
				flowID, err := create(p, n, id)
				if err != nil {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				err = n.Engine.Wait(ctx, flowID, nil)
				cancel()
				mu.Lock()
				ids = append(ids, id)
				if w%2 != 0 && err == nil {
					kept = append(kept, id)
				}
				mu.Unlock()
				if w%2 == 0 {
					remove(t, p, id)
				}
			}
		})
	}
	for range 2 {
		l := p.Leader()
		testcluster.Await(t, "some creates", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(ids) >= 4
		})
		p.Cut(l)
		testcluster.Await(t, "another leader", func() bool { return p.Leader() != l })
		p.Heal(l)
	}
	wg.Wait()
	for _, h := range hosts {
		h.SetFault(nil)
	}
	rows := p.Settled(hosts...)
	for _, s := range rows {
		if !slices.Contains([]record.SandboxStatus{record.SandboxRunning, record.SandboxFailed}, s.Status) {
			t.Errorf("sandbox is %s", s.Status)
		}
	}
	for _, id := range kept {
		if !slices.ContainsFunc(rows, func(s *record.Sandbox) bool { return s.ID == id }) {
			t.Errorf("sandbox %s ran, and is gone", id)
		}
	}
}
