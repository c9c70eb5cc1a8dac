package record

import "time"

// DomainStatus is whether a workspace has proven that a name is its own.
type DomainStatus string

// A domain is pending until its TXT record has been seen. It is failed when that did not
// come in time, or has been gone for long; asking again makes it pending, or verified.
const (
	DomainPending  DomainStatus = "pending"
	DomainVerified DomainStatus = "verified"
	DomainFailed   DomainStatus = "failed"
)

// Domain is a workspace's claim of a host name for one of its apps. Several workspaces
// may claim a name; one alone has verified it.
type Domain struct {
	Meta
	WorkspaceID string       `json:"workspace_id"`
	AppID       string       `json:"app_id"`
	Name        string       `json:"name"` // in lower case, IDNs in their ASCII form, without a dot at the end
	Status      DomainStatus `json:"status"`
	Error       string       `json:"error,omitempty"` // what the last look found amiss
	Token       string       `json:"token"`           // the TXT record's value; public, as DNS is

	Since       time.Time `json:"since"`                  // when it became pending
	CheckedAt   time.Time `json:"checked_at,omitzero"`    // of the last look into DNS
	NextCheckAt time.Time `json:"next_check_at,omitzero"` // of the next one; zero: there is none to come
	Looks       int       `json:"looks,omitempty"`        // since it became pending, or since the record is missing
	VerifiedAt  time.Time `json:"verified_at,omitzero"`   // first
	MissingAt   time.Time `json:"missing_at,omitzero"`    // since when the record of a verified one is gone
	Certificate DomainTLS `json:"certificate,omitzero"`   // of those that come by ACME
}

// DomainTLS is how it stands with a domain's certificate. The certificate itself is a
// CertFile.
type DomainTLS struct {
	Error     string    `json:"error,omitempty"`    // why there is none, or none that is newer
	Tries     int       `json:"tries,omitempty"`    // orders in a row that led to none
	Ordering  bool      `json:"ordering,omitempty"` // an order is under way, unless its leader has died
	TriedAt   time.Time `json:"tried_at,omitzero"`  // beginning of the last order
	NextAt    time.Time `json:"next_at,omitzero"`   // before which there is no other order
	IssuedAt  time.Time `json:"issued_at,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero: there is none
}

// Clone returns a deep copy.
func (d *Domain) Clone() *Domain {
	c := *d
	return &c
}

// DomainDue is the value of the index "due" of what is due at a time.
func DomainDue(t time.Time) string { return WebhookDue(t) }
