package pgedge

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	domain   = "db.example.com"
	database = "5f2a6c1e-8f3b-4c56-9a51-0d4b7f6f1c11"
	box      = "k7m2qz4xw3v5n6a2j7p4t5r6sd"
	role     = "app"
	password = "a-password-of-the-app"
	token    = "a broker token"
)

var patience = timescale.Limit(time.Minute)

// host is a host daemon that has the database's box.
type host struct {
	server *httptest.Server

	mu     sync.Mutex
	ports  map[string]string // guest port to address
	asleep bool
	dials  int
	gone   bool // connections to the host fail
}

func newHost(t testing.TB) *host {
	h := &host{ports: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+hostapi.PathBoxes+"/{id}/dial/{port}", h.dial)
	h.server = httptest.NewTLSServer(mux)
	t.Cleanup(h.server.Close)
	return h
}

func (h *host) set(change func(h *host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func (h *host) dialled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dials
}

func (h *host) dial(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.dials++
	address, asleep, gone := h.ports[r.PathValue("port")], h.asleep, h.gone
	h.mu.Unlock()
	refuse := func(status int, code hostapi.Code) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(hostapi.Error{Code: code, Message: string(code)})
	}
	switch {
	case gone:
		panic(http.ErrAbortHandler)
	case r.PathValue("id") != box:
		refuse(http.StatusNotFound, hostapi.CodeNotFound)
		return
	case asleep:
		refuse(http.StatusConflict, hostapi.CodeNotRunning)
		return
	}
	guest, err := net.Dial("tcp", address)
	if err != nil {
		refuse(http.StatusBadGateway, hostapi.CodePortClosed)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", hostapi.UpgradeTCP)
	rw.Flush()
	go func() {
		_, _ = io.Copy(guest, rw)
		_ = guest.(*net.TCPConn).CloseWrite()
	}()
	go func() {
		defer conn.Close()
		defer guest.Close()
		_, _ = io.Copy(conn, guest)
	}()
}

func (h *host) client(t testing.TB) *hostapi.Client {
	roots := x509.NewCertPool()
	roots.AddCert(h.server.Certificate())
	c := hostapi.NewClient(h.server.Listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12})
	t.Cleanup(c.Close)
	return c
}

// rig is a replica with a router and one database.
type rig struct {
	t     testing.TB
	host  *host
	reach *Reach
	ca    string // the certificate authority's file
	addr  string // the router's address
	edge  *Router
	ends  context.CancelFunc

	mu    sync.Mutex
	table map[string]Entry
	awake func(ctx context.Context) error // the leader's Awake
	index uint64                          // the row's index at the leader; 0 if nobody is asked
	wakes atomic.Int64
}

func entry() Entry {
	sum := sha256.Sum256([]byte(token))
	return Entry{
		ID: database, WorkspaceID: "ws", Status: record.DatabaseReady, User: role, BrokerTokenHash: sum[:],
		Verifier:  "SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
		SandboxID: box, SandboxStatus: record.SandboxRunning, HostID: "h1", HostAddress: "h1:1",
	}
}

// newRig returns a rig without a router and without PostgreSQL.
func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, host: newHost(t), table: map[string]Entry{database: entry()}}
	r.awake = func(context.Context) error {
		r.host.set(func(h *host) { h.asleep = false })
		r.change(func(e *Entry) { e.SandboxStatus = record.SandboxRunning })
		return nil
	}
	client := r.host.client(t)
	r.reach = NewReach(ReachConfig{
		Lookup: r.lookup, Latest: r.latest, Host: func(string, string) *hostapi.Client { return client }, Wake: r.wake,
	})
	t.Cleanup(r.reach.Close)
	return r
}

func (r *rig) lookup(id string) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.table[id]
	return e, ok
}

func (r *rig) latest(context.Context, string) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.index, r.index > 0
}

func (r *rig) change(f func(e *Entry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.table[database]
	f(&e)
	r.table[database] = e
}

func (r *rig) wake(ctx context.Context, id string) error {
	if id != database {
		return fmt.Errorf("wake of %s", id)
	}
	r.wakes.Add(1)
	r.mu.Lock()
	awake := r.awake
	r.mu.Unlock()
	return awake(ctx)
}

func (r *rig) onWake(f func(ctx context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awake = f
}

func (r *rig) sleep() {
	r.host.set(func(h *host) { h.asleep = true })
	r.change(func(e *Entry) { e.SandboxStatus = record.SandboxHibernated })
}

// route starts the rig's router.
func (r *rig) route(change ...func(*RouterConfig)) {
	r.t.Helper()
	dir := r.t.TempDir()
	dev, err := certs.OpenDev(dir, domain, time.Now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.ca = filepath.Join(dir, certs.DevCAFile)
	cfg := RouterConfig{
		Domain: domain, Certificate: dev.GetCertificate, Reach: r.reach, Secret: []byte("secret"),
		Registerer: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	if r.edge, err = NewRouter(cfg); err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.edge.Serve(ctx, l) }()
	r.ends = cancel
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// newPostgres returns a rig with a router in front of a real PostgreSQL server.
func newPostgres(t testing.TB) *rig {
	t.Helper()
	server := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	if _, err := tenant.New(server).Set(ctx, pgapi.Credentials{Database: role, Username: role, Password: password}); err != nil {
		t.Fatal(err)
	}
	conn, err := server.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var verifier string
	if err := conn.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", role).Scan(&verifier); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.change(func(e *Entry) { e.Verifier = verifier })
	r.host.set(func(h *host) {
		h.ports["5432"] = fmt.Sprintf("%s:%d", server.Config().Listen, server.Config().Port)
	})
	r.route()
	return r
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
		<-tick.C
	}
}

func port(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
