package org

import "time"

// Workspace is a tenant as one of its users sees it.
type Workspace struct {
	ID        string
	Name      string
	Suspended bool
	CreatedAt time.Time
}

// Profile is the signed-in user.
type Profile struct {
	UserID             string
	Email              string
	CurrentWorkspaceID string
	Workspaces         []Workspace
}

// Token is an API key's public part. Key is the whole key; it is set only in
// the answer to the create and never again.
type Token struct {
	Prefix    string
	Name      string
	Key       string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	CreatedBy string    // user id
}
