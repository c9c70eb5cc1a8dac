package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/domain"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/stall"
)

// Domains contains the settings of apps' domains.
type Domains struct {
	DomainURL       string   `env:"BERTH_DOMAIN_URL"`       // pattern of their URLs; default https://{domain}/
	DomainResolvers []string `env:"BERTH_DOMAIN_RESOLVERS"` // host:port of the DNS servers that are asked for proofs; default: the system's
	DomainListen    string   `env:"BERTH_DOMAIN_LISTEN"`    // port for domains by TLS; default: the public API's, if that is TLS
	HTTPListen      string   `env:"BERTH_HTTP_LISTEN"`      // port without TLS, for challenges and redirects; empty: none
	DomainDevCA     string   `env:"BERTH_DOMAIN_DEV_CA"`    // directory of a development CA, which is created if missing

	// Listeners for tests, on ports that the system chose.
	DomainListener net.Listener `env:"-"`
	HTTPListener   net.Listener `env:"-"`
}

func (c *Config) checkDomains() error {
	for _, port := range []struct {
		name, address string
		listener      net.Listener
	}{{"BERTH_DOMAIN_LISTEN", c.DomainListen, c.DomainListener}, {"BERTH_HTTP_LISTEN", c.HTTPListen, c.HTTPListener}} {
		if port.address == "" || port.listener != nil {
			continue
		}
		if _, _, err := net.SplitHostPort(port.address); err != nil {
			return fmt.Errorf("%s: %w", port.name, err)
		}
	}
	for _, r := range c.DomainResolvers {
		if _, _, err := net.SplitHostPort(r); err != nil {
			return fmt.Errorf("BERTH_DOMAIN_RESOLVERS: %w", err)
		}
	}
	switch {
	case c.DomainURL != "" && !strings.Contains(c.DomainURL, "{domain}"):
		return fmt.Errorf("BERTH_DOMAIN_URL is %q, want a pattern with {domain}", c.DomainURL)
	case c.ownDomainPort() && c.ACMEDirectory == "" && c.DomainDevCA == "":
		return errors.New("BERTH_DOMAIN_LISTEN needs BERTH_ACME_DIRECTORY, from which domains get certificates; for development BERTH_DOMAIN_DEV_CA")
	case c.DomainDevCA != "" && !c.ownDomainPort() && !c.publicTLS():
		return errors.New("BERTH_DOMAIN_DEV_CA needs BERTH_DOMAIN_LISTEN, or TLS of the public API")
	}
	return nil
}

func (c *Config) ownDomainPort() bool { return c.DomainListen != "" || c.DomainListener != nil }

func (c *Config) httpPort() bool { return c.HTTPListen != "" || c.HTTPListener != nil }

// publicTLS reports whether the port of the public API is TLS.
func (c *Config) publicTLS() bool {
	return c.TLSCert != "" || c.ACMEDirectory != "" && len(c.dnsNames()) > 0
}

// domainAuthority is what makes the certificates of domains.
func (c *Config) domainAuthority() domain.Authority {
	switch {
	case !c.ownDomainPort() && !c.publicTLS():
		return domain.NoAuthority // there is no port for them
	case c.DomainDevCA != "":
		return domain.Development
	case c.ACMEDirectory != "":
		return domain.ACME
	}
	return domain.NoAuthority
}

// domainURL is where the app of a domain is.
func (c *Config) domainURL(name string) string {
	pattern := c.DomainURL
	switch {
	case pattern != "":
	case c.domainAuthority() == domain.NoAuthority && !c.publicTLS():
		pattern = "http://{domain}/"
	default:
		pattern = "https://{domain}/"
	}
	return strings.ReplaceAll(pattern, "{domain}", name)
}

// resolver asks the DNS servers of the settings, in turn.
func (c *Config) resolver() *net.Resolver {
	r := &net.Resolver{PreferGo: true}
	if len(c.DomainResolvers) > 0 {
		var next atomic.Uint32
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, c.DomainResolvers[int(next.Add(1)-1)%len(c.DomainResolvers)])
		}
	}
	return r
}

// newDomains creates the use cases of domains, and the source of their certificates.
func (s *Server) newDomains(c *core.Core) (*domain.Domains, error) {
	cfg := domain.Config{
		Resolver: s.cfg.resolver(), URL: s.cfg.domainURL, Authority: s.cfg.domainAuthority(),
		Suffixes: []string{s.cfg.PreviewSuffix, s.cfg.AppSuffix, s.cfg.DBDomain}, Own: s.ownName, Covered: s.coveredName,
	}
	if s.cfg.AppSuffix != "" {
		cfg.Target = func(appID string) string { return appID + "." + s.cfg.AppSuffix }
	}
	return domain.New(c, cfg), s.openDomainCerts(cfg.Authority)
}

