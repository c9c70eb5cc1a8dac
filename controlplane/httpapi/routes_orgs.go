package httpapi

import (
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// orgRoutes are the routes of workspaces and their people, and the operator's of
// workspaces.
func orgRoutes() []route {
	orgLimit := apierror.Error{Code: apierror.EQuota, Message: "org limit reached: your free plan allows 1 org(s). Upgrade to create more."}
	unknownTier := apierror.Error{Code: apierror.EInvalid, Message: "unknown tier", Detail: "the tiers are free, pro, team, unlimited"}
	return []route{
		{get, "/v1/orgs", jwtOnly, (*API).listOrgs, operation{
			action: personal, id: "listOrgs", tag: "Organizations", summary: "List the organizations of which you are a member, newest first", list: true,
			status: 200, answer: []api.Org{exampleOrg},
		}},
		{post, "/v1/orgs", jwtOnly, (*API).createOrg, operation{
			action: personal, id: "createOrg", tag: "Organizations", summary: "Create an organization that you own",
			idempotent: true, body: api.CreateOrg{Name: "Ada's"}, status: 201, answer: exampleOrg,
			failures: append(refusals(apierror.EInvalid, "name is required", "invalid name"), orgLimit),
		}},
		{get, "/v1/orgs/:id", jwtOnly, (*API).getOrg, operation{
			id: "getOrg", tag: "Organizations", summary: "Read an organization, its limits and what it uses", status: 200,
			answer: api.OrgDetails{Org: exampleOrg, Limits: exampleWorkspace.Limits, Usage: exampleWorkspace.Usage},
		}},
		{patch, "/v1/orgs/:id", jwtOnly, (*API).patchOrg, operation{
			action: managing, id: "patchOrg", tag: "Organizations", summary: "Rename an organization",
			body: api.PatchOrg{Name: "Ada's"}, status: 200, answer: exampleOrg,
			failures: refusals(apierror.EInvalid, "name is required", "invalid name"),
		}},
		{del, "/v1/orgs/:id", jwtOnly, (*API).deleteOrg, operation{
			action: owning, id: "deleteOrg", tag: "Organizations", summary: "Delete an organization that has nothing left", status: 204,
			detail:   "Its keys, webhook endpoints, connections to GitHub, preview environments and memberships go with it.",
			failures: []apierror.Error{{Code: apierror.EForbidden, Message: "account suspended"}, {Code: apierror.EConflict, Message: "organization is not empty", Detail: "it has sandboxes: delete them first"}},
		}},
		{get, "/v1/orgs/:id/members", jwtOnly, (*API).listMembers, operation{
			id: "listMembers", tag: "Organizations", summary: "List an organization's people", list: true, status: 200, answer: []api.Member{exampleMember},
		}},
		{post, "/v1/orgs/:id/members", jwtOnly, (*API).invite, operation{
			action: managing, id: "inviteMember", tag: "Organizations", summary: "Invite a person by e-mail address",
			detail:     "No mail is sent: pass the link on. It works once, for seven days, for a JWT with that address.",
			idempotent: true,
			body:       api.Invite{Email: "grace@example.com"}, status: 201, answer: exampleNewInvitation,
			failures: append(refusals(apierror.EInvalid, "invalid email", "invalid role"),
				apierror.Error{Code: apierror.EConflict, Message: "already a member"},
				apierror.Error{Code: apierror.EQuota, Message: "seat limit reached: your free plan allows 3 member(s). Upgrade to invite more."},
				apierror.Error{Code: apierror.ERateLimited, Message: "max invitations reached", Fields: map[string]any{"max": 1000, "active": 1000}}),
		}},
		{patch, "/v1/orgs/:id/members/:user", jwtOnly, (*API).patchMember, operation{
			action: managing, id: "patchMember", tag: "Organizations", summary: "Change a member's role",
			body: api.PatchMember{Role: api.RoleMember}, status: 200, answer: exampleMember,
			failures: append(refusals(apierror.EInvalid, "invalid role"), apierror.Error{Code: apierror.EConflict, Message: "last owner", Detail: "make another member an owner first"}, orgLimit),
		}},
		{del, "/v1/orgs/:id/members/:user", jwtOnly, (*API).removeMember, operation{
			action: reading, id: "removeMember", tag: "Organizations", summary: "Remove a member, or leave", status: 204,
			detail:   "It takes the role admin or owner, except to leave. The keys and invitations that the person made for the organization end, too.",
			failures: []apierror.Error{{Code: apierror.EConflict, Message: "last owner", Detail: "make another member an owner first"}},
		}},
		{get, "/v1/orgs/:id/invitations", jwtOnly, (*API).listInvitations, operation{
			action: managing, id: "listInvitations", tag: "Organizations", summary: "List the invitations that can still be accepted, newest first", list: true,
			status: 200, answer: []api.Invitation{exampleInvitation},
		}},
		{del, "/v1/orgs/:id/invitations/:invitation", jwtOnly, (*API).revokeInvitation, operation{
			action: managing, id: "revokeInvitation", tag: "Organizations", summary: "Withdraw an invitation", status: 204,
		}},
		{post, "/v1/invitations/:token", jwtOnly, (*API).acceptInvitation, operation{
			action: personal, id: "acceptInvitation", tag: "Organizations", summary: "Accept an invitation",
			body: api.Empty{}, status: 200, answer: exampleOrg,
			failures: []apierror.Error{{Code: apierror.EQuota, Message: "seat limit reached: your free plan allows 3 member(s). Upgrade to invite more."}, orgLimit},
		}},

		{get, "/v1/admin/tiers", operator, (*API).listTiers, operation{
			id: "listTiers", tag: "Administration", summary: "List the tiers of workspaces by name, as they were read last",
			status: 200, answer: []api.Tier{{Name: "free", Default: true, Quotas: api.Quotas{Sandboxes: new(10), Members: new(3)}}, {Name: "unlimited"}},
		}},
		{get, "/v1/admin/workspaces", operator, (*API).listWorkspaces, operation{
			id: "listWorkspaces", tag: "Administration", summary: "List the workspaces, their limits and what they use, newest first", list: true,
			status: 200, answer: []api.Workspace{exampleWorkspace},
		}},
		{post, "/v1/admin/workspaces", operator, (*API).createWorkspace, operation{
			id: "createWorkspace", tag: "Administration", summary: "Create a workspace",
			idempotent: true, body: api.CreateWorkspace{Name: "Ada's", Tier: "free"}, status: 201, answer: exampleWorkspace,
			failures: append(refusals(apierror.EInvalid, "name is required", "invalid name", "invalid quotas"), unknownTier),
		}},
		{patch, "/v1/admin/workspaces/:id", operator, (*API).patchWorkspace, operation{
			id: "patchWorkspace", tag: "Administration", summary: "Change a workspace's limits, or suspend it",
			body: api.PatchWorkspace{Tier: new("free"), Quotas: &api.Quotas{Sandboxes: new(40)}}, status: 200, answer: exampleWorkspace,
			failures: append(refusals(apierror.EInvalid, "invalid quotas", "invalid subscription_status"), unknownTier),
		}},
		{post, "/v1/admin/workspaces/:id/tokens", operator, (*API).createWorkspaceToken, operation{
			id: "createWorkspaceToken", tag: "Administration", summary: "Create an API key of a workspace",
			detail:     "So that a first key needs no identity provider. No member's leaving ends it.",
			idempotent: true,
			body:       api.CreateToken{Name: "laptop", Scopes: []string{"read-only", "sandboxes"}}, status: 201,
			answer: api.NewToken{Token: exampleToken, Key: "brt_k3v7q2xa_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk"},
			failures: append(refusals(apierror.EInvalid, "name is required", "invalid name", "invalid expires_at", "invalid scopes"),
				apierror.Error{Code: apierror.ERateLimited, Message: "max keys reached", Fields: map[string]any{"max": 10, "active": 10}}),
		}},
	}
}
