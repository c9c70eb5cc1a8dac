package org

import (
	"context"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// workspace shows a workspace to an operator.
func (s *Orgs) workspace(r raftstore.Reader, w *record.Workspace) api.Workspace {
	return api.Workspace{
		ID: w.ID, Name: w.Name, Tier: s.core.Tiers.Name(w), Suspended: w.Suspended, SubscriptionStatus: string(w.SubscriptionStatus),
		Quotas: api.Quotas(w.Quotas), Limits: api.Quotas(s.core.Tiers.Of(w)),
		Usage: s.usage(r, w), PausedAt: api.NewTime(w.PausedAt), CreatedAt: api.Time{Time: w.CreatedAt},
	}
}

// usage is what a workspace has of what its limits are about.
func (s *Orgs) usage(r raftstore.Reader, w *record.Workspace) api.WorkspaceUsage {
	n := limits.CountsOf(r, w.ID, s.core.Clock())
	return api.WorkspaceUsage{
		Sandboxes: n.Sandboxes, CPU: n.CPU, MemoryMB: n.MemoryMB, DiskMB: n.DiskMB, Members: len(raftstore.Find(r, record.Users, "workspace", w.ID)),
		CreatesPerHour: n.CreatesPerHour, Snapshots: n.Snapshots, VolumeMB: n.VolumeMB, Templates: n.Templates, Databases: n.Databases, Apps: n.Apps, Keys: n.Keys,
	}
}

// ListWorkspaces lists all workspaces, newest first (operators).
func (s *Orgs) ListWorkspaces(ctx context.Context, o core.ListOptions) (page []api.Workspace, next string, err error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.All(view, record.Workspaces), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, func(w *record.Workspace) api.Workspace { return s.workspace(view, w) }), next, nil
}

// ListTiers lists the tiers, by name (operators).
func (s *Orgs) ListTiers() []api.Tier {
	var out []api.Tier
	usual := s.core.Tiers.Name(&record.Workspace{})
	for _, name := range s.core.Tiers.Names() {
		out = append(out, api.Tier{Name: name, Default: name == usual, Quotas: api.Quotas(s.core.Tiers.Of(&record.Workspace{Tier: name}))})
	}
	return out
}

// CreateWorkspace creates a workspace without members (operators).
func (s *Orgs) CreateWorkspace(ctx context.Context, in api.CreateWorkspace, i core.Idempotency) (api.Workspace, error) {
	if err := validName(in.Name); err != nil {
		return api.Workspace{}, err
	}
	row := &record.Workspace{Meta: record.Meta{ID: newWorkspaceID()}, Name: in.Name}
	if err := s.change(row, api.PatchWorkspace{Tier: &in.Tier, Quotas: in.Quotas}); err != nil {
		return api.Workspace{}, err
	}
	return core.Once(ctx, s.core, core.Caller{UserID: core.ByOperator}, "POST /v1/admin/workspaces", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Workspace, error) {
			w, ok := raftstore.Get(view, record.Workspaces, key.ResourceID)
			if !ok {
				return api.Workspace{}, core.ErrKeyGone("workspace")
			}
			return s.workspace(view, w), nil
		},
		func(keyID string) (api.Workspace, error) { return s.createWorkspace(ctx, row, i, keyID) })
}

func (s *Orgs) createWorkspace(ctx context.Context, row *record.Workspace, i core.Idempotency, keyID string) (out api.Workspace, err error) {
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w := row.Clone()
		raftstore.Put(tx, record.Workspaces, w)
		core.InWorkspace(ctx, w.ID)
		core.Concerns(ctx, "workspaces/"+w.ID)
		out = s.workspace(tx, w)
		return core.ClaimAnswer(tx, s.core, i, keyID, w.ID, out)
	})
	return out, err
}

// PatchWorkspace changes a workspace (operators).
func (s *Orgs) PatchWorkspace(ctx context.Context, id string, in api.PatchWorkspace) (out api.Workspace, err error) {
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w, ok := raftstore.Get(tx, record.Workspaces, id)
		if !ok {
			return apierror.NotFound()
		}
		n := w.Clone()
		if err := s.change(n, in); err != nil {
			return err
		}
		raftstore.Put(tx, record.Workspaces, n)
		out = s.workspace(tx, n)
		return nil
	})
	return out, err
}

// change applies what an operator wants changed.
func (s *Orgs) change(w *record.Workspace, in api.PatchWorkspace) error {
	if in.Tier != nil {
		if *in.Tier != "" && !s.core.Tiers.Known(*in.Tier) {
			return apierror.Invalid("unknown tier", "the tiers are %s", strings.Join(s.core.Tiers.Names(), ", "))
		}
		w.Tier = *in.Tier
	}
	if in.Suspended != nil {
		w.Suspended = *in.Suspended
	}
	if in.Quotas != nil {
		q := record.Quotas(*in.Quotas)
		if err := q.Valid(); err != nil {
			return apierror.Invalid("invalid quotas", "%s", err)
		}
		w.Quotas = q.Clone()
	}
	if in.SubscriptionStatus != nil {
		switch st := record.SubscriptionStatus(*in.SubscriptionStatus); st {
		case "", record.SubscriptionActive, record.SubscriptionTrialing, record.SubscriptionPastDue, record.SubscriptionCanceled:
			w.SubscriptionStatus = st
		default:
			return apierror.Invalid("invalid subscription_status", "want active, trialing, past_due, canceled, or nothing")
		}
	}
	return nil
}

// CreateWorkspaceToken creates an API key of a workspace (operators). No member's
// leaving ends it.
func (s *Orgs) CreateWorkspaceToken(ctx context.Context, id string, in api.CreateToken, i core.Idempotency) (api.NewToken, error) {
	if err := validToken(in); err != nil {
		return api.NewToken{}, err
	}
	c := core.Caller{WorkspaceID: id, UserID: core.ByOperator}
	return core.Once(ctx, s.core, c, "POST /v1/admin/workspaces/{id}/tokens", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.NewToken, error) {
			return s.sameToken(view, c, key)
		},
		func(keyID string) (api.NewToken, error) { return s.createToken(ctx, c, in, i, keyID) })
}
