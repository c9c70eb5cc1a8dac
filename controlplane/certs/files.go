// Package certs provides the certificates of the ports that clients connect to: the
// PostgreSQL router, the public API and previews. They come from files, from a development
// authority, or from an authority that speaks ACME. They are renewed while the ports are
// open.
package certs

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Source provides the certificates for a tls.Config. It is called in each handshake.
type Source interface {
	GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
}

// recheckEvery is the shortest interval between two checks for new files.
const recheckEvery = time.Second

// Files is a certificate in two PEM files. It reads the files again when they have
// changed. While the new files cannot be used, it returns the last good certificate: of
// two files, one is always replaced first.
type Files struct {
	cert, key string
	clock     func() time.Time
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    [2]os.FileInfo // the files that current was read from
	checked time.Time
	bad     error // the error that was logged last
}

// OpenFiles reads a certificate and its key.
func OpenFiles(cert, key string, clock func() time.Time, log *slog.Logger) (*Files, error) {
	f := &Files{cert: cert, key: key, clock: clock, log: log}
	f.checked = clock()
	return f, f.load()
}

// GetCertificate implements Source.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.clock(); now.Sub(f.checked) >= recheckEvery || now.Before(f.checked) {
		f.checked = now
		f.recheck()
	}
	return f.current, nil
}

// recheck reads the files if they have changed. It reads bad files each time, until they
// are good.
func (f *Files) recheck() {
	if now, err := f.stat(); err == nil && f.bad == nil && same(now, f.read) {
		return
	}
	err := f.load()
	switch {
	case err == nil:
		f.bad = nil
		f.log.Info("certificate was read again", "file", f.cert, "expires_at", f.current.Leaf.NotAfter)
	case f.bad == nil || f.bad.Error() != err.Error():
		f.bad = err
		f.log.Error("new certificate cannot be used; the one before goes on being used", "file", f.cert, "error", err)
	}
}

func (f *Files) load() error {
	read, err := f.stat()
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	f.current, f.read = &cert, read
	return nil
}

func (f *Files) stat() (out [2]os.FileInfo, err error) {
	for i, name := range []string{f.cert, f.key} {
		if out[i], err = os.Stat(name); err != nil {
			return out, err
		}
	}
	return out, nil
}

func same(a, b [2]os.FileInfo) bool {
	for i := range a {
		if !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}

// Names returns the names in the certificate that s provides for name, with wildcards
// unchanged.
func Names(s Source, name string) []string {
	cert, err := s.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		return nil
	}
	return cert.Leaf.DNSNames
}

// Covers returns an error if s has no certificate that is valid for name.
func Covers(s Source, name string) error {
	cert, err := s.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		return fmt.Errorf("certificate for %s: %w", name, err)
	}
	return cert.Leaf.VerifyHostname(name)
}
