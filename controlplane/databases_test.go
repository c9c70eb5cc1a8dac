package controlplane

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pgrouter"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// verifier is the form in which PostgreSQL stores a password (RFC 5802, section 3).
func verifier(t *testing.T, password string) string {
	t.Helper()
	salt := []byte("0123456789abcdef")
	salted, err := pbkdf2.Key(sha256.New, password, salt, 4096, sha256.Size)
	if err != nil {
		t.Fatal(err)
	}
	mac := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(s))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	return (&pgsni.Verifier{Iterations: 4096, Salt: salt, StoredKey: stored[:], ServerKey: mac(salted, "Server Key")}).String()
}

func loopbackPort(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// runRouter runs a replica with a router, in this process.
func runRouter(t *testing.T, change func(*Config)) *Server {
	t.Helper()
	s, _ := startRouter(t, change)
	return s
}

// startRouter also returns what stops the replica, which the test's end does as well.
func startRouter(t *testing.T, change func(*Config)) (s *Server, stop func()) {
	t.Helper()
	dir, peerPort := t.TempDir(), loopbackPort(t)
	member := pki.Member{ID: "a", Address: peerPort.Addr().String()}
	if err := pki.InitCluster(dir, []pki.Member{member}, "ann", sealKey(t), time.Now()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		DataDir: t.TempDir(), PKIDir: filepath.Join(dir, "a"), Listen: "-", AdminToken: adminToken,
		HeartbeatInterval: time.Second, HostLease: 10 * time.Second, Logger: testcluster.Log(),
		PublicListener: loopbackPort(t), PeerListener: peerPort, DBListener: loopbackPort(t),
		DBDomain: "db.example.com", DBRouterPort: 5432,
	}
	change(&cfg)
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func awaitLeader(t *testing.T, s *Server) {
	t.Helper()
	testcluster.Await(t, "a leader", func() bool {
		resp, _ := raw(t, "GET", "http://"+s.Addr()+"/v1/admin/agents", adminToken, "")
		return resp.StatusCode == 200
	})
}

// putFailed records a database that has failed.
func putFailed(t *testing.T, s *Server, id, password string) {
	t.Helper()
	row := &record.Database{
		Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: record.DatabaseProvisioning, Name: "app", Username: "app",
		Credentials: &record.DatabaseCredentials{Verifier: verifier(t, password)},
	}
	put := func() {
		t.Helper()
		if err := s.store.Update(t.Context(), func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Databases, row.Clone())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put()
	row.Status, row.Error = record.DatabaseFailed, "host h1 is lost"
	put()
}

// login is what a router refuses a client with.
func login(t *testing.T, ca, address, id, password string) *pgconn.PgError {
	t.Helper()
	host, port, _ := net.SplitHostPort(address)
	cfg, err := pgx.ParseConfig("host=" + id + ".db.example.com port=" + port + " user=app dbname=app sslmode=verify-full channel_binding=require sslrootcert=" + filepath.Join(ca, certs.DevCAFile))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = password
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		t.Fatal(err)
	}
	return e
}

func TestAReplicaRoutesDatabases(t *testing.T) {
	ca := t.TempDir()
	s := runRouter(t, func(c *Config) { c.DBDevCA = ca })
	const known, password = "5f2a6c1e-8f3b-4c56-9a51-0d4b7f6f1c11", "a-password-of-the-app"
	login := func(id, password string) *pgconn.PgError { return login(t, ca, s.db.Addr().String(), id, password) }
	awaitLeader(t, s)
	putFailed(t, s, known, password)
	if e := login("0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11", password); e.Code != "28P01" {
		t.Errorf("an unknown one: %v", e)
	}
	if e := login(known, "another password"); e.Code != "28P01" {
		t.Errorf("a wrong password: %v", e)
	}
	if e := login(known, password); e.Code != "57P03" || e.Detail != "host h1 is lost" {
		t.Errorf("a failed one: %v", e)
	}
	_, shown := raw(t, "GET", "http://"+s.Addr()+"/metrics", "", "")
	for _, want := range []string{`berth_pg_refused_total{sqlstate="28P01"} 2`, `berth_pg_refused_total{sqlstate="57P03"} 1`, "berth_pg_sessions 0"} {
		if !strings.Contains(shown, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// One certificate may serve the API and databases.
func TestARouterOfItsOwnOutlivesTheReplica(t *testing.T) {
	ca := t.TempDir()
	s, stop := startRouter(t, func(c *Config) { c.DBDevCA = ca })
	awaitLeader(t, s)
	const known, password = "5f2a6c1e-8f3b-4c56-9a51-0d4b7f6f1c11", "a-password-of-the-app"
	putFailed(t, s, known, password)

	dir := t.TempDir()
	if err := pki.AddRouter(dir, s.cfg.PKIDir, "r1", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	router, err := pgrouter.New(t.Context(), pgrouter.Config{
		PKIDir: filepath.Join(dir, "r1"), Domain: "db.example.com", DevCA: ca, Listener: loopbackPort(t), Logger: testcluster.Log(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- router.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	check := func(when string) {
		t.Helper()
		if e := login(t, ca, router.Addr(), "0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11", password); e.Code != "28P01" {
			t.Errorf("%s: an unknown one: %v", when, e)
		}
		if e := login(t, ca, router.Addr(), known, "another password"); e.Code != "28P01" {
			t.Errorf("%s: a wrong password: %v", when, e)
		}
		if e := login(t, ca, router.Addr(), known, password); e.Code != "57P03" || e.Detail != "host h1 is lost" {
			t.Errorf("%s: a failed one: %v", when, e)
		}
	}
	check("with a replica")
	stop()
	check("without")
}

func TestNewCertificateFilesAreServedWithoutARestart(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	issue := func() {
		t.Helper()
		ca, err := pki.NewCA(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		certPEM, keyPEM, err := ca.Issue(pki.Identity{Role: pki.RoleReplica, Name: "x"}, []string{"*.db.example.com", "127.0.0.1"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string][]byte{cert: certPEM, key: keyPEM} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue()
	s := runRouter(t, func(c *Config) { c.TLSCert, c.TLSKey = cert, key })
	shown := func(addr string, protocol ...string) string {
		t.Helper()
		var leaf *x509.Certificate
		testcluster.Await(t, "a handshake", func() bool {
			c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, NextProtos: protocol, ServerName: "x.db.example.com"})
			if err != nil {
				return false
			}
			defer c.Close()
			leaf = c.ConnectionState().PeerCertificates[0]
			return true
		})
		return leaf.SerialNumber.String()
	}
	router := s.db.Addr().String()
	first := shown(s.Addr())
	if shown(router, "postgresql") != first {
		t.Error("the router has another certificate")
	}
	issue()
	testcluster.Await(t, "the new certificate", func() bool {
		now := shown(s.Addr())
		return now != first && shown(router, "postgresql") == now
	})
}
