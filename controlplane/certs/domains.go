package certs

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// DomainSource provides the certificates of domains. It is called only for a name that a
// workspace has verified, and returns nil if the name has no certificate.
type DomainSource interface {
	DomainCertificate(hello *tls.ClientHelloInfo, name string) (*tls.Certificate, error)
}

// DomainsConfig describes the ACME server that issues the certificates of domains, and
// limits the orders.
type DomainsConfig struct {
	Directory string // URL of the ACME server's directory
	Email     string
	Roots     string // PEM file with the server's own CA; empty: the system's
	// HTTP and TLS enable the challenges that this cluster can answer: http-01 on port
	// 80, and tls-alpn-01 in the handshake on port 443.
	HTTP, TLS bool
	// Covered reports whether another certificate covers a name; nil: none does.
	Covered func(name string) bool

	Store  Store
	Sealer Sealer
	Clock  func() time.Time
	Log    *slog.Logger

	Delays  []time.Duration // after consecutive failed orders; the last delay repeats; default from 5 minutes to a day
	PerHour int             // orders of the service an hour; default 80
	Each    int             // orders of one workspace an hour, without renewals; default 20
	Look    time.Duration   // interval between two checks for due orders; default 10 s
}

// maxServed limits the certificates that are kept ready for handshakes.
const maxServed = 8192

// Domains gets the certificates of domains with ACME. The leader orders them, only for
// verified names: a handshake never starts an order. Challenges and certificates are rows
// of the control store, so every replica can answer with them.
type Domains struct {
	cfg    DomainsConfig
	rows   *rows
	client *acme.Client
	prefix string // of the rows of this authority

	mu     sync.Mutex
	served map[string]*issued
}

// NewDomains returns a source of the certificates in the store. Its Loops put them there.
func NewDomains(cfg DomainsConfig) (*Domains, error) {
	if len(cfg.Delays) == 0 {
		cfg.Delays = []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour}
	}
	if cfg.PerHour == 0 {
		cfg.PerHour = 80 // Let's Encrypt: 300 orders in three hours
	}
	if cfg.Each == 0 {
		cfg.Each = 20
	}
	if cfg.Look == 0 {
		cfg.Look = 10 * time.Second
	}
	d := &Domains{cfg: cfg, rows: &rows{store: cfg.Store, sealer: cfg.Sealer, clock: cfg.Clock}, served: map[string]*issued{}}
	sum := sha256.Sum256([]byte(cfg.Directory + "\x00" + cfg.Email))
	d.prefix = domainFiles + hex.EncodeToString(sum[:8]) + "/"
	var roots *x509.CertPool
	if cfg.Roots != "" {
		raw, err := os.ReadFile(cfg.Roots)
		if err != nil {
			return nil, fmt.Errorf("CA of the ACME server: %w", err)
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("CA of the ACME server: %s is not PEM", cfg.Roots)
		}
	}
	d.client = newClient(cfg.Directory, roots)
	return d, nil
}

// Keys of the files of domains, which share a table with certmagic's files.
const (
	domainFiles      = "domains/"
	domainCerts      = "certificates/"
	domainChallenges = "challenges/"
	domainAccount    = "account"
)

func (d *Domains) certKey(name string) string      { return d.prefix + domainCerts + name }
func (d *Domains) challengeKey(name string) string { return d.prefix + domainChallenges + name }

// pairFile is a certificate with its key. Both are in one row, so they always match.
type pairFile struct {
	Chain []byte `json:"chain"` // PEM, the certificate first
	Key   []byte `json:"key"`   // PEM
}

// alpnChallenge is the protocol that an ACME server offers in a tls-alpn-01 handshake
// (RFC 8737).
const alpnChallenge = "acme-tls/1"

// DomainCertificate implements DomainSource.
func (d *Domains) DomainCertificate(hello *tls.ClientHelloInfo, name string) (*tls.Certificate, error) {
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == alpnChallenge {
		return d.answerTLS(hello.Context(), name)
	}
	row, err := d.rows.row(d.certKey(name))
	if err != nil {
		return nil, nil // none yet: the client is told the same as for an unknown name
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.served[name]
	if known != nil && known.cert == row.ModifyIndex {
		return known.pair, nil
	}
	pair, err := d.open(row)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	if len(d.served) >= maxServed {
		clear(d.served)
	}
	d.served[name] = &issued{cert: row.ModifyIndex, pair: pair}
	return pair, nil
}

func (d *Domains) open(row *record.CertFile) (*tls.Certificate, error) {
	raw, err := d.rows.open(row)
	if err != nil {
		return nil, err
	}
	var f pairFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(f.Chain, f.Key)
	return &pair, err
}

// ordering reports whether name is a verified domain with an order under way.
func ordering(r raftstore.Reader, name string) bool {
	rows := raftstore.Find(r, record.Domains, "verified", name)
	return len(rows) > 0 && rows[0].Certificate.Ordering
}

// challenge returns the challenge of a name that has an order under way. It waits up to
// challengeWait, because this copy of the store may be a moment behind the leader's.
func (d *Domains) challenge(ctx context.Context, name string, is func(c acme.Challenge) bool) (acme.Challenge, bool) {
	ctx, cancel := context.WithTimeout(ctx, challengeWait)
	defer cancel()
	for {
		view := d.cfg.Store.View()
		if !ordering(view, name) {
			return acme.Challenge{}, false
		}
		if row, ok := raftstore.Get(view, record.CertFiles, d.challengeKey(name)); ok {
			var c acme.Challenge
			raw, err := d.rows.open(row)
			if err == nil && json.Unmarshal(raw, &c) == nil && is(c) {
				return c, true
			}
		}
		select {
		case <-view.Changed(record.CertFiles.Name, record.Domains.Name):
		case <-ctx.Done():
			return acme.Challenge{}, false
		}
	}
}

func (d *Domains) answerTLS(ctx context.Context, name string) (*tls.Certificate, error) {
	c, ok := d.challenge(ctx, name, func(c acme.Challenge) bool { return c.Type == acme.ChallengeTypeTLSALPN01 })
	if !ok {
		return nil, nil
	}
	return acmez.TLSALPN01ChallengeCert(c)
}

// PathChallenge is the prefix of the paths at which an ACME server looks for answers (RFC
// 8555, 8.3).
const PathChallenge = "/.well-known/acme-challenge/"

// AnswerHTTP returns what an ACME server expects at a path of a verified domain. It
// returns false if the path belongs to the app.
func (d *Domains) AnswerHTTP(ctx context.Context, name, path string) (string, bool) {
	token, ok := strings.CutPrefix(path, PathChallenge)
	if !ok || token == "" {
		return "", false
	}
	c, ok := d.challenge(ctx, name, func(c acme.Challenge) bool { return c.Type == acme.ChallengeTypeHTTP01 && c.Token == token })
	return c.KeyAuthorization, ok
}
