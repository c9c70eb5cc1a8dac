package sandbox_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A sandbox that waits for the hosts of a new leader is of its snapshot's size, which
// its template may no longer have.
func TestASandboxThatWaitsForAHostCountsAsItsSnapshot(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 3)
	r.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{
			Meta: record.Meta{ID: "snap-large"}, WorkspaceID: "ws", Status: record.ResourceReady, HostID: "h1", Template: "base",
			CPU: 3, MemoryMB: 3072, DiskMB: 3000,
		})
		return nil
	})
	r.H1.Silence(true)
	old := r.Leader()
	r.Cut(old)
	defer r.Heal(old)
	var n *testplane.Node
	testcluster.Await(t, "a new leadership", func() bool {
		n = r.LeaderNode()
		return n.Hosts.Warming(n.Store.View())
	})
	done := make(chan error, 1)
	go func() {
		_, err := n.Sandboxes.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: "snap-large"}, core.Idempotency{})
		done <- err
	}()
	testcluster.Await(t, "its row", func() bool {
		rows := raftstore.Find(n.Store.View(), record.Sandboxes, "workspace", "ws")
		if len(rows) == 1 && (rows[0].HostID != "" || rows[0].CPU != 3 || rows[0].MemoryMB != 3072 || rows[0].DiskMB != 3000) {
			t.Fatalf("%+v", rows[0])
		}
		return len(rows) == 1
	})
	r.H1.Silence(false)
	<-done // the host has no such snapshot
}
