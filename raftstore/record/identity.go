package record

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Workspace is what owns resources, and whose members may use them.
type Workspace struct {
	Meta
	Name      string `json:"name"`
	Suspended bool   `json:"suspended,omitempty"` // blocked from creating compute (403 account suspended)
	// Tier names its limits; empty: the default tier.
	Tier string `json:"tier,omitempty"`
	// Quotas take the place of its tier's, each for itself.
	Quotas Quotas `json:"quotas,omitzero"`
	// SubscriptionStatus is what billing says; empty: there is no subscription.
	SubscriptionStatus SubscriptionStatus `json:"subscription_status,omitempty"`
	// PausedAt is since when its compute is stopped, because the month's free credit is
	// spent; zero: it is not.
	PausedAt time.Time `json:"paused_at,omitzero"`
	// CustomerID is the workspace's at the provider of payments, once that was found.
	CustomerID string `json:"customer_id,omitempty"`
}

// Clone returns a deep copy.
func (w *Workspace) Clone() *Workspace {
	c := *w
	c.Quotas = w.Quotas.Clone()
	return &c
}

// SubscriptionStatus is the state of a workspace's subscription.
type SubscriptionStatus string

// With one that is past due or canceled, what runs goes on and creates are refused.
const (
	SubscriptionActive   SubscriptionStatus = "active"
	SubscriptionTrialing SubscriptionStatus = "trialing"
	SubscriptionPastDue  SubscriptionStatus = "past_due"
	SubscriptionCanceled SubscriptionStatus = "canceled"
)

// Creates counts a workspace's creates of sandboxes in the last hour. The id is the
// workspace's. A workspace without an hourly limit has no row.
type Creates struct {
	Meta
	Seconds []byte `json:"seconds"` // see limits.Hour
}

// User is a person known by the subject of a JWT; the id is derived from
// issuer and subject.
type User struct {
	Meta
	Issuer             string   `json:"issuer"`
	Subject            string   `json:"subject"`
	Email              string   `json:"email,omitempty"`
	WorkspaceIDs       []string `json:"workspace_ids"`
	CurrentWorkspaceID string   `json:"current_workspace_id"` // empty if it is a member of none
	// SignedInAt is when the newest JWT was issued that was seen; see org.SignedIn.
	SignedInAt time.Time `json:"signed_in_at,omitzero"`
	// Roles are those other than owner, by workspace.
	Roles map[string]Role `json:"roles,omitempty"`
	// DeletedMonth is the latest month, as of MonthOf, in which workspaces were deleted that
	// the user owned and that had used something of that month, and Deleted how many.
	DeletedMonth string `json:"deleted_month,omitempty"`
	Deleted      int    `json:"deleted,omitempty"`
}

// Role says what a member may do in a workspace.
type Role string

// The roles, in descending order of their rights.
const (
	RoleOwner  Role = "owner"
	RoleAdmin  Role = "admin"
	RoleMember Role = "member"
	RoleViewer Role = "viewer"
)

// RoleIn returns the user's role in a workspace, and whether there is one.
func (u *User) RoleIn(workspaceID string) (Role, bool) {
	if !slices.Contains(u.WorkspaceIDs, workspaceID) {
		return "", false
	}
	return u.RoleAmong(workspaceID), true
}

// RoleAmong is RoleIn for a workspace that is known to be among WorkspaceIDs, which it does
// not search: for who looks at all of them.
func (u *User) RoleAmong(workspaceID string) Role {
	if r, ok := u.Roles[workspaceID]; ok {
		return r
	}
	return RoleOwner
}

// Join makes the user a member with a role, or changes the role.
func (u *User) Join(workspaceID string, r Role) {
	if !slices.Contains(u.WorkspaceIDs, workspaceID) {
		u.WorkspaceIDs = append(u.WorkspaceIDs, workspaceID)
	}
	delete(u.Roles, workspaceID)
	if r != RoleOwner {
		if u.Roles == nil {
			u.Roles = map[string]Role{}
		}
		u.Roles[workspaceID] = r
	}
	if u.CurrentWorkspaceID == "" {
		u.CurrentWorkspaceID = workspaceID
	}
}

