package app_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestQueuedInAWorkspaceThatStops: what is being built when a workspace may run nothing any
// more goes on to its end, and what waits for its turn does not begin.
func TestQueuedInAWorkspaceThatStops(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, tc := range map[string]struct {
		becomes record.Workspace
		why     string
	}{
		"its credit is spent": {record.Workspace{Quotas: record.Quotas{CreditCents: new(0)}}, "monthly free credit exhausted"},
		"it is suspended":     {record.Workspace{Suspended: true}, "account suspended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			r.guests.set(func(g *guests) { g.hold = true })
			a := r.create()
			first := r.deploy(a.ID)
			r.at(first.ID, "poll")
			waiting := r.deploy(a.ID)
			r.Update(func(tx *raftstore.Tx) error {
				ws := tc.becomes
				ws.Meta = record.Meta{ID: "ws"}
				raftstore.Put(tx, record.Workspaces, &ws)
				return nil
			})
			r.guests.set(func(g *guests) { g.hold = false })
			r.ends(first.ID, record.DeploymentLive)
			row := r.ends(waiting.ID, record.DeploymentFailed)
			if !strings.Contains(row.Error, tc.why) || !row.StartedAt.IsZero() || row.SandboxID != "" {
				t.Errorf("%+v, want %q", row, tc.why)
			}
			if row := r.row(a.ID); row.DeploymentID != first.ID {
				t.Errorf("%s is live", row.DeploymentID)
			}
		})
	}
}
