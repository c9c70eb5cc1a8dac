package fork_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// With a store, children for which the parent's host has no room start elsewhere:
// those known before, and those that the host refuses.
func TestChildrenSpread(t *testing.T) {
	tier.Slow(t)
	for name, refuse := range map[string]bool{"known before": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h1, h2 := p.Host("h1", 4*boxMB), p.Host("h2", 3*boxMB)
			store := fakehost.NewStore()
			h1.SetStore(store)
			h2.SetStore(store)
			parent := parentOn(p, h1)
			testcluster.Await(t, "the stores", func() bool {
				s := p.LeaderNode().Hosts.Sessions()
				return s["h1"].Heartbeat.Store && s["h2"].Heartbeat.Store && len(s["h1"].Heartbeat.Boxes) == 1
			})
			n := 5
			if refuse {
				n = 3
				h1.SetFault(func(_ context.Context, c fakehost.Call) error {
					if c.Op == "put" && !c.Done {
						return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}
					}
					return nil
				})
			}
			f, r, err := run(t, p, parent, fork.Tree, n)
			if err != nil || len(r.Failed) != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			on := map[string]int{}
			for _, id := range f.children {
				s, _ := p.Sandbox(id)
				if s.Status != record.SandboxRunning {
					t.Fatalf("%+v", s)
				}
				on[s.HostID]++
			}
			want := map[string]int{"h1": 3, "h2": 2}
			if refuse {
				want = map[string]int{"h2": 3}
			}
			if on["h1"] != want["h1"] || on["h2"] != want["h2"] {
				t.Errorf("they are on %v", on)
			}
			p.Settled(h1, h2)
			if kept := store.Captures(); !slices.Equal(kept, []string{f.group}) {
				t.Errorf("in the store is %v", kept)
			}
		})
	}
}

// A host that hangs costs no child: those that run elsewhere are committed when the
// batch's time is over, and its own are created elsewhere after it was told to stop.
func TestAHostThatHangsInABatch(t *testing.T) {
	tier.Slow(t)
	t.Cleanup(fork.SetLimits(3*time.Second, 9*time.Second))
	p := testplane.New(t, 1, nil)
	h1, h2, h3 := p.Host("h1", 2*boxMB), p.Host("h2", 8*boxMB), p.Host("h3", 8*boxMB)
	store := fakehost.NewStore()
	for _, h := range []*fakehost.Host{h1, h2, h3} {
		h.SetStore(store)
	}
	over := make(chan struct{})
	defer close(over) // the host's server waits for its calls
	var mu sync.Mutex
	hung := map[string]chan struct{}{} // by child: closed when its delete is done
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		mu.Lock()
		deleted := hung[c.ID]
		switch {
		case c.Op == "put" && !c.Done && deleted == nil:
			deleted = make(chan struct{})
			hung[c.ID] = deleted
		case c.Op == "delete" && c.Done && deleted != nil:
			close(deleted)
		}
		mu.Unlock()
		if c.Op == "put" && !c.Done { // it goes on when its caller has gone
			select {
			case <-deleted:
			case <-over:
			}
		}
		return nil
	})
	h3.SetFault(func(_ context.Context, c fakehost.Call) error {
		mu.Lock()
		deleted := hung[c.ID]
		mu.Unlock()
		if c.Op == "put" && deleted != nil {
			select {
			case <-deleted:
			default:
				t.Error("a child is made elsewhere while the host that hangs may make it")
			}
		}
		return nil
	})
	parent := parentOn(p, h1)
	testcluster.Await(t, "the stores", func() bool {
		s := p.LeaderNode().Hosts.Sessions()
		return s["h1"].Heartbeat.Store && s["h2"].Heartbeat.Store && s["h3"].Heartbeat.Store && len(s["h1"].Heartbeat.Boxes) == 1
	})
	f, r, err := run(t, p, parent, fork.Tree, 5)
	if err != nil || len(r.Failed) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(hung) == 0 || len(hung) > 3 {
		t.Fatalf("%d of the children met the host that hangs", len(hung))
	}
	for _, id := range f.children {
		s, _ := p.Sandbox(id)
		if s.Status != record.SandboxRunning || s.HostID == "h2" || h2.Made(id) != 0 || h1.Made(id)+h3.Made(id) != 1 {
			t.Errorf("%s on %q; made %d times on the host that hangs, %d elsewhere", s.Status, s.HostID, h2.Made(id), h1.Made(id)+h3.Made(id))
		}
	}
}

