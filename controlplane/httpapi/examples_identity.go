package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleOrg = api.Org{ID: "ws-q5t3nz7k", Name: "Ada's", Role: api.RoleOwner, Tier: "pro", CreatedAt: exampleAt}
	exampleMe  = api.Me{
		ID: "u-7b2kq4xm", Email: "ada@example.com",
		CurrentOrg: &exampleOrg, Orgs: []api.Org{exampleOrg},
	}
	exampleToken = api.Token{Prefix: "k3v7q2xa", Name: "laptop", Scopes: []string{"read-only", "sandboxes"}, CreatedAt: exampleAt}

	exampleMember     = api.Member{UserID: "usr-7b2kq4xmn3p6s5t2w7y4z3c6", Email: "grace@example.com", Role: api.RoleMember}
	exampleInvitation = api.Invitation{
		ID: "inv-c5x2n7w4k3q6z5t2m7jd", OrgID: exampleOrg.ID, Email: "grace@example.com", Role: api.RoleMember, CreatedAt: exampleAt,
		ExpiresAt: api.Time{Time: exampleAt.AddDate(0, 0, 7)},
	}
	exampleNewInvitation = api.NewInvitation{
		Invitation: exampleInvitation, Token: "binv_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk",
		Link: "https://api.example.com/v1/invitations/binv_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk",
	}
	exampleWorkspace = api.Workspace{
		ID: "ws-q5t3nz7k", Name: "Ada's", Tier: "free", SubscriptionStatus: "active",
		Quotas: api.Quotas{Sandboxes: new(40)}, Limits: api.Quotas{Sandboxes: new(40), CPU: new(16), MemoryMB: new(16384)},
		Usage: api.WorkspaceUsage{Sandboxes: 3, CPU: 4, MemoryMB: 4096, DiskMB: 40960, Members: 2, CreatesPerHour: 12, Snapshots: 1, VolumeMB: 1024, Databases: 1, Apps: 2, Keys: 3}, CreatedAt: exampleAt,
	}
)
