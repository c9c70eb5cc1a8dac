package fork_test

import (
	"context"
	"encoding/json"
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
	"github.com/berth-cloud/berth/controlplane/fork"
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

// boxMB is the memory of a box of the fake host's template.
const boxMB = 512 + 32

// parentOn creates a running sandbox on a host.
func parentOn(p *testplane.Plane, h *fakehost.Host) *record.Sandbox {
	id, ttl := newID(), int64(3600)
	p.Place(h, &record.Sandbox{
		Meta: record.Meta{ID: id}, WorkspaceID: "ws", Generation: 3, HostSeq: 1, CPU: 1, MemoryMB: 512, DiskMB: 2048, TTLSeconds: &ttl,
	})
	s, _ := p.Sandbox(id)
	return s
}

// forked is a fork that was begun.
type forked struct {
	flowID, group string
	children      []string
}

// begin begins a fork, like the use case.
func begin(n *testplane.Node, parent *record.Sandbox, mode fork.Mode, count int) (forked, error) {
	group := "tree-" + newID()
	o := &fork.Order{FlowID: flow.NewID(), Group: group, RequestID: "req", Mode: mode, Parent: parent}
	out := forked{flowID: o.FlowID, group: group}
	env, err := n.Sandboxes.Flows.NewEnv(map[string]string{"A": "1"})
	if err != nil {
		return out, err
	}
	for i := range count {
		meta, err := fork.Metadata(mode, json.RawMessage(`{"mine":1,"fork_index":"x"}`), parent.ID, group, i)
		if err != nil {
			return out, err
		}
		c := &record.Sandbox{
			Meta: record.Meta{ID: newID()}, WorkspaceID: "ws", Status: record.SandboxStarting, Template: "base", Metadata: meta,
			CPU: 1, MemoryMB: 512, DiskMB: 2048, ForkedFrom: parent.ID, TTLSeconds: parent.TTLSeconds, EnvRef: env.Ref,
		}
		if mode == fork.Tree {
			c.ForkTree = group
		}
		o.Children = append(o.Children, c)
		out.children = append(out.children, c.ID)
	}
	if err := n.Forks.Flows.Place(n.Store.View(), o); err != nil {
		return out, err
	}
	return out, n.Store.Update(context.Background(), func(tx *raftstore.Tx) error {
		if err := env.Put(tx, "ws", count); err != nil {
			return err
		}
		return n.Forks.Flows.Begin(tx, o)
	})
}

// run begins a fork and waits for its end.
func run(t *testing.T, p *testplane.Plane, parent *record.Sandbox, mode fork.Mode, count int) (forked, fork.Result, error) {
	t.Helper()
	n := p.LeaderNode()
	f, err := begin(n, parent, mode, count)
	if err != nil {
		return f, fork.Result{}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var r fork.Result
	err = n.Engine.Wait(ctx, f.flowID, &r)
	return f, r, err
}

func statuses(p *testplane.Plane, ids []string) (out []record.SandboxStatus) {
	for _, id := range ids {
		s, ok := p.Sandbox(id)
		if !ok {
			out = append(out, "")
			continue
		}
		out = append(out, s.Status)
	}
	return out
}

func types(events []hostapi.Event) (out []hostapi.EventType) {
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

func count[T comparable](in []T, v T) (n int) {
	for _, x := range in {
		if x == v {
			n++
		}
	}
	return n
}

func TestForkTreeOfSixteen(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 20*boxMB)
	store := fakehost.NewStore()
	h.SetStore(store)
	var stored, running atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		switch {
		case c.Op == "store" && !c.Done:
			stored.Add(1)
			if running.Load() != 16 {
				t.Error("the upload began before the children ran")
			}
		case c.Op == "put" && c.Done:
			running.Add(1)
		}
		return nil
	})
	parent := parentOn(p, h)
	f, r, err := run(t, p, parent, fork.Tree, 16)
	if err != nil || len(r.Failed) != 0 || r.PauseMS != 7 || !r.Stored {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, id := range f.children {
		s, ok := p.Sandbox(id)
		if !ok || s.Status != record.SandboxRunning || s.ForkTree != f.group || s.StartedBy != "" || s.ExpiresAt.IsZero() || s.HostSeq != 1 {
			t.Fatalf("child %d: %+v", i, s)
		}
		want := fmt.Sprintf(`{"fork_index":%d,"fork_parent_id":%q,"fork_tree_id":%q,"fork_tree_role":"child","mine":1}`, i, parent.ID, f.group)
		if string(s.Metadata) != want {
			t.Errorf("child %d has metadata %s", i, s.Metadata)
		}
		if spec := h.Spec(id); spec.Capture != f.group || spec.Boot != "" || spec.Env["A"] != "1" || spec.Origin["forked_from"] != parent.ID {
			t.Errorf("child %d was asked for with %+v", i, spec)
		}
		if e := types(h.Events(id)); !slices.Equal(e, []hostapi.EventType{hostapi.EventForked}) {
			t.Errorf("child %d has events %v", i, e)
		}
		if h.Made(id) != 1 {
			t.Errorf("child %d was made %d times", i, h.Made(id))
		}
	}
	events := types(h.Events(parent.ID))
	if events[0] != hostapi.EventForkStaged || events[len(events)-1] != hostapi.EventForkTreeCompleted || count(events, hostapi.EventForkCompleted) != 16 {
		t.Errorf("the parent's events are %v", events)
	}
	if s, _ := p.Sandbox(parent.ID); s.Status != record.SandboxRunning {
		t.Errorf("the parent is %s", s.Status)
	}
	if stored.Load() != 1 || !slices.Equal(store.Captures(), []string{f.group}) || len(h.Captures()) != 0 {
		t.Errorf("stored %d times; in the store is %v, left on the host %v", stored.Load(), store.Captures(), h.Captures())
	}
	p.Settled(h)
}

// Three transactions for any number of children: one begins the fork, one commits
// the running children, one ends it.
func TestAForkWritesLittle(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 20*boxMB)
	parent := parentOn(p, h)
	before := p.Leader().Store.Status().AppliedIndex
	if _, _, err := run(t, p, parent, fork.Tree, 16); err != nil {
		t.Fatal(err)
	}
	if n := p.Leader().Store.Status().AppliedIndex - before; n > 3 {
		t.Fatalf("%d log entries", n)
	}
}

