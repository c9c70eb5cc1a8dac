package controlplane

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// certificates are the certificates of the ports that clients connect to.
type certificates struct {
	public certs.Source // of the public API; nil: plain HTTP
	router certs.Source // of the PostgreSQL router; nil: no router
}

// certificates opens the certificates that have files.
func (c *Config) certificates(log *slog.Logger) (out certificates, err error) {
	files := func(name, cert, key string) (certs.Source, error) {
		f, err := certs.OpenFiles(cert, key, time.Now, log)
		if err != nil {
			return nil, fmt.Errorf("%s_CERT and %s_KEY: %w", name, name, err)
		}
		return f, nil
	}
	if c.TLSCert != "" {
		if out.public, err = files("BERTH_TLS", c.TLSCert, c.TLSKey); err != nil {
			return out, err
		}
	}
	switch {
	case c.DBDomain == "":
	case c.DBTLSCert != "":
		out.router, err = files("BERTH_DB_TLS", c.DBTLSCert, c.DBTLSKey)
	case c.DBDevCA != "":
		if out.router, err = certs.OpenDev(c.DBDevCA, c.DBDomain, time.Now); err != nil {
			return out, fmt.Errorf("BERTH_DB_DEV_CA: %w", err)
		}
		log.Warn("databases have certificates of an authority for development", "ca", filepath.Join(c.DBDevCA, certs.DevCAFile))
	case len(c.dnsNames()) == 0:
		if err = certs.Covers(out.public, "any."+c.DBDomain); err != nil {
			return out, fmt.Errorf("BERTH_DB_DOMAIN: the certificate of BERTH_TLS_CERT is not for *.%s; set BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY: %w", c.DBDomain, err)
		}
		out.router = out.public
	}
	return out, err
}

func (c *Config) checkACME() error {
	switch {
	case c.ACMEDirectory == "":
		return nil
	case !strings.HasPrefix(c.ACMEDirectory, "https://"):
		return fmt.Errorf("BERTH_ACME_DIRECTORY is %q, want an https URL", c.ACMEDirectory)
	case !c.acmeDNS() && len(c.ACMENames) == 0 && (c.TLSCert != "" || c.ownDomainPort()):
		return nil // for domains of apps alone
	case len(c.acmeNames()) == 0 && c.TLSCert == "":
		return errors.New("BERTH_ACME_DIRECTORY: there is nothing to get a certificate for: set BERTH_DB_DOMAIN, BERTH_PREVIEW_SUFFIX, BERTH_APP_SUFFIX or BERTH_ACME_NAMES")
	case c.ACMETSIGName == "" || c.ACMETSIGKey == "":
		return errors.New("BERTH_ACME_DIRECTORY needs BERTH_ACME_DNS_SERVER, BERTH_ACME_TSIG_NAME and BERTH_ACME_TSIG_KEY: names are proven in DNS")
	}
	if _, _, err := net.SplitHostPort(c.ACMEDNSServer); err != nil {
		return fmt.Errorf("BERTH_ACME_DNS_SERVER: %w", err)
	}
	if _, err := base64.StdEncoding.DecodeString(c.ACMETSIGKey); err != nil {
		return errors.New("BERTH_ACME_TSIG_KEY is not base64")
	}
	return nil
}

// acmeDNS reports whether names can be proven in DNS. Without that, ACME is for domains of
// apps alone.
func (c *Config) acmeDNS() bool {
	return c.ACMEDNSServer != "" || c.ACMETSIGName != "" || c.ACMETSIGKey != ""
}

// dnsNames are those of acmeNames that ACME gets.
func (c *Config) dnsNames() []string {
	if c.ACMEDirectory == "" || !c.acmeDNS() {
		return nil
	}
	return c.acmeNames()
}

// acmeNames returns the names that need a certificate from ACME, because no file has
// one.
func (c *Config) acmeNames() (out []string) {
	if c.TLSCert == "" {
		out = append(out, c.ACMENames...)
		for _, suffix := range []string{c.PreviewSuffix, c.AppSuffix} {
			if suffix != "" {
				out = append(out, "*."+strings.ToLower(suffix))
			}
		}
	}
	if c.DBDomain != "" && c.DBTLSCert == "" && c.DBDevCA == "" {
		out = append(out, "*."+strings.ToLower(c.DBDomain))
	}
	return out
}

// certificateEnds returns when the certificates of this replica end, and those of domains. Of
// several for the same port, which only ACME issues, the first counts.
func (s *Server) certificateEnds() map[string]time.Time {
	out := s.me.node.Certificate().Ends()
	add := func(what string, from certs.Source, names ...string) {
		for _, name := range names {
			cert, err := from.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
			if err != nil {
				continue // ACME has not issued it yet
			}
			if end, ok := out[what]; !ok || cert.Leaf.NotAfter.Before(end) {
				out[what] = cert.Leaf.NotAfter
			}
		}
	}
	switch {
	case s.certs.public == nil:
	case s.cfg.TLSCert != "":
		add("api", s.certs.public, "")
	default:
		add("api", s.certs.public, s.cfg.dnsNames()...)
	}
	if s.certs.router != nil {
		add("databases", s.certs.router, "*."+strings.ToLower(s.cfg.DBDomain))
	}
	for _, d := range s.renewed() {
		end := d.Certificate.ExpiresAt
		if first, ok := out["domains"]; (!ok || end.Before(first)) && time.Since(end) < leftAfter {
			out["domains"] = end
		}
	}
	return out
}

// leftAfter is how long the end of a domain's certificate may have been until certificateEnds
// does not count it: an owner who has led the domain elsewhere must not hide the others.
const leftAfter = 7 * 24 * time.Hour

// renewed returns the domains whose certificates are to be renewed by ACME.
func (s *Server) renewed() (out []*record.Domain) {
	if s.domainCerts == nil {
		return nil
	}
	for _, d := range raftstore.All(s.store.View(), record.Domains) {
		if d.Status == record.DomainVerified && !d.Certificate.ExpiresAt.IsZero() && !s.coveredName(d.Name) {
			out = append(out, d)
		}
	}
	return out
}

// failingRenewals returns how many certificates of domains could not be renewed at the last
// attempt.
func (s *Server) failingRenewals() (n float64) {
	for _, d := range s.renewed() {
		if d.Certificate.Error != "" {
			n++
		}
	}
	return n
}

// openACME gives ACME's certificates to the ports that have none from a file.
func (s *Server) openACME() (err error) {
	names := s.cfg.dnsNames()
	if len(names) == 0 {
		return nil
	}
	s.acme, err = certs.NewACME(certs.ACMEConfig{
		Directory: s.cfg.ACMEDirectory, Email: s.cfg.ACMEEmail, Roots: s.cfg.ACMERoots, Names: names,
		DNSServer: s.cfg.ACMEDNSServer, DNSResolvers: s.cfg.ACMEResolvers,
		TSIGName: s.cfg.ACMETSIGName, TSIGKey: s.cfg.ACMETSIGKey, TSIGAlg: s.cfg.ACMETSIGAlg,
		Store: s.store, Sealer: s.sealer, Clock: time.Now, Log: s.log,
	})
	if err != nil {
		return err
	}
	if s.certs.public == nil {
		s.certs.public = s.acme
	}
	if s.certs.router == nil {
		s.certs.router = s.acme
	}
	return nil
}
