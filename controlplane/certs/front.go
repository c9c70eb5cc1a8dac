package certs

import "crypto/tls"

// Front is the Source of a port that serves domains, alone or besides the service's own
// names.
type Front struct {
	Own      Source                  // nil: none
	Domains  DomainSource            // nil: domains have no certificates
	IsDomain func(name string) bool  // reports whether a workspace has verified a name
	Name     func(sni string) string // returns the form in which a name is kept
	Covered  func(name string) bool  // reports whether Own has a certificate for a name; nil: no
}

// GetCertificate implements Source. For a domain without a certificate it returns none, so
// the handshake fails with unrecognized_name (RFC 6066) instead of showing a certificate
// for another name.
func (f *Front) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := f.Name(hello.ServerName)
	domain := name != "" && f.IsDomain(name)
	switch {
	case domain && f.Domains != nil && len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == alpnChallenge:
		return f.Domains.DomainCertificate(hello, name)
	case domain && f.Covered != nil && f.Covered(name):
		return f.Own.GetCertificate(hello)
	case domain && f.Domains != nil:
		return f.Domains.DomainCertificate(hello, name)
	case domain, f.Own == nil:
		return nil, nil
	}
	return f.Own.GetCertificate(hello)
}

// Protocols returns the ALPN protocols of a port that also answers tls-alpn-01 challenges.
// It returns nil for any other port.
func (f *Front) Protocols() []string {
	if _, ok := f.Domains.(*Domains); ok {
		return []string{"h2", "http/1.1", alpnChallenge}
	}
	return nil
}
