package api

// DomainStatus is whether a domain has been proven to be its workspace's.
type DomainStatus string

// A domain is pending until its TXT record is seen, and verified from then on. It is
// failed when the record does not come within a week, or is gone for three days.
const (
	DomainPending  DomainStatus = "pending"
	DomainVerified DomainStatus = "verified"
	DomainFailed   DomainStatus = "failed"
)

// CertificateStatus is how it stands with the certificate of a domain.
type CertificateStatus string

// There is none for a domain that is not verified, and it is unavailable where the
// service has no authority that issues any. A failed one is tried again.
const (
	CertificateNone        CertificateStatus = "none"
	CertificatePending     CertificateStatus = "pending"
	CertificateIssued      CertificateStatus = "issued"
	CertificateFailed      CertificateStatus = "failed"
	CertificateUnavailable CertificateStatus = "unavailable"
)

// AppDomain is a host name of its workspace's own at which an app is served.
type AppDomain struct {
	Domain      string            `json:"domain"` // in its ASCII form
	AppID       string            `json:"app_id"`
	Status      DomainStatus      `json:"status"`
	Error       string            `json:"error,omitempty"` // what is amiss in DNS
	URL         string            `json:"url"`             // where the app is, once it is verified
	DNS         []DNSRecord       `json:"dns"`             // what has to be in DNS
	Certificate DomainCertificate `json:"certificate"`
	CheckedAt   *Time             `json:"checked_at"`    // null: not yet
	NextCheckAt *Time             `json:"next_check_at"` // null: nobody looks again by himself
	VerifiedAt  *Time             `json:"verified_at"`
	CreatedAt   Time              `json:"created_at"`
}

// DNSRecord is what a domain's owner sets in DNS. A TXT record proves the domain; the
// other one leads to the app. It is an ALIAS for a domain at which DNS allows no CNAME:
// providers call it so, or ANAME, or flatten a CNAME.
type DNSRecord struct {
	Type  string `json:"type"` // "TXT", "CNAME" or "ALIAS"
	Name  string `json:"name"`
	Value string `json:"value"`
}

// DomainCertificate is the state of a domain's certificate.
type DomainCertificate struct {
	Status    CertificateStatus `json:"status"`
	Error     string            `json:"error,omitempty"`
	ExpiresAt *Time             `json:"expires_at"` // null: there is none
}

// CreateAppDomain is the body of POST /v1/apps/{id}/domains. An internationalized name
// may be in either form.
type CreateAppDomain struct {
	Domain string `json:"domain" maxLength:"253"`
}
