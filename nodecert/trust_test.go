package nodecert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func bundle(cas ...*authority) []byte {
	var out []*x509.Certificate
	for _, ca := range cas {
		out = append(out, ca.cert)
	}
	return EncodeCAs(out)
}

func ids(cas ...*authority) []string {
	var out []string
	for _, ca := range cas {
		out = append(out, CAID(ca.cert))
	}
	return out
}

func TestABundleIsCertificatesOfAuthoritiesAndNothingElse(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	both := bundle(a, b)
	leaf, key := a.issue("host:h1", start, day)
	damaged := bytes.Replace(both, []byte("MII"), []byte("M!I"), 1)
	for name, raw := range map[string][]byte{
		"nothing":                   nil,
		"spaces":                    []byte(" \n"),
		"noise":                     []byte("hello\x00"),
		"noise after it":            append(bytes.Clone(both), "noise"...),
		"noise before it":           append([]byte("noise\n"), both...),
		"half of the second":        both[:len(both)-100],
		"half of the first":         both[200:],
		"a block that is no base64": damaged,
		"a key":                     append(bytes.Clone(both), key...),
		"a member's certificate":    append(bytes.Clone(both), leaf...),
		"no certificate within":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
		"too many":                  bytes.Repeat(both, 20),
	} {
		if cas, err := ParseCAs(raw); err == nil {
			t.Errorf("%s: %d certificates", name, len(cas))
		}
	}
	cas, err := ParseCAs(append(append([]byte("\n\n"), both...), bundle(a)...))
	if err != nil || !slices.Equal(IDs(cas), ids(a, b)) || len(CAID(a.cert)) != 16 {
		t.Errorf("%v, %v", IDs(cas), err)
	}
}

func FuzzParseCAs(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, raw []byte) {
		cas, err := ParseCAs(raw)
		if err != nil {
			return
		}
		again, err := ParseCAs(EncodeCAs(cas))
		if err != nil || !slices.Equal(IDs(again), IDs(cas)) || len(cas) == 0 {
			t.Fatalf("%v, %v", IDs(again), err)
		}
	})
}

func TestWhatIsTrustedIsReplacedAndKept(t *testing.T) {
	a, b, c := newAuthority(t), newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileCA), bundle(a), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() *Trust {
		t.Helper()
		trust, err := ReadTrust(dir)
		if err != nil {
			t.Fatal(err)
		}
		return trust
	}
	trust := read()
	old := trust.Pool()
	for name, told := range map[string][]byte{"noise": []byte("noise"), "strangers": bundle(b, c), "nothing": nil} {
		if changed, err := trust.Replace(told); changed || err == nil || trust.Pool() != old {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
	}
	if changed, err := trust.Replace(bundle(a, b)); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if changed, err := trust.Replace(bundle(b, a)); changed || err != nil {
		t.Errorf("in another order: %v, %v", changed, err)
	}
	if !slices.Equal(IDs(read().CAs()), ids(a, b)) || !slices.Equal(trust.Kept(), ids(a, b)) {
		t.Error("a restart would know less")
	}
	// What cannot be written counts all the same, and is not said to be kept.
	gone := dir + "-moved"
	if err := os.Rename(dir, gone); err != nil {
		t.Fatal(err)
	}
	if changed, err := trust.Replace(bundle(b)); !changed || err == nil {
		t.Fatal(changed, err)
	}
	if !slices.Equal(IDs(trust.CAs()), ids(b)) || !slices.Equal(trust.Kept(), ids(a, b)) {
		t.Errorf("trusts %v, keeps %v", IDs(trust.CAs()), trust.Kept())
	}
	if err := os.Rename(gone, dir); err != nil {
		t.Fatal(err)
	}
	if err := trust.Keep(); err != nil || !slices.Equal(IDs(read().CAs()), ids(b)) || !slices.Equal(trust.Kept(), ids(b)) {
		t.Errorf("%v, keeps %v", err, trust.Kept())
	}
}

// exchange is a rig whose replica has the authorities of a test.
type exchange struct {
	*rig
	told   Authorities
	signer *authority
	asked  int
	known  Known // as it was told last
	fails  error
}

func newExchange(t *testing.T) *exchange {
	t.Helper()
	e := &exchange{rig: newRig(t, 30*day)}
	e.signer, e.told = e.ca, Authorities{bundle(e.ca), CAID(e.ca.cert)}
	e.write(FileCA, bundle(e.ca))
	e.Renewer.Certificate = e.load()
	ask := e.Ask
	e.Ask = func(ctx context.Context, csr []byte) ([]byte, error) {
		old := e.rig.ca
		e.rig.ca = e.signer
		defer func() { e.rig.ca = old }()
		return ask(ctx, csr)
	}
	e.Authorities = func(_ context.Context, known Known) (Authorities, error) {
		e.asked++
		if e.fails != nil {
			return Authorities{}, e.fails
		}
		e.known = known
		return e.told, nil
	}
	return e
}

