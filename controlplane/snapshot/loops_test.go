package snapshot_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var id = strings.Repeat("a", 26)

// Captures without a row are deleted: a fork's soon, a snapshot's later.
func TestObjectsWithoutARow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "snap-kept"}, Status: record.ResourceReady, HostID: "h1"})
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "vol-kept"}, Status: record.ResourceReady, HostID: "h1"})
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "vol-elsewhere"}, Name: "e", Status: record.ResourceReady, HostID: "h2"})
		return flow.Begin(tx, flow.New{
			ID: flow.NewID(), Kind: "asleep", Subject: fork.Subject("tree-live"), Step: "none",
		})
	})
	for _, id := range []string{"snap-kept", "snap-gone", "tree-live", "tree-gone"} {
		h.AddCapture(id)
	}
	for _, id := range []string{"vol-kept", "vol-elsewhere", "vol-gone"} {
		h.AddVolume(id)
	}
	testcluster.Await(t, "the fork's capture's end", func() bool { return len(h.Captures()) < 4 })
	if c := h.Captures(); len(c) != 3 || c[1] != "snap-kept" {
		t.Fatalf("the first to go left %v", c)
	}
	testcluster.Await(t, "the others' end", func() bool { return len(h.Captures()) == 2 && len(h.Volumes()) == 1 })
	p.Passes(5)
	if c := h.Captures(); c[0] != "snap-kept" || c[1] != "tree-live" {
		t.Fatalf("left are %v", c)
	}
	if _, ok := h.Volumes()["vol-kept"]; !ok {
		t.Fatal("a volume with a row is gone")
	}
}

// Another cluster's snapshots are not deleted.
func TestTheStoreOfAnotherCluster(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	store, asked := fakehost.NewStore(), make(chan struct{}, 100)
	store.Put("snap-1")
	store.Claim("another")
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "stored" && !c.Done {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		return nil
	})
	h.SetStore(store)
	for range 15 { // longer than the grace
		<-asked
	}
	if len(store.Captures()) != 1 {
		t.Error("it is gone")
	}
}

// An object in the snapshot store that nothing needs is deleted later, whoever
// stored it.
func TestStoredCopiesWithoutARow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{
			Meta: record.Meta{ID: "snap-kept"}, Status: record.ResourceReady, HostID: "away", Stored: true,
		})
		raftstore.Put(tx, record.Templates, &record.Template{Meta: record.Meta{ID: "tpl-1"}, WorkspaceID: "ws", Name: "web", Status: record.TemplateReady, BuildID: "bld-2"})
		for id, products := range map[string][]record.Product{
			"bld-1": {{Digest: "gone"}, {Digest: "yet-to-be-removed", Stored: true}}, // an older one
			"bld-2": {{Digest: "meant"}},
		} {
			// Without a template's name, so that nothing else handles them.
			raftstore.Put(tx, record.Builds, &record.Build{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Template: id, Status: record.TemplateReady, Products: products})
		}
		testcluster.PutSandbox(tx, &record.Sandbox{Meta: record.Meta{ID: "child"}, Status: record.SandboxFailed, ForkTree: "tree-child"})
		return flow.Begin(tx, flow.New{ID: flow.NewID(), Kind: "asleep", Subject: fork.Subject("tree-live"), Step: "none"})
	})
	store := fakehost.NewStore()
	h.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*templates = append(*templates, hostapi.TemplateState{Name: "odd", BuildID: "held", Status: "failed"})
	})
	kept := []string{"snap-kept", "tpl-held", "tpl-meant", "tpl-yet-to-be-removed", "tree-child", "tree-live"}
	store.Put(kept...)
	store.Put("snap-gone", "tpl-gone", "tpl-unknown", "tree-gone", "what-is-this")
	h.SetStore(store)
	testcluster.Await(t, "the others' end", func() bool { return len(store.Captures()) <= len(kept) })
	p.Passes(5)
	if left := store.Captures(); !slices.Equal(left, kept) {
		t.Errorf("left are %v", left)
	}
	p.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Sandboxes, "child"); return nil })
	testcluster.Await(t, "the end of what was stored of a tree", func() bool {
		return !slices.Contains(store.Captures(), "tree-child")
	})
}

