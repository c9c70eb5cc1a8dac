package certs

import (
	"crypto/tls"
	"sync"
	"time"
)

// Certificates of the development authorities, in their directories. Clients have to trust
// these.
const (
	DevCAFile       = "db-ca.pem"
	DevDomainCAFile = "domain-ca.pem"
)

// Validity of development certificates. A certificate is replaced when a third of its
// lifetime is left.
const (
	devCAValidity   = 10 * 365 * 24 * time.Hour
	devLeafValidity = 90 * 24 * time.Hour
	devClockSkew    = time.Hour
)

// Dev is a Source with a certificate of a development authority. The authority can sign
// for one domain only, so clients trust it for nothing else.
type Dev struct {
	domain string
	clock  func() time.Time
	ca     *devCA

	mu   sync.Mutex
	leaf *tls.Certificate
}

// OpenDev opens the authority in dir, or creates it, and issues a certificate for the
// names directly below domain.
func OpenDev(dir, domain string, clock func() time.Time) (*Dev, error) {
	ca, err := openDevCA(dir, devFiles{cert: DevCAFile, key: "db-ca.key", name: "berth development CA for " + domain, permitted: []string{domain}}, clock())
	if err != nil {
		return nil, err
	}
	d := &Dev{domain: domain, clock: clock, ca: ca}
	_, err = d.GetCertificate(nil)
	return d, err
}

// GetCertificate implements Source.
func (d *Dev) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock()
	if fresh(d.leaf, now) {
		return d.leaf, nil
	}
	leaf, err := d.ca.sign("*."+d.domain, now)
	if err != nil {
		return nil, err
	}
	d.leaf = leaf
	return leaf, nil
}

// DevDomains is a DomainSource that issues certificates on demand, with a development
// authority. The authority can sign for every domain, so nobody should trust it for longer
// than a trial.
type DevDomains struct {
	clock func() time.Time
	ca    *devCA

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// maxDevLeaves limits the certificates that are kept. Issuing one again costs a signature.
const maxDevLeaves = 256

// OpenDevDomains opens the authority in dir, or creates it.
func OpenDevDomains(dir string, clock func() time.Time) (*DevDomains, error) {
	ca, err := openDevCA(dir, devFiles{cert: DevDomainCAFile, key: "domain-ca.key", name: "berth development CA for domains of apps"}, clock())
	if err != nil {
		return nil, err
	}
	return &DevDomains{clock: clock, ca: ca, leaves: map[string]*tls.Certificate{}}, nil
}

// DomainCertificate implements DomainSource.
func (d *DevDomains) DomainCertificate(_ *tls.ClientHelloInfo, name string) (*tls.Certificate, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock()
	if leaf := d.leaves[name]; fresh(leaf, now) {
		return leaf, nil
	}
	leaf, err := d.ca.sign(name, now)
	if err != nil {
		return nil, err
	}
	if len(d.leaves) >= maxDevLeaves {
		clear(d.leaves)
	}
	d.leaves[name] = leaf
	return leaf, nil
}

// fresh reports whether a certificate need not be replaced yet.
func fresh(leaf *tls.Certificate, now time.Time) bool {
	return leaf != nil && now.Before(leaf.Leaf.NotAfter.Add(-devLeafValidity/3))
}
