package nodecert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: start.Add(-day), NotAfter: start.Add(10 * 365 * day),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(name string, public any, from time.Time, valid time.Duration) []byte {
	a.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(from.UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.Add(valid)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue makes a certificate and its key.
func (a *authority) issue(name string, from time.Time, valid time.Duration) (certPEM, keyPEM []byte) {
	a.t.Helper()
	key := newKey(a.t)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.sign(name, key.Public(), from, valid), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// rig is a certificate in a directory, whose renewer has a clock that tests move.
type rig struct {
	*Renewer
	t     *testing.T
	ca    *authority
	dir   string
	now   time.Time
	fails error
	asked int
	log   bytes.Buffer
}

func newRig(t *testing.T, valid time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, ca: newAuthority(t), dir: t.TempDir(), now: start}
	cert, key := r.ca.issue("host:h1", start, valid)
	r.write(FileCert, cert)
	r.write(FileKey, key)
	r.Renewer = &Renewer{
		Certificate: r.load(), Clock: func() time.Time { return r.now }, Jitter: func() float64 { return 0.5 }, Remedy: "do this",
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Ask: func(_ context.Context, csrPEM []byte) ([]byte, error) {
			r.asked++
			if r.fails != nil {
				return nil, r.fails
			}
			block, _ := pem.Decode(csrPEM)
			csr, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				return nil, err
			}
			return r.ca.sign("host:h1", csr.PublicKey, r.now, 30*day), nil
		},
	}
	return r
}

func (r *rig) write(name string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), data, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// load reads the directory as a program that starts does.
func (r *rig) load() *Certificate {
	r.t.Helper()
	certPEM, keyPEM, err := Read(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM) // refuses a key of another certificate
	if err != nil {
		r.t.Fatal(err)
	}
	trust, err := NewTrust("", EncodeCAs([]*x509.Certificate{r.ca.cert}))
	if err != nil {
		r.t.Fatal(err)
	}
	return New(r.dir, cert, trust)
}

// at moves the clock and looks.
func (r *rig) at(at float64) *x509.Certificate {
	r.t.Helper()
	r.now = start.Add(time.Duration(at * float64(day)))
	r.Check(r.t.Context())
	return r.Certificate.Leaf()
}

func TestItIsRenewedWhenAThirdOfItsValidityIsLeft(t *testing.T) {
	r := newRig(t, 30*day)
	first := r.Certificate.Leaf()
	if r.at(19.4) != first || r.asked != 0 {
		t.Fatal("renewed too early")
	}
	second := r.at(19.6) // ten days are left, and half a day of jitter
	if second == first || !second.NotAfter.Equal(r.now.Add(30*day)) || first.PublicKey.(*ecdsa.PublicKey).Equal(second.PublicKey) {
		t.Fatalf("%s, until %s", second.Subject, second.NotAfter)
	}
	if !r.load().Leaf().Equal(second) {
		t.Error("a restart would have the old one")
	}
	// For years, by a clock that jumps.
	for at, last := 19.6+29, second; at < 900; at += 29 {
		next := r.at(at)
		if next == last {
			t.Fatalf("not renewed on day %f: %s", at, &r.log)
		}
		last = next
	}
	if strings.Contains(r.log.String(), "level=WARN") || strings.Contains(r.log.String(), "level=ERROR") {
		t.Error(&r.log)
	}
}

func TestOneOfThreeYearsIsAcceptedAndThenReplaced(t *testing.T) {
	r := newRig(t, 3*365*day)
	first := r.Certificate.Leaf()
	if r.at(600) != first || r.asked != 0 {
		t.Fatal("renewed too early")
	}
	if next := r.at(731); next == first || next.NotAfter.Sub(next.NotBefore) != 30*day {
		t.Errorf("until %s", next.NotAfter)
	}
}

func TestAFailureIsTriedAgainAndExpiryToldWithItsRemedy(t *testing.T) {
	r := newRig(t, 30*day)
	first := r.Certificate.Leaf()
	r.fails = errors.New("nobody answers")
	r.at(20)
	r.Check(t.Context()) // at once again: it waits
	if r.asked != 1 || !strings.Contains(r.log.String(), "level=WARN") || !strings.Contains(r.log.String(), "nobody answers") {
		t.Fatalf("asked %d times: %s", r.asked, &r.log)
	}
	r.at(20.1)
	r.at(10) // the clock is set back: it is not due
	r.at(20.05)
	if r.asked != 3 {
		t.Errorf("asked %d times", r.asked)
	}
	r.log.Reset()
	r.at(150) // the machine slept for months
	if text := r.log.String(); !strings.Contains(text, "has expired") || !strings.Contains(text, `remedy="do this"`) || !strings.Contains(text, "level=ERROR") {
		t.Error(text)
	}
	r.fails = nil
	if r.at(151) == first {
		t.Error("not renewed once somebody answered")
	}
}

func TestWhatCannotBeKeptIsInUseAllTheSame(t *testing.T) {
	r := newRig(t, 30*day)
	first := r.Certificate.Leaf()
	gone := r.dir + "-moved"
	if err := os.Rename(r.dir, gone); err != nil { // root may write anywhere else
		t.Fatal(err)
	}
	second := r.at(20)
	if second == first || !strings.Contains(r.log.String(), "would be lost at a restart") {
		t.Fatalf("%s", &r.log)
	}
	if err := os.Rename(gone, r.dir); err != nil {
		t.Fatal(err)
	}
	r.Check(t.Context())
	if !r.load().Leaf().Equal(second) || r.asked != 1 {
		t.Errorf("not kept later; asked %d times", r.asked)
	}
}

func TestTheOneThatWasIssuedLastIsRead(t *testing.T) {
	r := newRig(t, 30*day)
	renewed := r.at(20)
	// Half of what an operator copies is no reason to use the old one.
	cert, key := r.ca.issue("host:h1", start.Add(25*day), 30*day)
	r.write(FileCert, cert)
	if !r.load().Leaf().Equal(renewed) {
		t.Error("a certificate without its key took the place of the renewed one")
	}
	r.write(FileKey, key)
	if leaf := r.load().Leaf(); !leaf.NotBefore.Equal(start.Add(25 * day)) {
		t.Errorf("the new one of an operator is not used: from %s", leaf.NotBefore)
	}
	r.write(FileRenewed, []byte("damaged"))
	if _, _, err := Read(r.dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Error(err)
	}
}

// A certificate that was issued while the clock was ahead is refused by everybody once the clock
// is right. It is renewed at once, and one that an operator puts beside it counts.
func TestACertificateFromTheFutureIsReplaced(t *testing.T) {
	now := time.Now()
	fromTheFuture := func() *rig {
		r := newRig(t, 30*day)
		r.now = now.Add(60 * day)
		if r.Check(t.Context()); !early(r.Certificate.Leaf(), now) {
			t.Fatal("it is not renewed while the clock is ahead")
		}
		r.now = now
		return r
	}
	r := fromTheFuture()
	r.Check(t.Context())
	if leaf := r.Certificate.Leaf(); early(leaf, now) || now.After(leaf.NotAfter) || !r.load().Leaf().Equal(leaf) {
		t.Errorf("it is valid from %s to %s, and that of the directory from %s", leaf.NotBefore, leaf.NotAfter, r.load().Leaf().NotBefore)
	}

	r = fromTheFuture()
	r.fails = errors.New("refused")
	r.Check(t.Context())
	if !strings.Contains(r.log.String(), "not valid yet") || !strings.Contains(r.log.String(), "do this") {
		t.Errorf("the log has no reason or no remedy: %s", r.log.String())
	}
	cert, key := r.ca.issue("host:h1", now.Add(-time.Hour), 30*day)
	r.write(FileCert, cert)
	r.write(FileKey, key)
	if early(r.load().Leaf(), now) {
		t.Error("one that is not valid yet is used, and not that of an operator")
	}

	// The clock of now is wrong, if the authority is not valid by it either.
	r = newRig(t, 30*day)
	r.now = start.Add(-365 * day)
	if r.Check(t.Context()); r.asked != 0 {
		t.Error("it is renewed by a clock that is wrong")
	}
}

func TestOnlyARenewalIsTaken(t *testing.T) {
	r := newRig(t, 30*day)
	first := r.Certificate.Leaf()
	for name, issue := range map[string]func() (cert, key []byte){
		"another host's":      func() ([]byte, []byte) { return r.ca.issue("host:h2", start.Add(day), 30*day) },
		"another authority's": func() ([]byte, []byte) { return newAuthority(t).issue("host:h1", start.Add(day), 30*day) },
		"an older one":        func() ([]byte, []byte) { return r.ca.issue("host:h1", start.Add(-day), 30*day) },
		"one with another key": func() ([]byte, []byte) {
			c, _ := r.ca.issue("host:h1", start.Add(day), 30*day)
			_, k := r.ca.issue("x", start, day)
			return c, k
		},
	} {
		if err := r.Certificate.Replace(issue()); err == nil || r.Certificate.Leaf() != first {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(r.dir, FileRenewed)); err == nil {
		t.Error("it was kept")
	}
}
