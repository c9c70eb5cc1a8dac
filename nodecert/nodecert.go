// Package nodecert is the certificate by which a member of the cluster (a replica, a host
// or a router) is known to the others, and the authorities by which it knows them: as they
// lie in its directory, as they are used while they are replaced, and the renewal.
package nodecert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
)

// The files of a certificate. The first two are written when a directory is made. A renewed
// certificate and its key are in one file, so that a crash cannot leave the one without the
// other.
const (
	FileCert    = "node.crt"
	FileKey     = "node.key"
	FileRenewed = "node.pem"
)

// Read returns the certificate of a directory and its key, in PEM: the one that was issued
// last, also if somebody has put a new node.crt and node.key beside a renewed one. One that is
// not valid yet counts only if the other is neither: it was issued while the clock was wrong.
func Read(dir string) (certPEM, keyPEM []byte, err error) {
	certPEM, keyPEM, err = readPair(dir)
	both, renewedErr := os.ReadFile(filepath.Join(dir, FileRenewed))
	switch {
	case errors.Is(renewedErr, fs.ErrNotExist):
		return certPEM, keyPEM, err
	case renewedErr != nil:
		return nil, nil, renewedErr
	}
	renewed, renewedErr := tls.X509KeyPair(both, both)
	if renewedErr != nil {
		return nil, nil, fmt.Errorf("%s: %w (remove it to use %s)", filepath.Join(dir, FileRenewed), renewedErr, FileCert)
	}
	if err == nil {
		if first, perr := tls.X509KeyPair(certPEM, keyPEM); perr == nil {
			now, last := time.Now(), first.Leaf.NotBefore.After(renewed.Leaf.NotBefore)
			if early(renewed.Leaf, now) != early(first.Leaf, now) {
				last = early(renewed.Leaf, now)
			}
			if last {
				return certPEM, keyPEM, nil
			}
		}
	}
	return both, both, nil
}

// early reports whether a certificate is not valid yet.
func early(leaf *x509.Certificate, now time.Time) bool { return now.Before(leaf.NotBefore) }

func readPair(dir string) (certPEM, keyPEM []byte, err error) {
	if certPEM, err = os.ReadFile(filepath.Join(dir, FileCert)); err != nil {
		return nil, nil, err
	}
	if keyPEM, err = os.ReadFile(filepath.Join(dir, FileKey)); err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, nil
}

// Certificate is a certificate that is replaced while it is in use: the next handshake has
// the new one.
type Certificate struct {
	current atomic.Pointer[tls.Certificate]
	trust   *Trust

	mu      sync.Mutex
	dir     string // empty: it is kept nowhere
	unsaved []byte // what the directory does not have
}

// New returns a certificate. New ones have to be from an authority that is trusted. dir is
// where they are kept; empty: nowhere. If cert has more than the leaf, the authority's
// certificate goes along in each handshake.
func New(dir string, cert tls.Certificate, trust *Trust) *Certificate {
	c := &Certificate{trust: trust, dir: dir}
	c.current.Store(&cert)
	return c
}

// Leaf is the certificate that is in use.
func (c *Certificate) Leaf() *x509.Certificate { return c.current.Load().Leaf }

// Trust is the authorities by which the holder knows the others.
func (c *Certificate) Trust() *Trust { return c.trust }

// KeptIssuer returns the ID of the authority that signed the certificate, or "" if it is not
// trusted any more, or if a restart would not have this certificate.
func (c *Certificate) KeptIssuer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ca := c.trust.Issuer(c.Leaf()); ca != nil && (c.dir == "" || c.unsaved == nil) {
		return CAID(ca)
	}
	return ""
}

// ForServer is for tls.Config.GetCertificate.
func (c *Certificate) ForServer(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// ForClient is for tls.Config.GetClientCertificate.
func (c *Certificate) ForClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// ErrOther is returned for a certificate that cannot take the place of the present one.
var ErrOther = errors.New("not a renewal of this certificate")

// Replace uses another certificate of the same holder from now on, and keeps it. If that
// fails, it is in use all the same; see Keep.
func (c *Certificate) Replace(certPEM, keyPEM []byte) error {
	next, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("renewed certificate: %w", err)
	}
	now := c.current.Load()
	issuer := c.trust.Issuer(next.Leaf)
	wrong := early(now.Leaf, time.Now()) // it may be older than one that nobody accepts
	switch {
	case next.Leaf.Subject.CommonName != now.Leaf.Subject.CommonName:
		return fmt.Errorf("%w: it is for %q", ErrOther, next.Leaf.Subject.CommonName)
	case issuer == nil:
		return fmt.Errorf("%w: it is from an authority that is not trusted", ErrOther)
	case wrong:
	case now.Leaf.CheckSignatureFrom(issuer) != nil: // of another authority: it may be renewed in its first second
		if next.Leaf.NotBefore.Before(now.Leaf.NotBefore) {
			return fmt.Errorf("%w: it is older", ErrOther) // a restart would not read it
		}
	case !next.Leaf.NotAfter.After(now.Leaf.NotAfter) && !next.Leaf.NotBefore.After(now.Leaf.NotBefore):
		return fmt.Errorf("%w: it is older", ErrOther)
	}
	if next.Certificate = next.Certificate[:1:1]; len(now.Certificate) > 1 { // what goes along in each handshake
		next.Certificate = append(next.Certificate, issuer.Raw)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.Store(&next)
	c.unsaved = bytes.Join([][]byte{certPEM, keyPEM}, nil)
	return c.keep()
}

// Keep writes what could not be written when it was replaced.
func (c *Certificate) Keep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keep()
}

func (c *Certificate) keep() error {
	if c.unsaved == nil || c.dir == "" {
		return nil
	}
	if err := atomicfile.Write(filepath.Join(c.dir, FileRenewed), c.unsaved, 0o600); err != nil {
		return fmt.Errorf("keep the renewed certificate: %w", err)
	}
	c.unsaved = nil
	return nil
}
