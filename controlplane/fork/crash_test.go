package fork_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

var points = []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit}

// cases are every step of every mode.
var cases = []struct {
	mode fork.Mode
	step string
}{{fork.Tree, "start"}, {fork.Tree, "spread"}, {fork.Tree, "settle"}, {fork.Cold, "start"}, {fork.Cold, "settle"}, {fork.Warm, "warm"}, {fork.Warm, "settle"}}

// twoHosts returns a full host with the parent and another that takes what the first
// refuses, so that every step is reached.
func twoHosts(t *testing.T, p *testplane.Plane, mode fork.Mode) (h1, h2 *fakehost.Host, children int) {
	t.Helper()
	store := fakehost.NewStore()
	h1, h2 = p.Host("h1", 6*boxMB), p.Host("h2", 6*boxMB)
	h1.SetStore(store)
	h2.SetStore(store)
	testcluster.Await(t, "the stores", func() bool {
		s := p.LeaderNode().Hosts.Sessions()
		return s["h1"].Heartbeat.Store && s["h2"].Heartbeat.Store
	})
	if mode == fork.Warm {
		return h1, h2, 1
	}
	var refused atomic.Bool
	h1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && refused.CompareAndSwap(false, true) {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}
		}
		return nil
	})
	return h1, h2, 3
}

// A crash at every point of every step: each child is created once, and nothing is
// left over.
func TestForkCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.mode, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				p := testplane.New(t, 1, func(f *record.Flow, pt flow.Point) error {
					if f.Kind == fork.KindFork && f.Step == c.step && pt == at && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				h1, h2, count := twoHosts(t, p, c.mode)
				parent := parentOn(p, h1)
				f, r, err := run(t, p, parent, c.mode, count)
				if err != nil || len(r.Failed) != 0 {
					t.Fatalf("%+v, %v", r, err)
				}
				// The last point of the last step comes after what ended the wait.
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				for i, id := range f.children {
					if made := h1.Made(id) + h2.Made(id); made != 1 {
						t.Errorf("child %d was made %d times", i, made)
					}
				}
				p.Settled(h1, h2)
			})
		}
	}
}

// The leader is cut off at every point of every step: the next one continues, and
// every child runs.
func TestForkSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.mode, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var once sync.Once
				var p *testplane.Plane
				var old atomic.Pointer[testcluster.Replica]
				p = testplane.New(t, 3, func(f *record.Flow, pt flow.Point) error {
					if f.Kind == fork.KindFork && f.Step == c.step && pt == at {
						once.Do(func() {
							l := p.Leader()
							old.Store(l)
							p.Cut(l)
						})
					}
					return nil
				})
				h1, h2, count := twoHosts(t, p, c.mode)
				parent := parentOn(p, h1)
				f, err := begin(p.LeaderNode(), parent, c.mode, count)
				if err != nil {
					t.Fatal(err)
				}
				testcluster.Await(t, "the leader's end", func() bool { return old.Load() != nil })
				p.Settled(h1, h2)
				for i, s := range statuses(p, f.children) {
					if s != record.SandboxRunning {
						t.Errorf("child %d is %q", i, s)
					}
				}
				p.Heal(old.Load())
			})
		}
	}
}

func TestPromote(t *testing.T) {
	tier.Slow(t)
	for _, cleanup := range []bool{true, false} {
		t.Run(fmt.Sprint("cleanup ", cleanup), func(t *testing.T) {
			var crashes atomic.Int64
			p := testplane.New(t, 1, func(f *record.Flow, _ flow.Point) error {
				if f.Kind == fork.KindPromote && crashes.Add(1) <= 4 {
					return errors.New("crash")
				}
				return nil
			})
			h := p.Host("h1", 8*boxMB)
			parent := parentOn(p, h)
			f, _, err := run(t, p, parent, fork.Tree, 4)
			if err != nil {
				t.Fatal(err)
			}
			chosen, flowID := f.children[1], flow.NewID()
			var deleted []string
			p.Update(func(tx *raftstore.Tx) error {
				s, _ := raftstore.Get(tx, record.Sandboxes, chosen)
				var err error
				deleted, err = fork.BeginPromote(tx, flowID, s, cleanup, "req")
				return err
			})
			if err := p.LeaderNode().Engine.Wait(t.Context(), flowID, nil); err != nil {
				t.Fatal(err)
			}
			want := 4
			if cleanup {
				want = 1
			}
			s := statuses(p, f.children)
			if count(s, record.SandboxRunning) != want || s[1] != record.SandboxRunning || len(deleted) != 4-want {
				t.Fatalf("%v, deleted %d", s, len(deleted))
			}
			row, _ := p.Sandbox(chosen)
			if want := fmt.Sprintf(`{"fork_index":1,"fork_parent_id":%q,"fork_tree_id":%q,"fork_tree_role":"promoted","mine":1}`, parent.ID, f.group); string(row.Metadata) != want {
				t.Errorf("metadata %s", row.Metadata)
			}
			for _, id := range []string{chosen, parent.ID} {
				if n := count(types(h.Events(id)), hostapi.EventForkTreePromoted); n != 1 {
					t.Errorf("%d events on %s", n, id)
				}
			}
			p.Settled(h)
		})
	}
}

