package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/rfc2136"
	"go.uber.org/zap"
)

// ACMEConfig describes an ACME authority and the names to get certificates for.
type ACMEConfig struct {
	Directory string // URL of the authority's directory
	Email     string
	Roots     string   // PEM file with the authority's own CA; empty: the system's
	Names     []string // each gets a certificate; may be a wildcard, "*.example.com"

	// TXT records prove the names. They are set on a DNS server with updates by RFC
	// 2136, signed with a key (TSIG).
	DNSServer    string // host:port
	TSIGName     string
	TSIGKey      string // base64
	TSIGAlg      string // "hmac-sha256"
	DNSResolvers []string

	Store  Store
	Sealer Sealer
	Clock  func() time.Time
	Log    *slog.Logger
}

const (
	// renewEvery is how often certificates are checked. After a failure, a name is left
	// alone for firstRetry, and up to lastRetry after more failures: authorities limit
	// failures.
	renewEvery  = time.Minute
	firstRetry  = time.Minute
	lastRetry   = time.Hour
	obtainLimit = 10 * time.Minute
	txtTTL      = time.Minute
)

// ACME gets certificates from an authority that speaks ACME (RFC 8555). The leader orders
// them and keeps them in the control store, from which every replica serves them.
type ACME struct {
	cfg    ACMEConfig
	rows   *rows
	roots  *x509.CertPool
	issuer string // the authority's name in certmagic's storage keys

	mu     sync.Mutex
	served map[string]*issued
	failed map[string]failure // used by Keep only
}

// issued is a certificate as read from the store.
type issued struct {
	cert, key uint64 // ModifyIndex of the rows
	pair      *tls.Certificate
}

// failure tells when a name is tried again.
type failure struct {
	after time.Duration
	at    time.Time
}

// NewACME returns a source of the certificates in the store. Run keeps them there.
func NewACME(cfg ACMEConfig) (*ACME, error) {
	a := &ACME{
		cfg: cfg, rows: &rows{store: cfg.Store, sealer: cfg.Sealer, clock: cfg.Clock, locks: map[string]chan struct{}{}},
		served: map[string]*issued{}, failed: map[string]failure{},
	}
	if cfg.Roots != "" {
		raw, err := os.ReadFile(cfg.Roots)
		if err != nil {
			return nil, fmt.Errorf("CA of the ACME server (BERTH_ACME_CA): %w", err)
		}
		if a.roots = x509.NewCertPool(); !a.roots.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("CA of the ACME server (BERTH_ACME_CA): %s is not PEM", cfg.Roots)
		}
	}
	return a, a.with(func(_ *certmagic.Config, i *certmagic.ACMEIssuer) error {
		a.issuer = i.IssuerKey()
		return nil
	})
}

// errNotYet is returned for a name that the authority has not issued a certificate for yet.
var errNotYet = errors.New("there is no certificate yet")

// GetCertificate implements Source. For a name that no certificate covers it returns the
// first certificate, so that the client can be told why it is refused.
func (a *ACME) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := a.cfg.Names[0]
	asked := strings.ToLower(hello.ServerName)
	_, parent, _ := strings.Cut(asked, ".")
	for _, n := range a.cfg.Names {
		if n == asked || n == "*."+parent {
			name = n
			break
		}
	}
	return a.current(name)
}

// current returns the certificate in the store. While its two rows do not match, as
// between the two writes, current returns the previous certificate.
func (a *ACME) current(name string) (*tls.Certificate, error) {
	cert, cerr := a.rows.row(certmagic.StorageKeys.SiteCert(a.issuer, name))
	key, kerr := a.rows.row(certmagic.StorageKeys.SitePrivateKey(a.issuer, name))
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.served[name]
	if cerr != nil || kerr != nil {
		return nil, fmt.Errorf("%s: %w", name, errNotYet)
	}
	if known != nil && known.cert == cert.ModifyIndex && known.key == key.ModifyIndex {
		return known.pair, nil
	}
	certPEM, err := a.rows.open(cert)
	if err == nil {
		var keyPEM []byte
		if keyPEM, err = a.rows.open(key); err == nil {
			var pair tls.Certificate
			if pair, err = tls.X509KeyPair(certPEM, keyPEM); err == nil {
				a.served[name] = &issued{cert.ModifyIndex, key.ModifyIndex, &pair}
				return &pair, nil
			}
		}
	}
	if known != nil {
		return known.pair, nil
	}
	return nil, fmt.Errorf("certificate of %s: %w", name, err)
}

// Run gets the certificates that are missing and renews those with a third of their
// lifetime left, until ctx ends. Call it while this replica leads.
func (a *ACME) Run(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		a.Keep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Keep makes one pass of Run.
func (a *ACME) Keep(ctx context.Context) {
	for _, name := range a.cfg.Names {
		if ctx.Err() != nil || !a.due(name) {
			continue
		}
		err := a.get(ctx, name)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			delete(a.failed, name)
			a.cfg.Log.InfoContext(ctx, "certificate obtained", "name", name)
			continue
		}
		f := failure{after: min(2*a.failed[name].after, lastRetry)}
		f.after = max(f.after, firstRetry)
		f.at = a.cfg.Clock().Add(f.after)
		a.failed[name] = f
		a.cfg.Log.ErrorContext(ctx, "certificate not obtained", "name", name, "again_at", f.at, "error", err)
	}
}

func (a *ACME) due(name string) bool {
	now := a.cfg.Clock()
	if f, ok := a.failed[name]; ok && now.Before(f.at) {
		return false
	}
	pair, err := a.current(name)
	if err != nil {
		return true
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	return now.After(pair.Leaf.NotAfter.Add(-life / 3))
}

func (a *ACME) get(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, obtainLimit)
	defer cancel()
	return a.with(func(cfg *certmagic.Config, _ *certmagic.ACMEIssuer) error {
		if _, err := a.current(name); err == nil {
			return cfg.RenewCertSync(ctx, name, true)
		}
		return cfg.ObtainCertSync(ctx, name)
	})
}

// with runs f with a new certmagic configuration and stops its cache afterwards. The cache
// has a goroutine and holds nothing that is needed for longer.
func (a *ACME) with(f func(*certmagic.Config, *certmagic.ACMEIssuer) error) error {
	quiet := zap.NewNop() // failures are returned
	var cfg *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return cfg, nil }, Logger: quiet,
	})
	defer cache.Stop()
	cfg = certmagic.New(cache, certmagic.Config{Storage: a.rows, Logger: quiet, DisableStorageCheck: true, DisableARI: true, OCSP: certmagic.OCSPConfig{DisableStapling: true}})
	issuer := certmagic.NewACMEIssuer(cfg, certmagic.ACMEIssuer{
		CA: a.cfg.Directory, Email: a.cfg.Email, Agreed: true, TrustedRoots: a.roots, Logger: quiet,
		DisableHTTPChallenge: true, DisableTLSALPNChallenge: true,
		DNS01Solver: &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
			DNSProvider: &rfc2136.Provider{KeyName: a.cfg.TSIGName, KeyAlg: a.cfg.TSIGAlg, Key: a.cfg.TSIGKey, Server: a.cfg.DNSServer},
			TTL:         txtTTL, Resolvers: a.cfg.DNSResolvers, Logger: quiet,
		}},
	})
	cfg.Issuers = []certmagic.Issuer{issuer}
	return f(cfg, issuer)
}
