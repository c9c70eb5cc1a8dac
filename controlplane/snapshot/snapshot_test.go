package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var boxID = strings.Repeat("a", 26)

const snapID = snapshot.Prefix + "1"

// rig is a plane with a host, a store and a running sandbox.
type rig struct {
	t     *testing.T
	p     *testplane.Plane
	h     *fakehost.Host
	store *fakehost.Store
}

func newRig(t *testing.T, replicas int, fault func(*testplane.Plane, *record.Flow, flow.Point) error) *rig {
	t.Helper()
	r := &rig{t: t, store: fakehost.NewStore()}
	r.p = testplane.New(t, replicas, func(f *record.Flow, at flow.Point) error {
		if fault == nil {
			return nil
		}
		return fault(r.p, f, at)
	})
	r.h = r.p.Host("h1", 4096)
	r.h.SetStore(r.store)
	r.p.Place(r.h, &record.Sandbox{Meta: record.Meta{ID: boxID}, WorkspaceID: "ws", Generation: 1, CPU: 1, MemoryMB: 512, DiskMB: 2048})
	testcluster.Await(t, "the store", func() bool { return r.p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	return r
}

func (r *rig) begin(change ...func(*record.Snapshot)) string {
	flowID := flow.NewID()
	r.p.Update(func(tx *raftstore.Tx) error {
		if _, ok := flow.Live(tx, snapshot.Resource.Subject(snapID)); ok {
			return nil // it was written although the answer was lost
		}
		row := &record.Snapshot{
			Meta: record.Meta{ID: snapID}, WorkspaceID: "ws", Status: record.ResourceCreating, SandboxID: boxID, Template: "base", HostID: "h1",
		}
		for _, c := range change {
			c(row)
		}
		return snapshot.Begin(tx, flowID, row, snapshot.Create{Data: resource.Data{RequestID: "req"}, Generation: 1})
	})
	return flowID
}

func (r *rig) wait(flowID string) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	return r.p.LeaderNode().Engine.Wait(ctx, flowID, nil)
}

func (r *rig) remove() {
	r.p.Update(func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Snapshots, snapID)
		if !ok {
			return nil
		}
		_, err := snapshot.Resource.BeginDelete(tx, flow.NewID(), s, "req")
		return err
	})
}

func (r *rig) row() (*record.Snapshot, bool) {
	return raftstore.Get(r.p.Leader().Store.View(), record.Snapshots, snapID)
}

func (r *rig) nothingLeft() {
	r.t.Helper()
	r.p.Settled(r.h)
	testcluster.Await(r.t, "the end of it all", func() bool {
		_, ok := r.row()
		return !ok && len(r.h.Captures()) == 0 && len(r.store.Captures()) == 0
	})
}

func TestCreateAndDelete(t *testing.T) {
	r := newRig(t, 1, nil)
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	s, ok := r.row()
	if !ok || s.Status != record.ResourceReady || !s.Stored || s.Manifest == "" || s.MemoryMB != 512 || s.MemoryBytes != 512<<20 || s.PauseMS != 7 {
		t.Fatalf("%+v", s)
	}
	if c := r.store.Captures(); len(c) != 1 || c[0] != snapID {
		t.Fatalf("in the store: %v", c)
	}
	r.remove()
	r.nothingLeft()
}

// A host could say any number, by which its workspace pays.
func TestASnapshotIsNoLargerThanItsSandbox(t *testing.T) {
	r := newRig(t, 1, nil)
	if err := r.wait(r.begin(func(s *record.Snapshot) { s.DiskMB = 100 })); err != nil { // the host says 512 MiB of memory, and some disk
		t.Fatal(err)
	}
	if s, _ := r.row(); s.MemoryBytes != 100<<20 || s.DiskBytes != 0 {
		t.Errorf("%d bytes of memory, %d of disk", s.MemoryBytes, s.DiskBytes)
	}
}