func TestColdFork(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	h.SetStore(fakehost.NewStore())
	parent := parentOn(p, h)
	f, _, err := run(t, p, parent, fork.Cold, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range f.children {
		s, _ := p.Sandbox(id)
		if s.Status != record.SandboxRunning || string(s.Metadata) != fmt.Sprintf(`{"forked_from":%q}`, parent.ID) || s.ForkTree != "" {
			t.Errorf("%+v %s", s, s.Metadata)
		}
		if spec := h.Spec(id); spec.Boot != hostapi.BootCold || spec.Capture != f.group {
			t.Errorf("%+v", spec)
		}
	}
	if e := types(h.Events(parent.ID)); count(e, hostapi.EventForkTreeCompleted) != 0 || count(e, hostapi.EventForkCompleted) != 3 {
		t.Errorf("%v", e)
	}
	p.Settled(h)
}

func TestWarmFork(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", boxMB) // room for one: the child takes the parent's
	parent := parentOn(p, h)
	f, r, err := run(t, p, parent, fork.Warm, 1)
	if err != nil || r.PauseMS != 7 {
		t.Fatalf("%+v, %v", r, err)
	}
	now, _ := p.Sandbox(parent.ID)
	if s := statuses(p, f.children); s[0] != record.SandboxRunning || now.Status != record.SandboxPaused || now.HostSeq != 2 {
		t.Fatalf("child %s, parent %+v", s[0], now)
	}
	if spec := h.Spec(f.children[0]); spec.WarmFrom != parent.ID || spec.Capture != "" {
		t.Errorf("%+v", spec)
	}
	if e := types(h.Events(parent.ID)); !slices.Equal(e, []hostapi.EventType{hostapi.EventWarmForkStaged, hostapi.EventForkCompleted}) {
		t.Errorf("%v", e)
	}
	if e := types(h.Events(f.children[0])); !slices.Equal(e, []hostapi.EventType{hostapi.EventWarmForked}) {
		t.Errorf("%v", e)
	}
	p.Settled(h)
}

// failChild refuses one child at every attempt.
func failChild(id *atomic.Value, err error) fakehost.Fault {
	return func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && c.ID == id.Load() {
			return err
		}
		return nil
	}
}

