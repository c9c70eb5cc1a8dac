package nodecert

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-cloud/berth/atomicfile"
)

// FileCA has the certificates of the authorities that a member trusts: usually one, and two
// while the cluster's authority is exchanged.
const FileCA = "ca.crt"

// maxCAs bounds what a member makes of a bundle that it is told.
const maxCAs = 16

// CAID names an authority: the first 16 hex digits of the SHA-256 of its certificate.
func CAID(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.Raw)
	return hex.EncodeToString(sum[:8])
}

// Blocks returns the PEM blocks of a file that has nothing else. pem.Decode alone skips what
// it cannot read, so that a file that was cut off or damaged would just have fewer of them.
func Blocks(raw []byte) ([]*pem.Block, error) {
	const begin = "-----BEGIN "
	var out []*pem.Block
	for rest := bytes.TrimSpace(raw); len(rest) > 0; {
		block, after := pem.Decode(rest)
		if block == nil || !bytes.HasPrefix(rest, []byte(begin)) || bytes.Count(rest[:len(rest)-len(after)], []byte(begin)) != 1 {
			return nil, fmt.Errorf("after %d PEM blocks there is something else", len(out))
		}
		out = append(out, block)
		rest = bytes.TrimSpace(after)
	}
	return out, nil
}

// ParseCAs reads the certificates of authorities, in PEM.
func ParseCAs(raw []byte) ([]*x509.Certificate, error) {
	blocks, err := Blocks(raw)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return nil, errors.New("no PEM certificate")
	}
	if len(blocks) > maxCAs {
		return nil, fmt.Errorf("%d certificates, want at most %d", len(blocks), maxCAs)
	}
	var out []*x509.Certificate
	for i, b := range blocks {
		if b.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is no certificate, but %q", i+1, b.Type)
		}
		ca, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		if !ca.BasicConstraintsValid || !ca.IsCA {
			return nil, fmt.Errorf("certificate %d is of %q, which is no authority", i+1, ca.Subject.CommonName)
		}
		if !slices.ContainsFunc(out, ca.Equal) {
			out = append(out, ca)
		}
	}
	return out, nil
}

// EncodeCAs writes what ParseCAs reads.
func EncodeCAs(cas []*x509.Certificate) []byte {
	var out []byte
	for _, ca := range cas {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	return out
}

// IDs returns the CAID of each.
func IDs(cas []*x509.Certificate) []string {
	out := make([]string, len(cas))
	for i, ca := range cas {
		out[i] = CAID(ca)
	}
	return out
}

// IssuerOf returns the authority that signed a certificate, or nil if it is none of them.
func IssuerOf(leaf *x509.Certificate, cas []*x509.Certificate) *x509.Certificate {
	for _, ca := range cas {
		if leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// Trust is the authorities whose certificates a member accepts. They change while they are in
// use: the next handshake goes by the new ones.
type Trust struct {
	current atomic.Pointer[trusted]

	mu    sync.Mutex
	dir   string   // empty: they are kept nowhere
	saved *trusted // what the directory has
}

type trusted struct {
	cas  []*x509.Certificate
	pool *x509.CertPool
}

func newTrusted(raw []byte) (*trusted, error) {
	cas, err := ParseCAs(raw)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, ca := range cas {
		pool.AddCert(ca)
	}
	return &trusted{cas: cas, pool: pool}, nil
}

// NewTrust returns the authorities of a bundle. dir is where other ones are kept, in FileCA;
// empty: nowhere.
func NewTrust(dir string, bundlePEM []byte) (*Trust, error) {
	now, err := newTrusted(bundlePEM)
	if err != nil {
		return nil, err
	}
	t := &Trust{dir: dir, saved: now}
	t.current.Store(now)
	return t, nil
}

// ReadTrust returns the authorities that a directory has.
func ReadTrust(dir string) (*Trust, error) {
	path := filepath.Join(dir, FileCA)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := NewTrust(dir, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Pool verifies certificates. It never changes; after a change there is another one.
func (t *Trust) Pool() *x509.CertPool { return t.current.Load().pool }

// CAs returns the authorities.
func (t *Trust) CAs() []*x509.Certificate { return slices.Clone(t.current.Load().cas) }

// Issuer returns the authority that signed a certificate, or nil if it is not trusted.
func (t *Trust) Issuer(leaf *x509.Certificate) *x509.Certificate {
	return IssuerOf(leaf, t.current.Load().cas)
}

// Kept returns the IDs of the authorities that a restart would trust.
func (t *Trust) Kept() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir == "" {
		return IDs(t.current.Load().cas)
	}
	return IDs(t.saved.cas)
}

// Replace trusts other authorities from now on, and keeps them. It refuses those that have
// nothing in common with the present ones: whoever says so was trusted by one of these. If
// keeping them fails, they count all the same; see Keep.
func (t *Trust) Replace(bundlePEM []byte) (changed bool, err error) {
	next, err := newTrusted(bundlePEM)
	if err != nil {
		return false, fmt.Errorf("the authorities that were told: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.current.Load()
	if sameCAs(now.cas, next.cas) {
		return false, nil
	}
	if !slices.ContainsFunc(next.cas, func(ca *x509.Certificate) bool { return slices.ContainsFunc(now.cas, ca.Equal) }) {
		return false, fmt.Errorf("%w: the authorities that were told have nothing in common with those that are trusted", ErrOther)
	}
	t.current.Store(next)
	return true, t.keep()
}

// Keep writes what could not be written when it was replaced.
func (t *Trust) Keep() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keep()
}

func (t *Trust) keep() error {
	now := t.current.Load()
	if t.dir == "" || t.saved == now {
		return nil
	}
	if err := atomicfile.Write(filepath.Join(t.dir, FileCA), EncodeCAs(now.cas), 0o600); err != nil {
		return fmt.Errorf("keep the authorities that are trusted: %w", err)
	}
	t.saved = now
	return nil
}

// sameCAs does not look at the order: all of them count alike.
func sameCAs(a, b []*x509.Certificate) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(ca *x509.Certificate) bool { return !slices.ContainsFunc(b, ca.Equal) })
}