func TestWithoutAStore(t *testing.T) {
	r := newRig(t, 1, nil)
	r.h.SetStore(nil)
	testcluster.Await(t, "the heartbeat", func() bool { return !r.p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	if s, _ := r.row(); s.Status != record.ResourceReady || s.Stored {
		t.Fatalf("%+v", s)
	}
}

// A snapshot that cannot be stored is kept on its host, and stored when it can be.
// An upload that hangs delays no other.
func TestTheStoreFails(t *testing.T) {
	r := newRig(t, 1, nil)
	var broken atomic.Bool
	var tries atomic.Int64
	broken.Store(true)
	over := make(chan struct{})
	defer close(over) // the host's server waits for its calls
	r.h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		switch {
		case c.Op != "store" || c.Done:
		case c.ID == hangs:
			select {
			case <-ctx.Done():
			case <-over:
			}
		case broken.Load():
			tries.Add(1)
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "bucket is gone"}
		}
		return nil
	})
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	if s, _ := r.row(); s.Status != record.ResourceReady || s.Stored {
		t.Fatalf("%+v", s)
	}
	r.h.AddCapture(hangs)
	r.p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: hangs}, WorkspaceID: "ws", Status: record.ResourceReady, HostID: "h1"})
		return nil
	})
	testcluster.Await(t, "some tries", func() bool { return tries.Load() >= 4 })
	broken.Store(false)
	r.stored()
	if c := r.store.Captures(); len(c) != 1 || c[0] != snapID {
		t.Fatalf("in the store: %v", c)
	}
}

// hangs is a snapshot whose upload never ends.
const hangs = snapshot.Prefix + "hangs"

func (r *rig) stored() {
	r.t.Helper()
	testcluster.Await(r.t, "the stored snapshot", func() bool {
		s, ok := r.row()
		_, live := flow.Live(r.p.Leader().Store.View(), snapshot.Resource.Subject(snapID))
		return ok && s.Status == record.ResourceReady && s.Stored && !live
	})
}

// A snapshot that was taken without a store is uploaded when its host has one,
// whoever leads then, and not while its host is away.
func TestAStoreThatComesLater(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, nil)
	r.h.SetStore(nil)
	testcluster.Await(t, "the heartbeat", func() bool { return !r.p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	r.h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "store" && asked.Add(1) <= 2 {
			return fakehost.ErrDrop
		}
		return nil
	})
	r.h.SetStore(r.store)
	testcluster.Await(t, "a try", func() bool { return asked.Load() > 0 })
	old := r.p.Leader()
	r.p.Cut(old)
	r.stored()
	r.p.Heal(old)
}

// A snapshot that is deleted while it waits for its upload leaves nothing.
func TestDeleteWhileItIsStored(t *testing.T) {
	r := newRig(t, 1, nil)
	var n atomic.Int64
	r.h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op != "store" || c.Done {
			return nil
		}
		if n.Add(1) > 1 {
			<-ctx.Done()
		}
		return &hostapi.Error{Code: hostapi.CodeInternal, Message: "bucket is gone"}
	})
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the second try", func() bool { return n.Load() == 2 })
	r.remove()
	r.nothingLeft()
}

func TestRefusals(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct{ err, want error }{
		"gone":        {&hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}, apierror.NotRunning("")},
		"paused":      {&hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: "paused"}, sandbox.ErrAsleep},
		"no disk":     {&hostapi.Error{Code: hostapi.CodeNoDisk, Message: "full"}, &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host storage for snapshot"}},
		"unreachable": {fakehost.ErrDrop, apierror.Unreachable("", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, nil)
			r.h.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == "capture" && call.Done == (name == "unreachable") { // it is made, and the answer is lost
					return c.err
				}
				return nil
			})
			err := r.wait(r.begin())
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			r.nothingLeft()
		})
	}
}

// A host that is restarting has begun nothing, and is asked again.
func TestTheHostRestarts(t *testing.T) {
	tier.Slow(t)
	for _, op := range []string{"capture", "store"} {
		t.Run(op, func(t *testing.T) {
			r := newRig(t, 1, nil)
			var n atomic.Int64
			r.h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == op && !c.Done && n.Add(1) <= 3 {
					return &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is starting up or shutting down"}
				}
				return nil
			})
			if err := r.wait(r.begin()); err != nil {
				t.Fatal(err)
			}
			if s, ok := r.row(); !ok || s.Status != record.ResourceReady || !s.Stored {
				t.Fatalf("%+v", s)
			}
		})
	}
}

