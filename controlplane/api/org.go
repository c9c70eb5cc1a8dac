package api

// Role says what a member may do in an organization.
type Role string

// The roles, in descending order of their rights.
const (
	RoleOwner  Role = "owner"  // everything, also delete the organization
	RoleAdmin  Role = "admin"  // everything but what concerns owners
	RoleMember Role = "member" // use and change what the organization has
	RoleViewer Role = "viewer" // read
)

// CreateOrg is the body of POST /v1/orgs.
type CreateOrg struct {
	Name string `json:"name" minLength:"1" maxLength:"100"`
}

// PatchOrg is the body of PATCH /v1/orgs/{id}.
type PatchOrg struct {
	Name string `json:"name" minLength:"1" maxLength:"100"`
}

// Member is a person in an organization.
type Member struct {
	UserID string `json:"user_id"`
	Email  string `json:"email"` // empty if the issuer does not provide it
	Role   Role   `json:"role"`
}

// Invite is the body of POST /v1/orgs/{id}/members.
type Invite struct {
	Email string `json:"email" minLength:"3" maxLength:"255"`
	Role  *Role  `json:"role,omitempty" enum:"owner,admin,member,viewer"` // default: member
}

// Invitation is one that has not been accepted yet.
type Invitation struct {
	ID        string `json:"id"`
	OrgID     string `json:"org_id"`
	Email     string `json:"email"`
	Role      Role   `json:"role"`
	CreatedAt Time   `json:"created_at"`
	ExpiresAt Time   `json:"expires_at"`
}

// NewInvitation is the answer to POST /v1/orgs/{id}/members. The link is shown only
// once, and works once.
type NewInvitation struct {
	Invitation
	Token string `json:"token"` // what the link contains
	Link  string `json:"link"`  // where the invited person sends a POST with a JWT
}

// PatchMember is the body of PATCH /v1/orgs/{id}/members/{user}.
type PatchMember struct {
	Role Role `json:"role" enum:"owner,admin,member,viewer"`
}

// Quotas limit what a workspace has; docs/limits.md says what each counts. Absent: as
// the tier says; -1: no limit.
type Quotas struct {
	Sandboxes      *int `json:"sandboxes,omitempty" minimum:"-1"`
	CreatesPerHour *int `json:"creates_per_hour,omitempty" minimum:"-1"` // of sandboxes, also of those that are gone
	CPU            *int `json:"cpu,omitempty" minimum:"-1"`              // of sandboxes that are not hibernated
	MemoryMB       *int `json:"memory_mb,omitempty" minimum:"-1"`        // likewise
	Snapshots      *int `json:"snapshots,omitempty" minimum:"-1"`
	VolumeMB       *int `json:"volume_mb,omitempty" minimum:"-1"`
	DiskMB         *int `json:"disk_mb,omitempty" minimum:"-1"` // of sandboxes, databases, snapshots and volumes together
	Templates      *int `json:"templates,omitempty" minimum:"-1"`
	Builds         *int `json:"builds,omitempty" minimum:"-1"` // at once
	Databases      *int `json:"databases,omitempty" minimum:"-1"`
	Apps           *int `json:"apps,omitempty" minimum:"-1"`
	AppInstances   *int `json:"app_instances,omitempty" minimum:"-1"` // of one app at once, whatever its max_instances
	Keys           *int `json:"keys,omitempty" minimum:"-1"`
	Members        *int `json:"members,omitempty" minimum:"-1"`
	Orgs           *int `json:"orgs,omitempty" minimum:"-1"` // that an owner of this one may own

	// Of requests. Absent also in the tier: 25 per second, with bursts of 50.
	RequestsPerSecond *int `json:"requests_per_second,omitempty" minimum:"-1"`
	RequestsBurst     *int `json:"requests_burst,omitempty" minimum:"-1"`

	// Of a month; docs/billing.md explains them.
	CreditCents        *int `json:"monthly_credit_cents,omitempty" minimum:"-1"` // that may be used without a subscription, in cents of USD
	BudgetCents        *int `json:"monthly_budget_cents,omitempty" minimum:"-1"` // that may be used at all, likewise
	CPUSecondsPerMonth *int `json:"monthly_cpu_seconds,omitempty" minimum:"-1"`  // processor time that is used
}

// Tier is a row of the table of tiers that the operator edits.
type Tier struct {
	Name    string `json:"name"`
	Default bool   `json:"default"` // of the workspaces that have none
	Quotas  Quotas `json:"quotas"`
}

// WorkspaceUsage is what a workspace has now, by the names of the quotas that limit it.
type WorkspaceUsage struct {
	Sandboxes int `json:"sandboxes"` // without those of apps and databases
	CPU       int `json:"cpu"`       // of those that are not hibernated
	MemoryMB  int `json:"memory_mb"` // likewise
	DiskMB    int `json:"disk_mb"`   // of sandboxes, databases, snapshots and volumes together
	Members   int `json:"members"`

	CreatesPerHour int `json:"creates_per_hour"` // of sandboxes in the last hour; 0 where no quota has them counted
	Snapshots      int `json:"snapshots"`
	VolumeMB       int `json:"volume_mb"`
	Templates      int `json:"templates"`
	Databases      int `json:"databases"`
	Apps           int `json:"apps"` // and functions
	Keys           int `json:"keys"` // that have not expired
}

// Workspace is an organization as an operator sees it.
type Workspace struct {
	ID                 string         `json:"id"`
	Name               string         `json:"name"`
	Tier               string         `json:"tier"`
	Suspended          bool           `json:"suspended"`           // creates are refused with 403
	SubscriptionStatus string         `json:"subscription_status"` // empty, "active", "trialing", "past_due" or "canceled"; creates are refused with 402 for the last two
	Quotas             Quotas         `json:"quotas"`              // its own, which take the place of the tier's
	Limits             Quotas         `json:"limits"`              // those that apply
	Usage              WorkspaceUsage `json:"usage"`
	PausedAt           *Time          `json:"paused_at,omitempty"` // since when its compute is stopped, because the month's free credit is spent
	CreatedAt          Time           `json:"created_at"`
}

// CreateWorkspace is the body of POST /v1/admin/workspaces.
type CreateWorkspace struct {
	Name   string  `json:"name" minLength:"1" maxLength:"100"`
	Tier   string  `json:"tier,omitempty"` // default: the default tier
	Quotas *Quotas `json:"quotas,omitempty"`
}

// PatchWorkspace is the body of PATCH /v1/admin/workspaces/{id}. What is absent stays.
type PatchWorkspace struct {
	Tier               *string `json:"tier,omitempty"` // empty: the default tier
	Suspended          *bool   `json:"suspended,omitempty"`
	Quotas             *Quotas `json:"quotas,omitempty"` // all of its own
	SubscriptionStatus *string `json:"subscription_status,omitempty" enum:",active,trialing,past_due,canceled"`
}
