package drivers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const (
	localDomain = "db.localhost"
	localName   = "3f2c9a1e-7b64-4c0d-9a55-5f6d1f0f9e11"
)

// local is a database in a server of this machine, behind a router of the test.
type local struct {
	server   *postgres.Server
	verifier atomic.Pointer[pgsni.Verifier]
	password string
	addr, ca string
}

func newLocal(t *testing.T) *local {
	t.Helper()
	cfg := pgtest.Config(t)
	cfg.Gateway = cfg.Listen // the router dials from here
	l := &local{server: pgtest.Run(t, cfg)}
	l.set(t, "a-password%of/signs")
	cert, ca := certificate(t)
	router, err := pgsni.New(pgsni.Config{
		Domain: localDomain, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, ChecksLogins: true,
	}, l)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.addr, l.ca = listener.Addr().String(), ca
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- router.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	return l
}

// set puts a password into force, as a guest does.
func (l *local) set(t *testing.T, password string) {
	t.Helper()
	ctx := pgtest.Context(t)
	cr := pgapi.Credentials{Database: "app", Username: "app", Password: password}
	if _, err := tenant.New(l.server).Set(ctx, cr); err != nil {
		t.Fatal(err)
	}
	conn, err := l.server.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var secret string
	if err := conn.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", cr.Username).Scan(&secret); err != nil {
		t.Fatal(err)
	}
	verifier, err := pgsni.ParseVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	l.verifier.Store(verifier)
	l.password = password
}

func (l *local) target(*testing.T) target {
	_, port, _ := strings.Cut(l.addr, ":")
	u := url.URL{Scheme: "postgres", User: url.UserPassword("app", l.password), Host: localName + "." + localDomain + ":" + port, Path: "/app"}
	return target{url: u.String(), addr: l.addr, ca: l.ca}
}

func (l *local) sleep(t *testing.T) { t.Log("left out: sleep, for which BERTH_URL must be set") }

func (l *local) rotate(t *testing.T) string {
	l.set(t, "another%of/signs"+rand.Text())
	return l.target(t).url
}

// Resolve knows the one name, as a replica does: the router checks the password.
func (l *local) Resolve(_ context.Context, name string) (pgsni.Backend, error) {
	if name != localName {
		return nil, pgsni.ErrUnknown
	}
	return l, nil
}

func (l *local) Dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", l.server.Config().Addr().String())
}

func (l *local) Verifier(_ context.Context, user string) (*pgsni.Verifier, error) {
	if user != "app" {
		return nil, pgsni.ErrUnknown
	}
	return l.verifier.Load(), nil
}

// certificate is the router's, and the file of the authority that has signed it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	template := func(name string) *x509.Certificate {
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		fail(err)
		return &x509.Certificate{
			SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	ca := template("a test's authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	fail(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	leaf := template("router")
	leaf.DNSNames, leaf.KeyUsage, leaf.ExtKeyUsage = []string{"*." + localDomain}, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	fail(err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	fail(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}
