package pgsni

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
)

func TestConfigsThatAreRefused(t *testing.T) {
	with := &tls.Config{Certificates: []tls.Certificate{certs().cert}}
	for name, cfg := range map[string]Config{
		"no domain":        {TLS: with},
		"a leading dot":    {Domain: ".db.example.com", TLS: with},
		"a trailing dot":   {Domain: "db.example.com.", TLS: with},
		"no TLS":           {Domain: domain},
		"no certificate":   {Domain: domain, TLS: &tls.Config{}},
		"another's config": {Domain: domain, TLS: &tls.Config{Certificates: with.Certificates, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }}},
	} {
		if _, err := New(cfg, never(t)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTheDomainHasNoCase(t *testing.T) {
	cfg, err := Config{Domain: "DB.Example.COM", TLS: &tls.Config{Certificates: []tls.Certificate{certs().cert}}}.complete()
	if err != nil || cfg.Domain != domain {
		t.Error(cfg.Domain, err)
	}
}

// A certificate is asked for at each handshake, so that a renewed one needs no
// restart, and a name without one is refused by TLS itself.
func TestCertificatesByFunction(t *testing.T) {
	var asked []string
	router := serve(t, Config{TLS: &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		asked = append(asked, hello.ServerName)
		if hello.ServerName == "" {
			return nil, errors.New("no name, no certificate")
		}
		cert := certs().cert
		return &cert, nil
	}}}, only(newFakeServer(t)))
	for range 2 {
		c := router.open(t, known)
		c.ready()
	}
	if len(asked) != 2 || asked[0] != known+"."+domain {
		t.Errorf("asked for %q", asked)
	}
	raw := router.dial(t)
	raw.write(framedBytes(codeSSL, ""))
	raw.answer()
	if err := tls.Client(raw.Conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(context.Background()); err == nil {
		t.Error("a handshake without a certificate")
	}
}
