package main

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// The plane's one organization, in which everybody is the owner.
var planeOrg = api.Org{ID: "ws-1", Name: "Ada's", Role: api.RoleOwner, Tier: "free", CreatedAt: api.Time{Time: time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)}}

func (p *planeIdentity) Enter(c core.Caller, id string) (core.Caller, error) {
	if id != planeOrg.ID {
		return c, apierror.NotFound()
	}
	c.WorkspaceID, c.Role = id, "owner"
	return c, nil
}

func (p *planeIdentity) NotSuspended(core.Caller, core.Idempotency) error { return nil }

func (p *planeIdentity) ListOrgs(context.Context, core.Caller, core.ListOptions) ([]api.Org, string, error) {
	return []api.Org{planeOrg}, "", nil
}

func (p *planeIdentity) CreateOrg(_ context.Context, _ core.Caller, in api.CreateOrg, _ core.Idempotency) (api.Org, error) {
	return api.Org{ID: "ws-2", Name: in.Name}, nil
}

func (p *planeIdentity) GetOrg(context.Context, core.Caller, string) (api.OrgDetails, error) {
	return api.OrgDetails{Org: planeOrg, Limits: api.Quotas{Sandboxes: new(10), CPU: new(-1), Orgs: new(1)}, Usage: api.WorkspaceUsage{Sandboxes: 3, CPU: 4}}, nil
}

func (p *planeIdentity) PatchOrg(context.Context, core.Caller, string, api.PatchOrg) (api.Org, error) {
	return planeOrg, nil
}

func (p *planeIdentity) DeleteOrg(context.Context, core.Caller, string) error {
	return &apierror.Error{Code: apierror.EConflict, Message: "organization is not empty", Detail: "it has sandboxes: delete them first"}
}

func (p *planeIdentity) ListMembers(context.Context, core.Caller, string, core.ListOptions) ([]api.Member, string, error) {
	return []api.Member{{UserID: "usr-1", Email: "ada@example.com", Role: api.RoleOwner}}, "", nil
}

func (p *planeIdentity) Invite(_ context.Context, _ core.Caller, org string, in api.Invite, _ core.Idempotency) (api.NewInvitation, error) {
	return api.NewInvitation{Invitation: api.Invitation{ID: "inv-1", OrgID: org, Email: in.Email, Role: *in.Role}, Token: "binv_t", Link: "/v1/invitations/binv_t"}, nil
}

func (p *planeIdentity) PatchMember(_ context.Context, _ core.Caller, _, user string, in api.PatchMember) (api.Member, error) {
	return api.Member{UserID: user, Role: in.Role}, nil
}

func (p *planeIdentity) RemoveMember(_ context.Context, _ core.Caller, _, user string) error {
	if user != "usr-1" {
		return apierror.NotFound()
	}
	return &apierror.Error{Code: apierror.EConflict, Message: "last owner"}
}

func (p *planeIdentity) ListInvitations(context.Context, core.Caller, string, core.ListOptions) ([]api.Invitation, string, error) {
	return []api.Invitation{{ID: "inv-1", Email: "grace@example.com", Role: api.RoleViewer}}, "", nil
}

func (p *planeIdentity) RevokeInvitation(_ context.Context, _ core.Caller, _, id string) error {
	if id != "inv-1" {
		return apierror.NotFound()
	}
	return nil
}

func (p *planeIdentity) AcceptInvitation(_ context.Context, _ core.Caller, token string) (api.Org, error) {
	if token != "binv_t" {
		return api.Org{}, apierror.NotFound()
	}
	return planeOrg, nil
}

func (p *planeIdentity) ListTiers() []api.Tier {
	return []api.Tier{
		{Name: "free", Default: true, Quotas: api.Quotas{Sandboxes: new(10), DiskMB: new(2048), RequestsBurst: new(5)}},
		{Name: "open", Quotas: api.Quotas{RequestsPerSecond: new(-1)}},
	}
}

func (p *planeIdentity) ListWorkspaces(context.Context, core.ListOptions) ([]api.Workspace, string, error) {
	return []api.Workspace{{ID: "ws-1", Name: "Ada's", Tier: "free", Suspended: true, Limits: api.Quotas{Sandboxes: new(10)}, Usage: api.WorkspaceUsage{Sandboxes: 3}}}, "", nil
}

func (p *planeIdentity) CreateWorkspace(_ context.Context, in api.CreateWorkspace, _ core.Idempotency) (api.Workspace, error) {
	return api.Workspace{ID: "ws-3", Name: in.Name, Tier: in.Tier}, nil
}

func (p *planeIdentity) PatchWorkspace(_ context.Context, id string, in api.PatchWorkspace) (api.Workspace, error) {
	w := api.Workspace{ID: id, Suspended: core.OrZero(in.Suspended), Tier: core.OrZero(in.Tier)}
	if in.Quotas != nil {
		w.Quotas = *in.Quotas
	}
	return w, nil
}

func (p *planeIdentity) CreateWorkspaceToken(_ context.Context, _ string, in api.CreateToken, _ core.Idempotency) (api.NewToken, error) {
	return api.NewToken{Token: api.Token{Prefix: "prefix", Name: in.Name, Scopes: in.Scopes}, Key: "brt_operators"}, nil
}

func scopesOf(in api.CreateToken) []string {
	if len(in.Scopes) == 0 {
		return []string{"all"}
	}
	return in.Scopes
}
