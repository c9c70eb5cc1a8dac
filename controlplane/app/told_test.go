package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestLongReasonsAreTold: whatever a build wrote last, its deployment ends, and webhooks
// hear why. In JSON a character may take six bytes.
func TestLongReasonsAreTold(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, said := range map[string]string{
		"plain":       strings.Repeat("y", 100<<10),
		"markup":      strings.Repeat("<", 100<<10),
		"many lines":  strings.Repeat("\n\"", 50<<10) + "x",
		"not English": strings.Repeat("é\u2028", 50<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			r.Update(func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we-1"}, WorkspaceID: "ws", URL: "https://example.com"})
				return nil
			})
			a := r.create()
			r.guests.set(func(g *guests) {
				g.plan = appapi.BuildStatus{State: appapi.StateFailed, Phase: appapi.PhaseBuild, Error: "exited with 1: " + said}
			})
			d := r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
			var told []api.WebhookDeployment
			for _, row := range raftstore.Find(r.Leader().Store.View(), record.WebhookDeliveries, "endpoint", "we-1") {
				var e struct{ Data api.WebhookDeployment }
				if err := json.Unmarshal(row.Body, &e); err != nil {
					t.Fatal(err)
				}
				if row.Type == string(api.WebhookDeploymentFailed) {
					told = append(told, e.Data)
				}
			}
			if len(told) != 1 || told[0].DeploymentID != d.ID || told[0].Status != "failed" {
				t.Fatalf("told %+v", told)
			}
			beginning := strings.TrimSuffix(told[0].Error, "…")
			if len(beginning) < 500 || !strings.HasPrefix(d.Error, beginning) {
				t.Errorf("told %q of %q", told[0].Error, d.Error)
			}
		})
	}
}
