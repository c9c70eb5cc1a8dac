package api

// Org is a workspace as its members see it.
type Org struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Role      Role   `json:"role"`      // of whom it is shown to
	Tier      string `json:"tier"`      // names its limits
	Suspended bool   `json:"suspended"` // creates are refused with 403
	CreatedAt Time   `json:"created_at"`
}

// OrgDetails is the answer to GET /v1/orgs/{id}.
type OrgDetails struct {
	Org
	Limits Quotas         `json:"limits"` // those that apply; absent: no limit
	Usage  WorkspaceUsage `json:"usage"`
}

// Me is the answer to GET /v1/me: the user of a JWT.
type Me struct {
	ID         string `json:"id"`
	Email      string `json:"email"`       // empty if the issuer does not provide it
	CurrentOrg *Org   `json:"current_org"` // the workspace in which the JWT acts; null if the user is a member of none
	Orgs       []Org  `json:"orgs"`
}

// SetCurrentOrg is the body of POST /v1/me/current-org.
type SetCurrentOrg struct {
	OrgID string `json:"org_id" minLength:"1"`
}

// CreateToken is the body of POST /v1/me/tokens.
type CreateToken struct {
	Name      string   `json:"name" minLength:"1" maxLength:"100"` // need not be unique
	ExpiresAt *Time    `json:"expires_at,omitempty"`               // the key is refused from then on; default: never
	Scopes    []string `json:"scopes,omitempty" maxItems:"20"`     // "all", "read-only", "sandboxes", "databases", "apps", "volumes", "webhooks", or "app:" and an id; the key may do what any one allows; default: "all"
}

// Token is an API key as lists show it.
type Token struct {
	Prefix     string   `json:"prefix"` // 8 characters: the key is brt_<prefix>_<secret>
	Name       string   `json:"name"`
	Scopes     []string `json:"scopes"`
	CreatedAt  Time     `json:"created_at"`
	ExpiresAt  *Time    `json:"expires_at"`   // null: valid until it is revoked
	LastUsedAt *Time    `json:"last_used_at"` // to the hour; null: it was never used
}

// NewToken is the answer to POST /v1/me/tokens. The key is shown only once.
type NewToken struct {
	Token
	Key string `json:"token"` // the complete key, brt_<prefix>_<secret>
}