func TestAFailingChildIsReported(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	parent := parentOn(p, h)
	hold := make(chan struct{})
	var bad atomic.Value
	bad.Store("")
	fault := failChild(&bad, &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest does not answer"})
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		<-hold
		return fault(ctx, c)
	})
	n := p.LeaderNode()
	f, err := begin(n, parent, fork.Tree, 4)
	if err != nil {
		t.Fatal(err)
	}
	bad.Store(f.children[2])
	close(hold)
	var r fork.Result
	if err := n.Engine.Wait(t.Context(), f.flowID, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Failed) != 1 || r.Failed[0].Index != 2 || r.Failed[0].Error != "guest does not answer" {
		t.Fatalf("%+v", r)
	}
	if s := statuses(p, f.children); count(s, record.SandboxRunning) != 3 || s[2] != "" {
		t.Fatalf("%v", s)
	}
	if e := types(h.Events(parent.ID)); count(e, hostapi.EventForkChildFailed) != 1 || count(e, hostapi.EventForkCompleted) != 3 {
		t.Errorf("%v", e)
	}
	p.Settled(h)
}

func TestAForkWithoutAnyChild(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		op   string
		err  error
		want error
	}{
		"full":             {"put", &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}, core.ErrNoHost},
		"fails":            {"put", &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}, sandbox.ErrNotStarted},
		"unreachable":      {"put", fakehost.ErrDrop, core.ErrUnreachable},
		"no capture":       {"capture", &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "full"}, &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host storage for snapshot"}},
		"parent is paused": {"capture", &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: "paused"}, sandbox.ErrAsleep},
		"parent is gone":   {"capture", &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}, apierror.NotRunning("")},
		"host is mute":     {"capture", fakehost.ErrDrop, core.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 8*boxMB)
			parent := parentOn(p, h)
			h.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == c.op && !call.Done {
					return c.err
				}
				return nil
			})
			f, _, err := run(t, p, parent, fork.Tree, 3)
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if s := statuses(p, f.children); count(s, "") != 3 {
				t.Fatalf("%v", s)
			}
			p.Settled(h)
		})
	}
}

func TestAChildIsDeletedOnItsWay(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	parent := parentOn(p, h)
	arrived, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(arrived) })
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	n := p.LeaderNode()
	f, err := begin(n, parent, fork.Tree, 2)
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	p.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, f.children[0])
		_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, "req")
		return err
	})
	testcluster.Await(t, "the child's end", func() bool { _, ok := p.Sandbox(f.children[0]); return !ok })
	close(hold)
	if err := n.Engine.Wait(t.Context(), f.flowID, nil); err != nil {
		t.Fatal(err)
	}
	if s := statuses(p, f.children); s[0] != "" || s[1] != record.SandboxRunning {
		t.Fatalf("%v", s)
	}
	p.Settled(h)
}

func TestPastItsDeadline(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	parent := parentOn(p, h)
	child := newID()
	flowID := flow.NewID()
	p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSandbox(tx, &record.Sandbox{
			Meta: record.Meta{ID: child}, WorkspaceID: "ws", Status: record.SandboxStarting, StartedBy: fork.Subject("g"), HostID: "h1", Generation: 1,
		})
		return flow.Begin(tx, flow.New{
			ID: flowID, Kind: fork.KindFork, Subject: fork.Subject("g"), Step: "start", Deadline: tx.Now().Add(-time.Second),
			Data: fork.Fork{Mode: fork.Tree, ParentID: parent.ID, HostID: "h1", Generation: 3, Children: []fork.Child{{ID: child}}},
		})
	})
	if err := p.LeaderNode().Engine.Wait(t.Context(), flowID, nil); !errors.Is(err, sandbox.ErrNotStarted) {
		t.Fatal(err)
	}
	if rows := p.Settled(h); len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
}

