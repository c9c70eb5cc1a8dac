package api

import (
	"context"
	"net/http"
)

// ListOrgs returns one page of the organizations of which the user of the JWT is a
// member.
func (c *Client) ListOrgs(ctx context.Context, p Page) ([]Org, string, error) {
	return page[Org](ctx, c, p, Version, "orgs")
}

// CreateOrg creates an organization that the user of the JWT owns.
func (c *Client) CreateOrg(ctx context.Context, in CreateOrg) (*Org, error) {
	cl, err := post(in, Version, "orgs")
	if err != nil {
		return nil, err
	}
	return into[Org](ctx, c, cl)
}

// GetOrg reads one organization, its limits and what it uses (JWT only).
func (c *Client) GetOrg(ctx context.Context, id string) (*OrgDetails, error) {
	return into[OrgDetails](ctx, c, get(Version, "orgs", id))
}

// PatchOrg renames an organization (JWT only).
func (c *Client) PatchOrg(ctx context.Context, id string, in PatchOrg) (*Org, error) {
	return patchInto[Org](ctx, c, in, Version, "orgs", id)
}

// DeleteOrg deletes an organization that has nothing left (JWT only).
func (c *Client) DeleteOrg(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "orgs", id))
}

// ListMembers returns one page of an organization's people (JWT only).
func (c *Client) ListMembers(ctx context.Context, orgID string, p Page) ([]Member, string, error) {
	return page[Member](ctx, c, p, Version, "orgs", orgID, "members")
}

// InviteMember invites a person by e-mail address (JWT only). The link is only in this
// answer.
func (c *Client) InviteMember(ctx context.Context, orgID string, in Invite) (*NewInvitation, error) {
	cl, err := post(in, Version, "orgs", orgID, "members")
	if err != nil {
		return nil, err
	}
	return into[NewInvitation](ctx, c, cl)
}

// PatchMember changes a member's role (JWT only).
func (c *Client) PatchMember(ctx context.Context, orgID, userID string, in PatchMember) (*Member, error) {
	return patchInto[Member](ctx, c, in, Version, "orgs", orgID, "members", userID)
}

// RemoveMember ends a membership (JWT only).
func (c *Client) RemoveMember(ctx context.Context, orgID, userID string) error {
	return c.done(ctx, remove(Version, "orgs", orgID, "members", userID))
}

// ListInvitations returns one page of the invitations that can still be accepted (JWT
// only).
func (c *Client) ListInvitations(ctx context.Context, orgID string, p Page) ([]Invitation, string, error) {
	return page[Invitation](ctx, c, p, Version, "orgs", orgID, "invitations")
}

// RevokeInvitation withdraws an invitation (JWT only).
func (c *Client) RevokeInvitation(ctx context.Context, orgID, id string) error {
	return c.done(ctx, remove(Version, "orgs", orgID, "invitations", id))
}

// AcceptInvitation makes the user of the JWT a member.
func (c *Client) AcceptInvitation(ctx context.Context, token string) (*Org, error) {
	cl, err := post(Empty{}, Version, "invitations", token)
	if err != nil {
		return nil, err
	}
	return into[Org](ctx, c, cl)
}

// ListWorkspaces returns one page of the workspaces (operators only).
func (c *Client) ListWorkspaces(ctx context.Context, p Page) ([]Workspace, string, error) {
	return page[Workspace](ctx, c, p, Version, "admin", "workspaces")
}

// ListTiers returns the tiers of workspaces, as the replica that answers has read them
// (operators only).
func (c *Client) ListTiers(ctx context.Context) ([]Tier, error) {
	out, err := into[[]Tier](ctx, c, get(Version, "admin", "tiers"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// CreateWorkspace creates a workspace without members (operators only).
func (c *Client) CreateWorkspace(ctx context.Context, in CreateWorkspace) (*Workspace, error) {
	cl, err := post(in, Version, "admin", "workspaces")
	if err != nil {
		return nil, err
	}
	return into[Workspace](ctx, c, cl)
}

// PatchWorkspace changes a workspace's limits, or suspends it (operators only).
func (c *Client) PatchWorkspace(ctx context.Context, id string, in PatchWorkspace) (*Workspace, error) {
	return patchInto[Workspace](ctx, c, in, Version, "admin", "workspaces", id)
}

// CreateWorkspaceToken creates an API key of a workspace (operators only).
func (c *Client) CreateWorkspaceToken(ctx context.Context, id string, in CreateToken) (*NewToken, error) {
	cl, err := post(in, Version, "admin", "workspaces", id, "tokens")
	if err != nil {
		return nil, err
	}
	return into[NewToken](ctx, c, cl)
}

// patchInto sends a PATCH, which may be repeated, and returns its answer.
func patchInto[T any](ctx context.Context, c *Client, in any, segments ...string) (*T, error) {
	cl, err := post(in, segments...)
	if err != nil {
		return nil, err
	}
	cl.method, cl.safe = http.MethodPatch, true
	return into[T](ctx, c, cl)
}
