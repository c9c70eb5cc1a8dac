package pgsni

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pg.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

const (
	domain = "db.example.com"
	known  = "0e0c0a5e-1111-4222-8333-444455556666"
	// patience bounds what a test waits for; nothing takes it that works.
	patience = time.Minute
)

// pki is a certificate for *.domain and the pool that trusts it.
type pki struct {
	cert tls.Certificate
	pool *x509.CertPool
	pem  []byte
}

// certs is the router's, serverCerts that of a server behind it.
var certs, serverCerts = sync.OnceValue(newPKI), sync.OnceValue(newPKI)

func newPKI() pki {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pgsni test"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"*." + domain}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return pki{
		cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf},
		pool: pool, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
}

// caFile is the certificate authority in a file, for libpq.
func caFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, certs().pem, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// resolverFunc is a Resolver.
type resolverFunc func(ctx context.Context, name string) (Backend, error)

func (f resolverFunc) Resolve(ctx context.Context, name string) (Backend, error) { return f(ctx, name) }

// dialFunc is a Backend.
type dialFunc func(ctx context.Context) (net.Conn, error)

func (f dialFunc) Dial(ctx context.Context) (net.Conn, error) { return f(ctx) }

// only resolves the name known, and no other.
func only(b Backend) Resolver {
	return resolverFunc(func(_ context.Context, name string) (Backend, error) {
		if name != known {
			return nil, ErrUnknown
		}
		return b, nil
	})
}

// never fails the test when a name is resolved.
func never(t testing.TB) Resolver {
	return resolverFunc(func(_ context.Context, name string) (Backend, error) {
		t.Errorf("resolved %q", name)
		return nil, errors.New("not to be asked")
	})
}

// serving is a router on a listener.
type serving struct {
	*Router
	addr   string
	ended  chan error
	cancel context.CancelFunc
}

// serve runs a router on the loopback until the test ends.
func serve(t testing.TB, cfg Config, resolver Resolver) *serving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, cfg, resolver)
}

func serveOn(t testing.TB, l net.Listener, cfg Config, resolver Resolver) *serving {
	t.Helper()
	cfg.Domain = domain
	if cfg.TLS == nil {
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{certs().cert}, MinVersion: tls.VersionTLS12}
	}
	router, err := New(cfg, resolver)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &serving{Router: router, addr: l.Addr().String(), ended: make(chan error, 1), cancel: cancel}
	go func() { s.ended <- router.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-s.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// client is a client of a test, speaking the protocol by hand.
type client struct {
	net.Conn
	t testing.TB
	*pgproto3.Frontend
}

func (s *serving) dial(t testing.TB) *client {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, raw)
}

func newClient(t testing.TB, raw net.Conn) *client {
	t.Cleanup(func() { raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(patience))
	return &client{Conn: raw, t: t, Frontend: pgproto3.NewFrontend(raw, raw)}
}

// write sends bytes as they are.
func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.Conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// message sends a message.
func (c *client) message(m pgproto3.FrontendMessage) {
	c.t.Helper()
	out, err := m.Encode(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(out)
}

// answer reads the one byte that answers SSLRequest and GSSENCRequest.
func (c *client) answer() byte {
	c.t.Helper()
	var b [1]byte
	if _, err := io.ReadFull(c.Conn, b[:]); err != nil {
		c.t.Fatal(err)
	}
	return b[0]
}

// encrypt asks for TLS and begins it with this server name.
func (c *client) encrypt(serverName string) {
	c.t.Helper()
	c.message(&pgproto3.SSLRequest{})
	if a := c.answer(); a != 'S' {
		c.t.Fatalf("SSLRequest answered %q", a)
	}
	c.startTLS(&tls.Config{ServerName: serverName})
}

// startTLS begins TLS. The certificate is not what these tests look at.
func (c *client) startTLS(cfg *tls.Config) {
	c.t.Helper()
	cfg.InsecureSkipVerify = true
	stream := tls.Client(c.Conn, cfg)
	if err := stream.Handshake(); err != nil {
		c.t.Fatal(err)
	}
	c.Conn, c.Frontend = stream, pgproto3.NewFrontend(stream, stream)
}

// start sends a StartupMessage of user alice.
func (c *client) start(more ...string) {
	c.t.Helper()
	params := map[string]string{"user": "alice", "database": "app"}
	for i := 0; i+1 < len(more); i += 2 {
		params[more[i]] = more[i+1]
	}
	c.message(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: params})
}

// open connects to a name up to and with the StartupMessage.
func (s *serving) open(t testing.TB, name string) *client {
	t.Helper()
	c := s.dial(t)
	c.encrypt(name + "." + domain)
	c.start()
	return c
}

// receive reads a message of type M, or fails.
func receive[M pgproto3.BackendMessage](c *client) M {
	c.t.Helper()
	m, err := c.Receive()
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	want, ok := m.(M)
	if !ok {
		c.t.Fatalf("received %T %+v, not %T", m, m, want)
	}
	return want
}

// refused reads an ErrorResponse with this code, and the end after it.
func (c *client) refused(code string) *pgproto3.ErrorResponse {
	c.t.Helper()
	e := *receive[*pgproto3.ErrorResponse](c)
	if e.Code != code || e.Severity != "FATAL" || e.SeverityUnlocalized != "FATAL" || e.Message == "" {
		c.t.Fatalf("refused with %+v, not %s", e, code)
	}
	c.ended()
	return &e
}

// ended checks that nothing more comes but the end.
func (c *client) ended() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.Conn); len(rest) > 0 || isTimeout(err) {
		c.t.Fatalf("not the end of the connection: %q, %v", rest, err)
	}
	c.Close()
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		<-tick.C
	}
}