// A warm fork is repeated until its deadline, because no other host can create its
// child, which has the parent's memory and disk.
func TestAHostThatIsSlowToWarm(t *testing.T) {
	t.Cleanup(fork.SetLimits(time.Second, time.Minute))
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 2*boxMB)
	var asked atomic.Int64
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && asked.Add(1) == 1 {
			<-ctx.Done() // the batch's time is over
		}
		return nil
	})
	f, r, err := run(t, p, parentOn(p, h), fork.Warm, 1)
	if err != nil || len(r.Failed) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if s, _ := p.Sandbox(f.children[0]); s.Status != record.SandboxRunning || h.Made(s.ID) != 1 {
		t.Errorf("the child is %s, made %d times", s.Status, h.Made(s.ID))
	}
	p.Settled(h)
}

func TestNoRoomAndNoStore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 3*boxMB)
	p.Host("h2", 8*boxMB) // without a store it is of no use
	parent := parentOn(p, h)
	testcluster.Await(t, "the parent's box", func() bool {
		return len(p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Boxes) == 1
	})
	f, r, err := run(t, p, parent, fork.Tree, 4)
	if err != nil || len(r.Failed) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if s := statuses(p, f.children); count(s, record.SandboxRunning) != 2 {
		t.Fatalf("%v", s)
	}
	p.Settled(h)
	testcluster.Await(t, "the children's boxes", func() bool {
		return len(p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Boxes) == 3
	})
	var none *placement.Error
	if _, _, err := run(t, p, parent, fork.Tree, 2); !errors.As(err, &none) || none.Reason != placement.NoCapacity {
		t.Fatalf("a fork that finds no room: %v", err)
	}
	p.Settled(h)
}

// restarting refuses the first few calls, like a host that is starting.
func restarting(op string) fakehost.Fault {
	var n atomic.Int64
	return func(_ context.Context, c fakehost.Call) error {
		if c.Op == op && !c.Done && n.Add(1) <= 3 {
			return &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is starting up or shutting down"}
		}
		return nil
	}
}

// A fork waits for a host that has begun nothing, and refuses nobody.
func TestTheHostRestarts(t *testing.T) {
	tier.Slow(t)
	for _, op := range []string{"capture", "put", "store"} {
		for _, mode := range []fork.Mode{fork.Tree, fork.Cold, fork.Warm} {
			t.Run(op+" "+string(mode), func(t *testing.T) {
				p := testplane.New(t, 1, nil)
				h1, h2 := p.Host("h1", 8*boxMB), p.Host("h2", 8*boxMB)
				store := fakehost.NewStore()
				h1.SetStore(store)
				h2.SetStore(store)
				parent := parentOn(p, h1)
				h1.SetFault(restarting(op))
				n := 3
				if mode == fork.Warm {
					n = 1
				}
				f, r, err := run(t, p, parent, mode, n)
				if err != nil || len(r.Failed) != 0 {
					t.Fatalf("%+v, %v", r, err)
				}
				for _, id := range f.children {
					if s, _ := p.Sandbox(id); s.Status != record.SandboxRunning || s.HostID != "h1" || h1.Made(id) != 1 {
						t.Errorf("a child is %s on %q, made %d times", s.Status, s.HostID, h1.Made(id))
					}
				}
				p.Settled(h1, h2)
			})
		}
	}
}

// Nor is a fork refused because its host has just announced a restart.
func TestTheHostIsRestartingAlready(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8*boxMB)
	parent := parentOn(p, h)
	h.SetReady(false)
	testcluster.Await(t, "the heartbeat to a leader that is not new", func() bool {
		n := p.LeaderNode()
		return !n.Hosts.Sessions()["h1"].Heartbeat.Ready && !n.Hosts.Warming(n.Store.View())
	})
	begun := restarting("capture")
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		err := begun(ctx, c)
		if err == nil {
			h.SetReady(true)
		}
		return err
	})
	f, r, err := run(t, p, parent, fork.Tree, 2)
	if err != nil || len(r.Failed) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if s := statuses(p, f.children); count(s, record.SandboxRunning) != 2 {
		t.Fatalf("%v", s)
	}
	p.Settled(h)
}