func (s *Server) openDomainCerts(a domain.Authority) (err error) {
	switch a {
	case domain.Development:
		if s.domainTLS, err = certs.OpenDevDomains(s.cfg.DomainDevCA, time.Now); err != nil {
			return fmt.Errorf("BERTH_DOMAIN_DEV_CA: %w", err)
		}
		s.log.Warn("domains have certificates of an authority for development", "ca", filepath.Join(s.cfg.DomainDevCA, certs.DevDomainCAFile))
	case domain.ACME:
		s.domainCerts, err = certs.NewDomains(certs.DomainsConfig{
			Directory: s.cfg.ACMEDirectory, Email: s.cfg.ACMEEmail, Roots: s.cfg.ACMERoots,
			HTTP: s.cfg.httpPort() || !s.cfg.publicTLS(), TLS: true, Covered: s.coveredName,
			Store: s.store, Sealer: s.sealer, Clock: time.Now, Log: s.log,
		})
		s.domainTLS = s.domainCerts
	}
	return err
}

// coveredName reports whether the certificate of the public API covers a name: then a
// domain needs no other.
func (s *Server) coveredName(name string) bool {
	return s.certs.public != nil && certs.Covers(s.certs.public, name) == nil
}

// ownName reports whether a name is the public API's. What a wildcard covers is not.
func (s *Server) ownName(name string) bool {
	if slices.ContainsFunc(s.cfg.ACMENames, func(n string) bool { return strings.EqualFold(n, name) }) {
		return true
	}
	return s.certs.public != nil && slices.Contains(certs.Names(s.certs.public, name), name)
}

// findDomain reads whose a verified domain is.
func (s *Server) findDomain(name string) (appID string, ok bool) {
	d, ok := domain.Verified(s.store.View(), name)
	if !ok {
		return "", false
	}
	return d.AppID, true
}

// front is the source of certificates of a port with domains; own is nil for a port that
// has nothing else.
func (s *Server) front(own certs.Source) *certs.Front {
	f := &certs.Front{Own: own, Domains: s.domainTLS, IsDomain: s.edge.IsDomain, Name: edge.DomainName}
	if own != nil {
		f.Covered = s.coveredName
	}
	return f
}

func tlsConfig(f *certs.Front) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.GetCertificate, NextProtos: f.Protocols()}
}

// listenDomains opens the ports beside the public API's.
func (s *Server) listenDomains(ctx context.Context) (err error) {
	if s.domainPort = s.cfg.DomainListener; s.domainPort == nil && s.cfg.DomainListen != "" {
		if s.domainPort, err = listen(ctx, "BERTH_DOMAIN_LISTEN", s.cfg.DomainListen); err != nil {
			return err
		}
	}
	if s.plainPort = s.cfg.HTTPListener; s.plainPort == nil && s.cfg.HTTPListen != "" {
		s.plainPort, err = listen(ctx, "BERTH_HTTP_LISTEN", s.cfg.HTTPListen)
	}
	return err
}

// openDomainPorts creates the servers of these ports.
func (s *Server) openDomainPorts() {
	if s.domainPort != nil {
		s.domainServer = httpapi.NewServer(http.HandlerFunc(s.serveDomain), s.log)
		s.domainServer.TLSConfig = tlsConfig(s.front(nil))
	}
	if s.plainPort != nil {
		s.plainServer = httpapi.NewServer(http.HandlerFunc(s.servePlain), s.log)
	}
}

// serveDomain serves the port of domains, at which there is nothing else.
func (s *Server) serveDomain(w http.ResponseWriter, r *http.Request) {
	s.arrive(r)
	if s.edge.Misdirected(r) {
		s.edge.RefuseMisdirected(w, r)
		return
	}
	s.edge.ServeHTTP(w, r) // it answers 404 for names that it does not serve
}

// servePlain serves the port without TLS: it answers ACME servers, and sends everybody
// else to the same page by TLS. A domain that can have no TLS is served here.
func (s *Server) servePlain(w http.ResponseWriter, r *http.Request) {
	s.arrive(r)
	if s.answerChallenge(w, r) {
		return
	}
	name := edge.DomainName(r.Host)
	switch {
	case s.edge.IsDomain(r.Host):
		if s.domainTLS == nil && !s.coveredName(name) {
			s.edge.ServeHTTP(w, r)
			return
		}
		redirect(w, r, s.cfg.domainURL(name))
	case s.edge.Belongs(r.Host) && s.certs.public != nil:
		redirect(w, r, "https://"+name+"/")
	default:
		stall.Rest(w, r)
		http.Error(w, "not found", http.StatusNotFound)
	}
}

// redirect sends a client to the same path below a URL, which ends with a slash. It
// sends the same request there, with its method and body.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	stall.Rest(w, r)
	http.Redirect(w, r, strings.TrimSuffix(to, "/")+"/"+strings.TrimPrefix(r.URL.RequestURI(), "/"), http.StatusPermanentRedirect)
}

// answerChallenge answers an ACME server that looks for the proof of a domain, at any
// port.
func (s *Server) answerChallenge(w http.ResponseWriter, r *http.Request) bool {
	if s.domainCerts == nil || !strings.HasPrefix(r.URL.Path, certs.PathChallenge) || !s.edge.IsDomain(r.Host) {
		return false
	}
	answer, ok := s.domainCerts.AnswerHTTP(r.Context(), edge.DomainName(r.Host), r.URL.Path)
	if !ok {
		return false
	}
	stall.Rest(w, r)
	w.Header().Set("Content-Type", "application/octet-stream") // RFC 8555, 8.3
	_, _ = w.Write([]byte(answer))
	return true
}
