package domain

import (
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/raftstore/record"
)

// show is a domain as its workspace sees it.
func (s *Domains) show(d *record.Domain) api.AppDomain {
	out := api.AppDomain{
		Domain: d.Name, AppID: d.AppID, Status: api.DomainStatus(d.Status), Error: d.Error, URL: s.cfg.URL(d.Name),
		DNS: s.records(d), Certificate: s.certificate(d),
		CheckedAt: api.NewTime(d.CheckedAt), NextCheckAt: api.NewTime(d.NextCheckAt), VerifiedAt: api.NewTime(d.VerifiedAt),
		CreatedAt: api.Time{Time: d.CreatedAt},
	}
	return out
}

// records are what has to be in DNS.
func (s *Domains) records(d *record.Domain) []api.DNSRecord {
	out := []api.DNSRecord{{Type: "TXT", Name: proofLabel + "." + d.Name, Value: d.Token}}
	if s.cfg.Target != nil {
		kind := "CNAME"
		if apex(d.Name) {
			kind = "ALIAS"
		}
		out = append(out, api.DNSRecord{Type: kind, Name: d.Name, Value: s.cfg.Target(d.AppID)})
	}
	return out
}

// errNoAuthority is the certificate's error where the service can get none.
const errNoAuthority = "this service has no ACME server from which it gets certificates: the domain is served without TLS alone"

func (s *Domains) certificate(d *record.Domain) api.DomainCertificate {
	c := d.Certificate
	out := api.DomainCertificate{Status: api.CertificateIssued}
	switch {
	case d.Status != record.DomainVerified:
		out.Status = api.CertificateNone
	case s.cfg.Covered != nil && s.cfg.Covered(d.Name), s.cfg.Authority == Development:
	case s.cfg.Authority == NoAuthority:
		out.Status, out.Error = api.CertificateUnavailable, errNoAuthority
	case !c.ExpiresAt.IsZero() && s.core.Clock().Before(c.ExpiresAt):
		out.ExpiresAt, out.Error = api.NewTime(c.ExpiresAt), c.Error // of a renewal that fails
	case c.Error != "":
		out.Status, out.Error = api.CertificateFailed, c.Error
	default:
		out.Status = api.CertificatePending
	}
	return out
}