var (
	points = []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit}
	cases  = []struct{ kind, step string }{
		{snapshot.Resource.CreateKind(), "capture"}, {snapshot.Resource.CreateKind(), "store"}, {snapshot.Resource.DeleteKind(), "remove"},
	}
)

func TestCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.kind, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r := newRig(t, 1, func(_ *testplane.Plane, f *record.Flow, pt flow.Point) error {
					if f.Kind == c.kind && f.Step == c.step && pt == at && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				if err := r.wait(r.begin()); err != nil {
					t.Fatal(err)
				}
				if s, ok := r.row(); !ok || s.Status != record.ResourceReady || !s.Stored {
					t.Fatalf("%+v", s)
				}
				r.remove()
				r.nothingLeft()
				// The last point of the last step comes after the row's end.
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
			})
		}
	}
}

func TestLeaderDiesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.kind, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var once sync.Once
				var old atomic.Pointer[testcluster.Replica]
				r := newRig(t, 3, func(p *testplane.Plane, f *record.Flow, pt flow.Point) error {
					if f.Kind == c.kind && f.Step == c.step && pt == at {
						once.Do(func() {
							l := p.Leader()
							old.Store(l)
							p.Cut(l)
						})
					}
					return nil
				})
				r.begin()
				testcluster.Await(t, "a snapshot", func() bool {
					s, ok := r.row()
					return ok && s.Status == record.ResourceReady && s.Stored
				})
				r.remove()
				r.nothingLeft() // which a commit shows before the hook behind it has run
				testcluster.Await(t, "the leader's end", func() bool { return old.Load() != nil })
				r.p.Heal(old.Load())
			})
		}
	}
}

// The stored copy of a snapshot whose host is lost is deleted by another host.
func TestDeleteWithoutItsHost(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 1, nil)
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	h2 := r.p.Host("h2", 4096)
	h2.SetStore(r.store)
	r.h.Silence(true)
	testcluster.Await(t, "the host's end", func() bool {
		a, _ := raftstore.Get(r.p.Leader().Store.View(), record.Hosts, "h1")
		return a.State == record.HostLost
	})
	if s, _ := r.row(); s.Status != record.ResourceReady {
		t.Fatalf("a stored snapshot is %s with its host", s.Status)
	}
	r.remove()
	testcluster.Await(t, "the stored copy's end", func() bool { _, ok := r.row(); return !ok && len(r.store.Captures()) == 0 })
	r.h.Silence(false) // it comes back with the capture
	testcluster.Await(t, "the capture's end", func() bool { return len(r.h.Captures()) == 0 })
}

// A snapshot is stored although its row does not say so, because the answer to its
// upload was lost with the host.
func TestDeleteOfACopyThatNobodyKnowsOf(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 1, nil)
	r.h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "store" && c.Done {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "cut off"}
		}
		return nil
	})
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	h2 := r.p.Host("h2", 4096)
	h2.SetStore(r.store)
	r.h.Silence(true)
	testcluster.Await(t, "the host's end", func() bool {
		s, ok := r.row()
		return ok && s.Status == record.ResourceLost
	})
	if s, _ := r.row(); s.Stored || len(r.store.Captures()) != 1 {
		t.Fatalf("%+v, in the store %v", s, r.store.Captures())
	}
	r.remove()
	testcluster.Await(t, "the stored copy's end", func() bool { _, ok := r.row(); return !ok && len(r.store.Captures()) == 0 })
}

// Another host deletes what a host stored in a store that it no longer has.
func TestDeleteByAHostWithoutAStore(t *testing.T) {
	r := newRig(t, 1, nil)
	if err := r.wait(r.begin()); err != nil {
		t.Fatal(err)
	}
	h2 := r.p.Host("h2", 4096)
	h2.SetStore(r.store)
	r.h.SetStore(nil)
	testcluster.Await(t, "the heartbeats", func() bool {
		sessions := r.p.LeaderNode().Hosts.Sessions()
		return !sessions["h1"].Heartbeat.Store && sessions["h2"].Heartbeat.Store
	})
	r.remove()
	r.nothingLeft()
}
