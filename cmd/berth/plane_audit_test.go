package main

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
)

// planeAudit is a log of three entries in each of two chains.
type planeAudit struct{}

func (planeAudit) Record(context.Context, *core.Act, string, string) error { return nil }

func (planeAudit) List(_ context.Context, q api.AuditQuery, _ core.ListOptions) (out []api.AuditEntry, _ string, _ error) {
	for _, workspace := range []string{"ws-1", ""} {
		previous := ""
		for i, action := range []string{"signIn", "createToken", "deleteDatabase"} {
			e := api.AuditEntry{
				Sequence: uint64(i) + 1, Time: api.Time{Time: time.Date(2026, 11, 1, 9, i, 0, 0, time.UTC)}, WorkspaceID: workspace,
				ActorType: core.ActorUser, ActorID: "usr-7", Action: action, Outcome: core.OutcomeOK, Previous: previous,
			}
			e.Hash = e.Digest()
			previous = e.Hash
			if (q.Action == "" || q.Action == action) && (q.WorkspaceID == "" || q.WorkspaceID == workspace || q.WorkspaceID == api.AuditOperators && workspace == "") {
				out = append(out, e)
			}
		}
	}
	slices.Reverse(out)
	return out, "", nil
}

func (p planeAudit) ListOf(ctx context.Context, _ core.Caller, _ string, q api.AuditQuery, o core.ListOptions) ([]api.AuditEntry, string, error) {
	q.WorkspaceID = "ws-1"
	return p.List(ctx, q, o)
}