// A child's event is posted when the child runs, not when the last one does, and
// what a host does not accept is posted again.
func TestEventsAreToldAsTheyHappenAndNoneIsLost(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	parent := parentOn(p, h)
	var last, bad atomic.Value
	last.Store("")
	bad.Store("")
	begun, hold := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(hold) })
	defer letGo() // the host's server waits for its calls
	var refusals atomic.Int32
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		<-begun
		switch {
		case c.Op == "put" && !c.Done && c.ID == last.Load():
			<-hold
		case c.Op == "put" && !c.Done && c.ID == bad.Load():
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "it did not boot"}
		case c.Op == "events" && !c.Done && c.ID == last.Load() && refusals.Add(1) == 1:
			return &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is starting up"}
		}
		return nil
	})
	n := p.LeaderNode()
	f, err := begin(n, parent, fork.Tree, 4)
	if err != nil {
		t.Fatal(err)
	}
	last.Store(f.children[3])
	bad.Store(f.children[1])
	close(begun)
	testcluster.Await(t, "the events of the others while one child is not there yet", func() bool {
		e := types(h.Events(parent.ID))
		return count(e, hostapi.EventForkCompleted) == 2 && count(e, hostapi.EventForkChildFailed) == 1 &&
			len(h.Events(f.children[0])) == 1 && len(h.Events(f.children[2])) == 1
	})
	letGo()
	if err := n.Engine.Wait(t.Context(), f.flowID, nil); err != nil {
		t.Fatal(err)
	}
	e := types(h.Events(parent.ID))
	if len(e) != 6 || e[0] != hostapi.EventForkStaged || e[5] != hostapi.EventForkTreeCompleted || count(e, hostapi.EventForkCompleted) != 3 {
		t.Errorf("the parent's events are %v", e)
	}
	for i, id := range f.children {
		if i == 1 {
			continue
		}
		if e := types(h.Events(id)); !slices.Equal(e, []hostapi.EventType{hostapi.EventForked}) {
			t.Errorf("a child's events are %v", e)
		}
	}
	p.Settled(h)
}

// The stored copy of a capture is deleted even if the parent's host does not answer.
func TestReleaseWithoutTheParentsHost(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, h2 := p.Host("h1", 2*boxMB), p.Host("h2", 4*boxMB)
	store := fakehost.NewStore()
	h1.SetStore(store)
	h2.SetStore(store)
	testcluster.Await(t, "the stores", func() bool { return len(p.LeaderNode().Hosts.Stores()) == 2 })
	h1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "uncapture" {
			return fakehost.ErrDrop
		}
		return nil
	})
	if _, _, err := run(t, p, parentOn(p, h1), fork.Cold, 3); err != nil {
		t.Fatal(err)
	}
	if left := store.Captures(); len(left) != 0 || len(h1.Captures()) != 1 {
		t.Errorf("left in the store %v, on the host %v", left, h1.Captures())
	}
}

// A tree whose capture could not be uploaded says so, keeps the capture on its host and
// uploads it when it can; the stored copy goes with the tree's last sandbox.
func TestTheUploadOfATreeIsRepeated(t *testing.T) {
	for _, end := range []string{"stored", "tree deleted"} {
		t.Run(end, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 8*boxMB)
			store := fakehost.NewStore()
			h.SetStore(store)
			testcluster.Await(t, "the store", func() bool { return len(p.LeaderNode().Hosts.Stores()) == 1 })
			p.LeaderNode().Forks.Flows.StorePause = 20 * time.Millisecond
			var broken atomic.Bool
			var tries atomic.Int64
			broken.Store(true)
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "store" && !c.Done && broken.Load() {
					tries.Add(1)
					return &hostapi.Error{Code: hostapi.CodeInternal, Message: "bucket is gone"}
				}
				return nil
			})
			f, r, err := run(t, p, parentOn(p, h), fork.Tree, 2)
			if err != nil || len(r.Failed) != 0 || r.Stored {
				t.Fatalf("%+v, %v", r, err)
			}
			testcluster.Await(t, "some tries", func() bool { return tries.Load() >= 4 })
			p.Passes(5) // the capture has an owner, so no loop removes it
			if !slices.Equal(h.Captures(), []string{f.group}) {
				t.Fatalf("left on the host %v", h.Captures())
			}
			var stored []string
			if end == "stored" {
				stored = []string{f.group}
				broken.Store(false)
			} else {
				p.Update(func(tx *raftstore.Tx) error {
					for _, id := range f.children {
						s, _ := raftstore.Get(tx, record.Sandboxes, id)
						if _, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, ""); err != nil {
							return err
						}
					}
					return nil
				})
			}
			p.Settled(h)
			if !slices.Equal(store.Captures(), stored) || len(h.Captures()) != 0 {
				t.Errorf("in the store is %v, left on the host %v", store.Captures(), h.Captures())
			}
		})
	}
}
