package api

// Org is a workspace as its members see it.
type Org struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Suspended bool   `json:"suspended"` // creates are refused with 403
	CreatedAt Time   `json:"created_at"`
}

// Me is the answer of GET /v1/me: the person behind a JWT.
type Me struct {
	ID         string `json:"id"`
	Email      string `json:"email"`       // empty where the issuer does not tell it
	CurrentOrg *Org   `json:"current_org"` // in which the JWT acts; null for a member of none
	Orgs       []Org  `json:"orgs"`
}

// SetCurrentOrg is the body of POST /v1/me/current-org.
type SetCurrentOrg struct {
	OrgID string `json:"org_id" minLength:"1"`
}

// CreateToken is the body of POST /v1/me/tokens.
type CreateToken struct {
	Name      string   `json:"name,omitempty" maxLength:"100"` // for people; need not be unique
	ExpiresAt *Time    `json:"expires_at,omitempty"`           // from then on the key is refused; default: never
	Scopes    []string `json:"scopes,omitempty" maxItems:"0"`  // there are none yet: a key may do all that its workspace may
}

// Token is an API key as lists show it.
type Token struct {
	Prefix    string `json:"prefix"` // 8 characters: the key is brt_<prefix>_<secret>
	Name      string `json:"name"`
	CreatedAt Time   `json:"created_at"`
	ExpiresAt *Time  `json:"expires_at"` // null: it is good until it is revoked
}

// NewToken is the answer of POST /v1/me/tokens. The key is shown this once.
type NewToken struct {
	Token
	Key string `json:"token"` // the whole key, brt_<prefix>_<secret>
}