// Leave ends the membership.
func (u *User) Leave(workspaceID string) {
	u.WorkspaceIDs = slices.DeleteFunc(u.WorkspaceIDs, func(id string) bool { return id == workspaceID })
	delete(u.Roles, workspaceID)
	if u.CurrentWorkspaceID == workspaceID {
		u.CurrentWorkspaceID = ""
		if len(u.WorkspaceIDs) > 0 {
			u.CurrentWorkspaceID = u.WorkspaceIDs[0]
		}
	}
}

// DeletedIn returns how many workspaces with usage of a month the user has deleted in it.
func (u *User) DeletedIn(month string) int {
	if u.DeletedMonth != month {
		return 0
	}
	return u.Deleted
}

// Clone returns a deep copy.
func (u *User) Clone() *User {
	c := *u
	c.WorkspaceIDs = append([]string(nil), u.WorkspaceIDs...)
	c.Roles = maps.Clone(u.Roles)
	return &c
}

// APIKey is a workspace's credential brt_<prefix>_<secret>. Only a digest of
// the whole key is kept.
type APIKey struct {
	Meta
	WorkspaceID string    `json:"workspace_id"`
	Name        string    `json:"name,omitempty"`
	Prefix      string    `json:"prefix"` // 8 characters, unique
	SHA256      []byte    `json:"sha256"`
	CreatedBy   string    `json:"created_by,omitempty"` // user id, or "operator"
	ExpiresAt   time.Time `json:"expires_at,omitzero"`  // zero: it is good until it is revoked
	// Scopes say what it may do; empty: everything that its workspace's members may.
	Scopes     []string  `json:"scopes,omitempty"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"` // written at most once an hour
}

// Clone returns a deep copy.
func (k *APIKey) Clone() *APIKey {
	c := *k
	c.SHA256, c.Scopes = slices.Clone(k.SHA256), slices.Clone(k.Scopes)
	return &c
}

// Invitation lets one person join a workspace, once. The id is the hex SHA-256 of the
// token in its link.
type Invitation struct {
	Meta
	PublicID    string    `json:"public_id"` // in lists, where the id would not help a thief but confuse a reader
	WorkspaceID string    `json:"workspace_id"`
	Email       string    `json:"email"`
	Role        Role      `json:"role"`
	InvitedBy   string    `json:"invited_by,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// JoinToken lets one host obtain its certificate, once. The id is the hex
// SHA-256 of the token.
type JoinToken struct {
	Meta
	ExpiresAt time.Time `json:"expires_at"`
	UsedBy    string    `json:"used_by,omitempty"` // agent id
	UsedAt    time.Time `json:"used_at,omitzero"`
}

// IdempotencyKey remembers what a create made, and what it answered. The id is the hex
// SHA-256 of workspace, route and key.
type IdempotencyKey struct {
	Meta
	BodySHA256 []byte          `json:"body_sha256"`
	ResourceID string          `json:"resource_id"`
	Result     json.RawMessage `json:"result,omitempty"` // what the answer said beyond the resource's own row
	ExpiresAt  time.Time       `json:"expires_at"`
	// By is who sent the create, and Key the hex SHA-256 of workspace and key, by which every
	// route finds it. Both are empty in a row of an earlier version.
	By  string `json:"by,omitempty"`
	Key string `json:"key,omitempty"`
	// Answer is the body of the create's answer, compressed and sealed. It is empty before
	// there is one, if it is too large to be kept, and in a row of an earlier version.
	Answer []byte `json:"answer,omitempty"`
	// WorkspaceID is whose key it is: a workspace's, or a person's who is a member of none.
	// Empty: an operator's, or the row is of an earlier version.
	WorkspaceID string `json:"workspace_id,omitempty"`
}

// Clone returns a deep copy.
func (k *IdempotencyKey) Clone() *IdempotencyKey {
	c := *k
	c.BodySHA256, c.Result, c.Answer = slices.Clone(k.BodySHA256), slices.Clone(k.Result), slices.Clone(k.Answer)
	return &c
}
