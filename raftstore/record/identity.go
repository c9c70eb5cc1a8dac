package record

import (
	"encoding/json"
	"slices"
	"time"
)

// Workspace is what owns resources, and whose members may use them.
type Workspace struct {
	Meta
	Name      string `json:"name"`
	Suspended bool   `json:"suspended,omitempty"` // blocked from creating compute (403 account suspended)
}

// User is a person known by the subject of a JWT; the id is derived from
// issuer and subject.
type User struct {
	Meta
	Issuer             string   `json:"issuer"`
	Subject            string   `json:"subject"`
	Email              string   `json:"email,omitempty"`
	WorkspaceIDs       []string `json:"workspace_ids"`
	CurrentWorkspaceID string   `json:"current_workspace_id"`
}

// Clone returns a deep copy.
func (u *User) Clone() *User {
	c := *u
	c.WorkspaceIDs = append([]string(nil), u.WorkspaceIDs...)
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
	CreatedBy   string    `json:"created_by,omitempty"` // user id
	ExpiresAt   time.Time `json:"expires_at,omitzero"`  // zero: it is good until it is revoked
}

// JoinToken lets one host obtain its certificate, once. The id is the hex
// SHA-256 of the token.
type JoinToken struct {
	Meta
	ExpiresAt time.Time `json:"expires_at"`
	UsedBy    string    `json:"used_by,omitempty"` // agent id
	UsedAt    time.Time `json:"used_at,omitzero"`
}

// IdempotencyKey remembers what a create made. The id is the hex SHA-256 of
// workspace, route and key.
type IdempotencyKey struct {
	Meta
	BodySHA256 []byte          `json:"body_sha256"`
	ResourceID string          `json:"resource_id"`
	Result     json.RawMessage `json:"result,omitempty"` // what the answer said beyond the resource's own row
	ExpiresAt  time.Time       `json:"expires_at"`
}

// Clone returns a deep copy.
func (k *IdempotencyKey) Clone() *IdempotencyKey {
	c := *k
	c.BodySHA256, c.Result = slices.Clone(k.BodySHA256), slices.Clone(k.Result)
	return &c
}