// A whole tree is deleted, whatever its children have beside their boxes.
func TestPromoteInALargeTree(t *testing.T) {
	p := testplane.New(t, 1, nil)
	metadata := []byte(`{"mine":"` + strings.Repeat("x", 20<<10) + `"}`)
	ports := make([]record.SandboxPort, sandbox.MaxPorts)
	for i := range ports {
		ports[i] = record.SandboxPort{Port: 1000 + i, Label: strings.Repeat("\U0001F300", 63)}
	}
	for n := range fork.MaxFork {
		p.Update(func(tx *raftstore.Tx) error {
			testcluster.PutSandbox(tx, &record.Sandbox{
				Meta: record.Meta{ID: fmt.Sprint("child-", n)}, WorkspaceID: "ws", Status: record.SandboxRunning, ForkTree: "tree", Metadata: metadata, Ports: ports,
			})
			return nil
		})
	}
	flowID := flow.NewID()
	err := p.LeaderNode().Store.Update(t.Context(), func(tx *raftstore.Tx) error {
		chosen, _ := raftstore.Get(tx, record.Sandboxes, "child-0")
		_, err := fork.BeginPromote(tx, flowID, chosen, true, "req")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the end of the siblings", func() bool {
		return len(raftstore.Find(p.Leader().Store.View(), record.Sandboxes, "fork_tree", "tree")) == 1
	})
	if row, _ := p.Sandbox("child-0"); len(row.Ports) != len(ports) {
		t.Errorf("the chosen one has %d ports", len(row.Ports))
	}
}

// Simultaneous forks, promotions and deletes, with hosts that fail at random and
// leaders that change: in the end rows and hosts agree, and no capture is left.
func TestForkStorm(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 3, nil)
	store := fakehost.NewStore()
	var hosts []*fakehost.Host
	for i := range 3 {
		h := p.Host(fmt.Sprintf("h%d", i), 14*boxMB)
		h.SetStore(store)
		h.SetFault(func(_ context.Context, c fakehost.Call) error {
			switch rand.IntN(14) {
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
	var mu sync.Mutex
	var living []string
	pick := func() string {
		mu.Lock()
		defer mu.Unlock()
		return living[rand.IntN(len(living))]
	}
	for _, h := range hosts {
		living = append(living, parentOn(p, h).ID)
	}
	var wg sync.WaitGroup
	var done atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range 6 {
				storm(p, pick, func(ids []string) {
					mu.Lock()
					defer mu.Unlock()
					living = append(living, ids...)
				})
				done.Add(1)
			}
		})
	}
	for i := range 2 {
		l := p.Leader()
		testcluster.Await(t, "some of the storm", func() bool { return done.Load() >= int64(6*(i+1)) })
		p.Cut(l)
		testcluster.Await(t, "another leader", func() bool { return p.Leader() != l })
		p.Heal(l)
	}
	wg.Wait()
	for _, h := range hosts {
		h.SetFault(nil)
	}
	for _, s := range p.Settled(hosts...) {
		if s.Status == record.SandboxStarting || s.Status == record.SandboxDeleting || s.StartedBy != "" {
			t.Errorf("sandbox is %s, started by %q", s.Status, s.StartedBy)
		}
	}
	testcluster.Await(t, "a store of living trees alone", func() bool {
		return !slices.ContainsFunc(store.Captures(), func(id string) bool {
			return len(raftstore.Find(p.Leader().Store.View(), record.Sandboxes, "fork_tree", id)) == 0
		})
	})
}

// storm makes one random call about one sandbox.
func storm(p *testplane.Plane, pick func() string, made func([]string)) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := p.LeaderNode()
	s, ok := raftstore.Get(n.Store.View(), record.Sandboxes, pick())
	if !ok {
		return
	}
	flowID := ""
	switch rand.IntN(6) {
	case 0:
		_ = n.Store.Update(ctx, func(tx *raftstore.Tx) error {
			row, ok := raftstore.Get(tx, record.Sandboxes, s.ID)
			if !ok || row.ForkedFrom == "" { // the first ones live, so that there is always something to fork
				return nil
			}
			_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), row, "req")
			return err
		})
		return
	case 1:
		flowID = flow.NewID()
		_ = n.Store.Update(ctx, func(tx *raftstore.Tx) error {
			row, ok := raftstore.Get(tx, record.Sandboxes, s.ID)
			if !ok || row.ForkTree == "" || row.Status != record.SandboxRunning {
				return nil
			}
			_, err := fork.BeginPromote(tx, flowID, row, true, "req")
			return err
		})
	default:
		if s.Status != record.SandboxRunning {
			return
		}
		mode, count := fork.Tree, 1+rand.IntN(4)
		switch rand.IntN(4) {
		case 0:
			mode = fork.Cold
		case 1:
			mode, count = fork.Warm, 1
		}
		f, err := begin(n, s, mode, count)
		if err != nil {
			return
		}
		flowID = f.flowID
		defer made(f.children)
	}
	_ = n.Engine.Wait(ctx, flowID, nil)
}
