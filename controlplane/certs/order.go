package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

var (
	// orderLimit is how long one order may take. challengeWait is how long a replica waits
	// for the answer to the challenge of an order under way.
	orderLimit    = timescale.Limit(3 * time.Minute)
	challengeWait = timescale.Limit(time.Second)
	cleanUpLimit  = timescale.Limit(5 * time.Second)
	// tellTime is how long replicas have to hear of a commit: several times what Raft
	// takes. An ACME server may ask any replica, and counts every missing answer.
	tellTime = timescale.Limit(500 * time.Millisecond)
)

// maxPair limits the size of a certificate with its chain, in bytes of PEM.
const maxPair = 64 << 10

func newClient(directory string, roots *x509.CertPool) *acme.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	return &acme.Client{
		Directory: directory, HTTPClient: &http.Client{Transport: transport, Timeout: timescale.Limit(30 * time.Second)},
		UserAgent: "berth", PollTimeout: orderLimit,
	}
}

// order gets a certificate for a name.
func (d *Domains) order(ctx context.Context, name string) (pairFile, *x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, orderLimit)
	defer cancel()
	account, err := d.account(ctx)
	if err != nil {
		return pairFile{}, nil, fmt.Errorf("account: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pairFile{}, nil, err
	}
	c := acmez.Client{Client: d.client, ChallengeSolvers: map[string]acmez.Solver{}}
	if d.cfg.HTTP {
		c.ChallengeSolvers[acme.ChallengeTypeHTTP01] = solver{d, name}
	}
	if d.cfg.TLS {
		c.ChallengeSolvers[acme.ChallengeTypeTLSALPN01] = solver{d, name}
	}
	chains, err := c.ObtainCertificateForSANs(ctx, account, key, []string{name})
	var problem acme.Problem
	if errors.As(err, &problem) && problem.Type == acme.ProblemTypeAccountDoesNotExist {
		err = errors.Join(err, d.rows.drop(ctx, d.prefix+domainAccount)) // the next order creates a new account
	}
	if err != nil {
		return pairFile{}, nil, err
	}
	if len(chains) == 0 {
		return pairFile{}, nil, errors.New("the ACME server has sent no certificate")
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return pairFile{}, nil, err
	}
	f := pairFile{Chain: chains[0].ChainPEM, Key: keyPEM}
	if len(f.Chain) > maxPair {
		return pairFile{}, nil, fmt.Errorf("the certificate has %d bytes, at most %d", len(f.Chain), maxPair)
	}
	pair, err := tls.X509KeyPair(f.Chain, f.Key)
	if err != nil {
		return pairFile{}, nil, fmt.Errorf("the certificate: %w", err)
	}
	return f, pair.Leaf, pair.Leaf.VerifyHostname(name)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// accountFile is an ACME account with its key.
type accountFile struct {
	Account acme.Account `json:"account"`
	Key     []byte       `json:"key"` // PKCS #8
}

// account returns the account that all domains share, and creates it if there is none. If
// two orders create one at once, the last one remains; the other is never used again.
func (d *Domains) account(ctx context.Context) (acme.Account, error) {
	raw, err := d.rows.Load(ctx, d.prefix+domainAccount)
	if errors.Is(err, fs.ErrNotExist) {
		return d.newAccount(ctx)
	}
	if err != nil {
		return acme.Account{}, err
	}
	var f accountFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return acme.Account{}, err
	}
	key, err := x509.ParsePKCS8PrivateKey(f.Key)
	if err != nil {
		return acme.Account{}, err
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return acme.Account{}, fmt.Errorf("its key is a %T", key)
	}
	f.Account.PrivateKey = signer
	return f.Account, nil
}

func (d *Domains) newAccount(ctx context.Context) (acme.Account, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return acme.Account{}, err
	}
	in := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if d.cfg.Email != "" {
		in.Contact = []string{"mailto:" + d.cfg.Email}
	}
	account, err := d.client.NewAccount(ctx, in)
	if err != nil {
		return acme.Account{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return acme.Account{}, err
	}
	raw, err := json.Marshal(accountFile{account, der})
	if err != nil {
		return acme.Account{}, err
	}
	return account, d.rows.Store(ctx, d.prefix+domainAccount, raw)
}

// solver publishes the answer to a challenge to all replicas through the store.
type solver struct {
	d    *Domains
	name string
}

// errNoDomain is returned for a name that is no longer a verified domain.
var errNoDomain = errors.New("it is no verified domain any more")

var _ acmez.Waiter = solver{}

// Present implements acmez.Solver.
func (s solver) Present(ctx context.Context, c acme.Challenge) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	key := s.d.challengeKey(s.name)
	sealed, err := s.d.rows.sealer.Seal(raw, record.CertFileContext(key))
	if err != nil {
		return err
	}
	return s.d.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if !ordering(tx, s.name) {
			return errNoDomain
		}
		raftstore.Put(tx, record.CertFiles, &record.CertFile{Meta: record.Meta{ID: key}, ValueSealed: sealed, ModifiedAt: s.d.cfg.Clock().UTC()})
		return nil
	})
}

// Wait implements acmez.Waiter.
func (s solver) Wait(ctx context.Context, _ acme.Challenge) error {
	t := time.NewTimer(tellTime)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CleanUp implements acmez.Solver. It runs even if ctx has ended, as after an order that
// took too long.
func (s solver) CleanUp(ctx context.Context, _ acme.Challenge) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
	defer cancel()
	return s.d.rows.drop(ctx, s.d.challengeKey(s.name))
}

// drop removes one file. Delete, which certmagic calls, reads all files.
func (r *rows) drop(ctx context.Context, key string) error {
	return r.store.Update(ctx, func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.CertFiles, key)
		return nil
	})
}

// maxReason limits the length of a reason that is shown, in bytes.
const maxReason = 500

// reason returns what a domain's owner may know about an error: what the ACME server says
// about the name, but nothing about the cluster's own problems.
func reason(err error) string {
	var p acme.Problem
	switch {
	case errors.As(err, &p) && p.Detail != "":
		return clean(p.Detail)
	case errors.As(err, &p):
		return clean("the certificate authority refuses: " + p.Type)
	case errors.Is(err, errNoDomain):
		return errNoDomain.Error()
	}
	return "the certificate authority cannot be reached, or does not do what it should"
}

// clean shortens a text from outside, drops invalid UTF-8 and replaces control characters
// by spaces.
func clean(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}