// load reads the directory as a program that starts does.
func (e *exchange) load() *Certificate {
	e.t.Helper()
	trust, err := ReadTrust(e.dir)
	if err != nil {
		e.t.Fatal(err)
	}
	certPEM, keyPEM, err := Read(e.dir)
	if err != nil {
		e.t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		e.t.Fatal(err)
	}
	return New(e.dir, cert, trust)
}

func TestAMemberFollowsAnExchangeOfTheAuthority(t *testing.T) {
	e := newExchange(t)
	old, next := e.ca, newAuthority(t)
	first := e.at(1)
	if e.Certificate.Leaf() != first || !slices.Equal(e.known.Trusts, ids(old)) || e.known.Issuer != CAID(old.cert) {
		t.Fatalf("%+v", e.known)
	}
	// The new one counts: that is told in the same look.
	e.told.Bundle = bundle(old, next)
	if e.at(1.1) != first || !slices.Equal(e.known.Trusts, ids(old, next)) || !slices.Equal(IDs(e.load().Trust().CAs()), ids(old, next)) {
		t.Fatalf("%+v", e.known)
	}
	// It signs: the certificate is renewed at once.
	e.signer, e.told.Signs = next, CAID(next.cert)
	second := e.at(1.1)
	if second == first || second.CheckSignatureFrom(next.cert) != nil || e.known.Issuer != CAID(next.cert) {
		t.Fatalf("%+v: %s", e.known, &e.log)
	}
	if !e.load().Leaf().Equal(second) {
		t.Error("a restart would have the old certificate")
	}
	if e.at(1.2) != second {
		t.Error("renewed once more")
	}
	// And back, and forth again in the same second.
	e.signer, e.told.Signs = old, CAID(old.cert)
	third := e.at(1.3)
	e.signer, e.told.Signs = next, CAID(next.cert)
	if fourth := e.at(1.3); third.CheckSignatureFrom(old.cert) != nil || fourth.CheckSignatureFrom(next.cert) != nil {
		t.Error("it does not go back and forth")
	}
	e.told.Bundle = bundle(next)
	e.at(1.5)
	if !slices.Equal(e.known.Trusts, ids(next)) || !slices.Equal(IDs(e.load().Trust().CAs()), ids(next)) {
		t.Errorf("%+v", e.known)
	}
	if text := e.log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
		t.Error(text)
	}
}

func TestWhatAReplicaTellsIsNotBelievedBlindly(t *testing.T) {
	e := newExchange(t)
	stranger := newAuthority(t)
	first := e.at(1)
	for i, told := range []Authorities{
		{bundle(stranger), CAID(stranger.cert)}, {[]byte("noise"), CAID(e.ca.cert)}, {nil, ""},
		{append(bundle(e.ca), "noise"...), CAID(e.ca.cert)},
	} {
		e.told, e.signer = told, stranger
		if e.at(2+float64(i)) != first || !slices.Equal(IDs(e.load().Trust().CAs()), ids(e.ca)) {
			t.Errorf("%d: it was believed", i)
		}
	}
	if !strings.Contains(e.log.String(), "no replica says which authorities count") {
		t.Error(&e.log)
	}
}

func TestSilenceOfReplicasIsLoggedOnceItLasts(t *testing.T) {
	e := newExchange(t)
	e.fails = errors.New("nobody answers")
	minute := 1.0 / 24 / 60
	for i := range 10 {
		e.at(1 + float64(i)*minute)
	}
	if strings.Contains(e.log.String(), "no replica says") {
		t.Error("too early")
	}
	for i := range 6 {
		e.at(1 + float64(10+i)*minute)
	}
	if text := e.log.String(); strings.Count(text, "no replica says") != 1 || !strings.Contains(text, "do this") || !strings.Contains(text, "nobody answers") {
		t.Error(text)
	}
	e.log.Reset()
	e.fails = nil
	e.at(1.5)
	e.fails = errors.New("nobody answers")
	e.at(2)
	if e.log.Len() != 0 {
		t.Error(&e.log)
	}
}

func TestRunLooksWhenItIsWoken(t *testing.T) {
	e := newExchange(t)
	wake, asked := make(chan struct{}), make(chan struct{}, 16)
	e.Wake = wake
	e.Authorities = func(context.Context, Known) (Authorities, error) {
		asked <- struct{}{}
		return e.told, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	for range 3 {
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("it does not look")
		}
		select {
		case wake <- struct{}{}:
		case <-time.After(time.Minute):
			t.Fatal("it cannot be woken")
		}
	}
	cancel()
	<-done
}
