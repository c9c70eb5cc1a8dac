package sandbox_test

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// After a restore, hosts keep what has no row until the time is over, however often
// the leader changes, or until the operator allows its removal.
func TestWhatARestoredBackupDoesNotKnowIsKept(t *testing.T) {
	p := testplane.New(t, 1, nil)
	keep := func(d time.Duration) {
		p.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Keep: d})
			return nil
		})
	}
	keep(time.Hour)
	h := p.Host("h1", 4096)
	unknown := func() {
		h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
			boxes[id] = hostapi.Box{ID: id, Generation: 1, Status: hostapi.StatusRunning}
		})
	}
	unknown()
	p.Passes(10) // each longer than the grace of an orphan
	if len(h.Boxes()) != 1 {
		t.Fatal("it is gone")
	}
	keep(0)
	testcluster.Await(t, "end of the box", func() bool { return len(h.Boxes()) == 0 })
	keep(500 * time.Millisecond)
	unknown()
	testcluster.Await(t, "end of the time", func() bool { return len(h.Boxes()) == 0 })
	if row, _ := raftstore.Get(p.Leader().Store.View(), record.Clusters, record.ClusterID); row.Keep != 0 {
		t.Errorf("the box went with %s to keep it", row.Keep)
	}
}

// A sandbox that has moved since the backup is found where it is now.
func TestARestoredBackupFindsWhatHasMovedSince(t *testing.T) {
	p := testplane.New(t, 1, nil)
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Keep: time.Hour})
		return nil
	})
	h1, h2 := p.Host("h1", 4096), p.Host("h2", 4096)
	running(p, h1, id)
	p.Passes(2) // the leader has heard from h1 that it is there
	h2.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		boxes[id] = hostapi.Box{ID: id, Generation: 3, Seq: 7, Status: hostapi.StatusHibernated}
	})
	p.Passes(5)
	if s, _ := p.Sandbox(id); s.HostID != "h1" || s.Status != record.SandboxRunning {
		t.Fatalf("its own host has it, and the row follows another: %+v", s)
	}
	h1.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) { delete(boxes, id) })
	testcluster.Await(t, "the row", func() bool {
		s, _ := p.Sandbox(id)
		return s.HostID == "h2" && s.Generation == 3 && s.Status == record.SandboxHibernated && s.Error == ""
	})
	p.Passes(5)
	if len(h2.Boxes()) != 1 {
		t.Error("its box is gone")
	}
}