// Passes over the store are minutes apart: each deletes everything that is due.
func TestOnePassEmptiesTheStore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	store := fakehost.NewStore()
	for i := range 9 {
		store.Put(fmt.Sprintf("tree-%d", i))
	}
	begun, enough := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(enough) })
	begin := sync.OnceFunc(func() { close(begun) })
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		switch {
		case c.Done:
		case c.Op == "uncapture":
			begin()
		case c.Op == "stored":
			select {
			case <-begun: // no pass comes after the one that deletes
				select {
				case <-enough:
				case <-ctx.Done():
				}
			default:
			}
		}
		return nil
	})
	h.SetStore(store)
	testcluster.Await(t, "an empty store", func() bool { return len(store.Captures()) == 0 })
}

// What a restored backup does not know is kept in the store, too.
func TestStoredCopiesAreKeptAfterARestore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	keep := func(d time.Duration) {
		p.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Keep: d})
			return nil
		})
	}
	keep(time.Hour)
	store, listed := fakehost.NewStore(), make(chan struct{}, 100)
	store.Put("snap-1")
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "stored" && !c.Done {
			select {
			case listed <- struct{}{}:
			default:
			}
		}
		return nil
	})
	h.SetStore(store)
	for range 15 { // longer than the grace
		<-listed
	}
	if len(store.Captures()) != 1 {
		t.Fatal("it is gone")
	}
	keep(0)
	testcluster.Await(t, "its end", func() bool { return len(store.Captures()) == 0 })
}

// A missing capture proves nothing if the host's inventory is incomplete.
func TestSnapshotsOfAHostThatIsNotReady(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	h.SetReady(false)
	testcluster.Await(t, "the heartbeat", func() bool { return !p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Ready })
	p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "snap-1"}, Status: record.ResourceReady, HostID: "h1"})
		return nil
	})
	status := func() record.ResourceStatus {
		s, _ := raftstore.Get(p.Leader().Store.View(), record.Snapshots, "snap-1")
		return s.Status
	}
	p.Passes(10)
	if s := status(); s != record.ResourceReady {
		t.Fatalf("it is %s", s)
	}
	h.SetReady(true)
	testcluster.Await(t, "the snapshot's end", func() bool { return status() == record.ResourceLost })
	h.AddCapture("snap-1")
	testcluster.Await(t, "the snapshot's return", func() bool { return status() == record.ResourceReady })
}

func TestObjectsInTransitionWithoutAFlow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	for _, status := range []record.ResourceStatus{record.ResourceCreating, record.ResourceDeleting} {
		p.Update(func(tx *raftstore.Tx) error {
			testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "snap-1"}, Status: status, HostID: "h1"})
			testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "vol-1"}, Status: status, HostID: "h1", AttachedTo: "nobody"})
			return nil
		})
		testcluster.Await(t, "their end", func() bool {
			v := p.Leader().Store.View()
			return len(raftstore.All(v, record.Snapshots)) == 0 && len(raftstore.All(v, record.Volumes)) == 0
		})
	}
	p.Settled(h)
}

// A child of a fork has no flow of its own, and is not a stray while its fork is
// live.
func TestAChildOnItsWayIsNoStray(t *testing.T) {
	p := testplane.New(t, 1, nil)
	p.Host("h1", 4096)
	flowID := flow.NewID()
	p.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSandbox(tx, &record.Sandbox{
			Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: record.SandboxStarting, StartedBy: fork.Subject("g"),
		})
		return flow.Begin(tx, flow.New{ID: flowID, Kind: "asleep", Subject: fork.Subject("g"), Step: "none"})
	})
	p.Passes(10)
	if s, ok := p.Sandbox(id); !ok || s.Status != record.SandboxStarting {
		t.Fatalf("%+v", s)
	}
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Flows, flowID)
		return nil
	})
	testcluster.Await(t, "the stray's end", func() bool { _, ok := p.Sandbox(id); return !ok })
}
