package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const domain = "db.example.com"

// clock is a clock that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newClock() *clock { return &clock{t: time.Now()} }

// pair returns a certificate and its key in PEM.
func pair(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	d, err := OpenDev(t.TempDir(), domain, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(d.leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.leaf.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// served starts a listener and returns a function that tells which certificate it shows
// now.
func served(t *testing.T, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func() string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = c.(*tls.Conn).Handshake()
				c.Close()
			}()
		}
	}()
	return func() string {
		t.Helper()
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, ServerName: "x." + domain})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return string(c.ConnectionState().PeerCertificates[0].Raw)
	}
}

func der(certPEM []byte) string {
	block, _ := pem.Decode(certPEM)
	return string(block.Bytes)
}

func TestAListenerShowsTheNewCertificateOnceTheFilesHaveChanged(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first, firstKey := pair(t)
	write(t, certFile, first)
	write(t, keyFile, firstKey)
	f, err := OpenFiles(certFile, keyFile, now.now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	shown := served(t, f.GetCertificate)
	if shown() != der(first) {
		t.Fatal("another certificate")
	}
	second, secondKey := pair(t)
	write(t, certFile, second)
	now.advance(recheckEvery)
	if shown() != der(first) {
		t.Error("half of a replacement was used")
	}
	write(t, keyFile, secondKey)
	now.advance(recheckEvery)
	if shown() != der(second) {
		t.Error("the new certificate is not shown")
	}
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	write(t, certFile, []byte("rubbish"))
	now.advance(recheckEvery)
	if shown() != der(second) {
		t.Error("files that are bad end the service")
	}
	third, thirdKey := pair(t)
	write(t, certFile, third)
	write(t, keyFile, thirdKey)
	now.advance(recheckEvery)
	if shown() != der(third) {
		t.Error("after a bad one, a good one is not shown")
	}
}

func TestFilesThatAreBadAtTheStartAreSaid(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFiles(filepath.Join(dir, "a"), filepath.Join(dir, "b"), time.Now, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestReplicasShareOneDevelopmentAuthority(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	made := make([]*Dev, 8)
	for i := range made {
		all.Go(func() {
			var err error
			if made[i], err = OpenDev(dir, domain, time.Now); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ca, err := os.ReadFile(filepath.Join(dir, DevCAFile))
	if err != nil || t.Failed() {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	for _, d := range made {
		if _, err := d.leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "anything." + domain}); err != nil {
			t.Error(err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "db-ca.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Error(st.Mode(), err)
	}
}

func TestADevelopmentAuthoritySignsForItsDomainAlone(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDev(dir, domain, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.ca.sign("*.bank.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(d.ca.authority)
	if _, err := other.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "www.bank.example"}); err == nil {
		t.Error("a certificate of another domain is good")
	}
	if _, err := OpenDev(dir, "other.example", time.Now); err == nil || !strings.Contains(err.Error(), "CA for other.example") {
		t.Errorf("opened for another domain: %v", err)
	}
}

func TestADevelopmentCertificateIsRenewedWhileItIsServed(t *testing.T) {
	now := newClock()
	d, err := OpenDev(t.TempDir(), domain, now.now)
	if err != nil {
		t.Fatal(err)
	}
	shown := served(t, d.GetCertificate)
	first := shown()
	now.advance(devLeafValidity / 2)
	if shown() != first {
		t.Error("renewed long before its end")
	}
	now.advance(devLeafValidity / 4)
	if shown() == first {
		t.Error("not renewed before its end")
	}
}
