package peer

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	*Port
	ca      *pki.CA
	address string
	now     func() time.Time // the clock for renewals

	renewals bytes.Buffer // what is logged of them
}

func (r *rig) node(t *testing.T, role pki.Role, name string) *pki.Node {
	t.Helper()
	cert, key, err := r.ca.Issue(pki.Identity{Role: role, Name: name}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n, err := pki.ParseNode(r.ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newRig runs a port and an HTTP server that answers with the name of the route.
func newRig(t *testing.T) *rig { return newRigWithin(t, handshakeTimeout) }

// newRigWithin is newRig with a shorter limit for handshakes. On a busy machine any
// handshake may exceed it.
func newRigWithin(t *testing.T, handshake time.Duration) *rig {
	t.Helper()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return newRigOf(t, ca, handshake)
}

func newRigOf(t *testing.T, ca *pki.CA, handshake time.Duration) *rig {
	t.Helper()
	r := &rig{ca: ca, now: time.Now}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	r.Port = New(l, r.address, r.node(t, pki.RoleReplica, "a"), slog.New(slog.DiscardHandler))
	r.timeout = handshake
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	say := func(what string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			io.WriteString(w, what)
			if Forwarded(q.Context()) {
				io.WriteString(w, " forwarded")
			}
			if op := Operator(q.Context()); op != "" {
				io.WriteString(w, " for "+op)
			}
			if q.Header.Get(HeaderForwarded)+q.Header.Get(HeaderOperator) != "" {
				io.WriteString(w, " with marks left on it")
			}
		})
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: Handler(Routes{
		Join:      say("join"),
		Heartbeat: func(w http.ResponseWriter, q *http.Request, host string) { say("heartbeat of "+host).ServeHTTP(w, q) },
		Renew:     RenewHandler(ca, func() time.Time { return r.now() }, slog.New(slog.NewTextHandler(&r.renewals, nil))),
		Authorities: func(w http.ResponseWriter, q *http.Request, id pki.Identity) {
			say("authorities, to "+id.CommonName()).ServeHTTP(w, q)
		},
		Rotation:  say("rotation"),
		Status:    say("status"),
		Databases: say("databases"),
		Apps:      func(w http.ResponseWriter, q *http.Request, replica string) { say("apps, to "+replica).ServeHTTP(w, q) },
		Public:    say("public"),
		Trusted: func(id pki.Identity, leaf *x509.Certificate) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.trusted == nil || r.trusted(id, leaf)
		},
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(r.HTTP()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		srv.Close()
		<-served
	})
	return r
}

func TestCallersReachOnlyWhatIsTheirs(t *testing.T) {
	r := newRig(t)
	stranger := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	as := func(role pki.Role, name string) *tls.Config {
		return r.node(t, role, name).ClientTLS(pki.AnyOf(pki.RoleReplica))
	}
	for _, c := range []struct {
		name   string
		config *tls.Config
		path   string
		header http.Header
		status int
		body   string
	}{
		{"a stranger joins", stranger, hostapi.PathJoin, nil, 200, "join"},
		{"a stranger's heartbeat", stranger, hostapi.PathHeartbeat, nil, 401, "client certificate"},
		{"a stranger's API call", stranger, "/v1/sandboxes", nil, 401, "client certificate"},
		{"a stranger who claims to forward", stranger, "/v1/sandboxes", http.Header{HeaderForwarded: {"a"}}, 401, "client certificate"},
		{"a host's heartbeat", as(pki.RoleHost, "h1"), hostapi.PathHeartbeat, nil, 200, "heartbeat of h1"},
		{"a host that claims to forward", as(pki.RoleHost, "h1"), "/v1/sandboxes", http.Header{HeaderForwarded: {"h1"}, HeaderOperator: {"eve"}}, 403, "forbidden"},
		{"a host asks for a replica's status", as(pki.RoleHost, "h1"), PathStatus, nil, 403, "forbidden"},
		{"a replica asks for the status", as(pki.RoleReplica, "b"), PathStatus, nil, 200, "status"},
		{"a replica forwards a question for the status", as(pki.RoleReplica, "b"), PathStatus, http.Header{HeaderForwarded: {"b"}}, 403, "forbidden"},
		{"a replica asks of a database", as(pki.RoleReplica, "b"), PathDatabases + "d/wake", nil, 200, "databases"},
		{"a replica tells of apps", as(pki.RoleReplica, "b"), PathApps + "activity", nil, 200, "apps, to b"},
		{"a replica forwards a report", as(pki.RoleReplica, "b"), PathApps + "activity", http.Header{HeaderForwarded: {"b"}}, 403, "forbidden"},
		{"a host tells of apps", as(pki.RoleHost, "h1"), PathApps + "activity", nil, 403, "forbidden"},
		{"an operator wakes an app", as(pki.RoleOperator, "ann"), PathApps + "a/wake", nil, 403, "forbidden"},
		{"a stranger wakes an app", stranger, PathApps + "a/wake", nil, 401, "client certificate"},
		{"a replica forwards a question of a database", as(pki.RoleReplica, "b"), PathDatabases + "d/wake", http.Header{HeaderForwarded: {"b"}}, 403, "forbidden"},
		{"a host asks of a database", as(pki.RoleHost, "h1"), PathDatabases + "d/wake", nil, 403, "forbidden"},
		{"an operator asks of a database", as(pki.RoleOperator, "ann"), PathDatabases + "d/wake", nil, 403, "forbidden"},
		{"a router asks of a database", as(pki.RoleRouter, "r1"), PathDatabases + "d/wake", nil, 200, "databases"},
		{"a router that claims to forward", as(pki.RoleRouter, "r1"), "/v1/databases", http.Header{HeaderForwarded: {"r1"}}, 403, "forbidden"},
		{"a router asks of apps", as(pki.RoleRouter, "r1"), PathApps + "a/wake", nil, 403, "forbidden"},
		{"a router asks for the status", as(pki.RoleRouter, "r1"), PathStatus, nil, 403, "forbidden"},
		{"a stranger asks of a database", stranger, PathDatabases + "cancel", nil, 401, "client certificate"},
		{"a replica's heartbeat", as(pki.RoleReplica, "b"), hostapi.PathHeartbeat, nil, 403, "forbidden"},
		{"a replica forwards", as(pki.RoleReplica, "b"), "/v1/sandboxes", http.Header{HeaderForwarded: {"b"}}, 200, "public forwarded"},
		{"a replica forwards for an operator", as(pki.RoleReplica, "b"), "/v1/admin/agents", http.Header{HeaderForwarded: {"b"}, HeaderOperator: {"ann"}}, 200, "public forwarded for ann"},
		{"a replica in another's name", as(pki.RoleReplica, "b"), "/v1/sandboxes", http.Header{HeaderForwarded: {"c"}}, 403, "forbidden"},
		{"an operator", as(pki.RoleOperator, "ann"), "/v1/admin/agents", http.Header{HeaderOperator: {"eve"}}, 200, "public for ann"},
		{"a host renews by GET", as(pki.RoleHost, "h1"), hostapi.PathRenew, nil, 405, "POST only"},
		{"a stranger renews", stranger, hostapi.PathRenew, nil, 401, "client certificate"},
		{"an operator renews", as(pki.RoleOperator, "ann"), hostapi.PathRenew, nil, 403, "forbidden"},
		{"a replica renews for another", as(pki.RoleReplica, "b"), hostapi.PathRenew, nil, 403, "forbidden"},
		{"a host says which CAs it trusts", as(pki.RoleHost, "h1"), hostapi.PathAuthorities, nil, 200, "authorities, to host:h1"},
		{"a router says which CAs it trusts", as(pki.RoleRouter, "r1"), hostapi.PathAuthorities, nil, 200, "authorities, to router:r1"},
		{"a stranger asks for the CAs", stranger, hostapi.PathAuthorities, nil, 401, "client certificate"},
		{"an operator asks for the CAs", as(pki.RoleOperator, "ann"), hostapi.PathAuthorities, nil, 403, "forbidden"},
		{"a replica says which CAs it trusts", as(pki.RoleReplica, "b"), hostapi.PathAuthorities, nil, 403, "forbidden"},
		{"a replica asks who trusts which CA", as(pki.RoleReplica, "b"), PathRotation, nil, 200, "rotation"},
		{"a replica forwards a question of CAs", as(pki.RoleReplica, "b"), PathRotation, http.Header{HeaderForwarded: {"b"}}, 403, "forbidden"},
		{"a host asks who trusts which CA", as(pki.RoleHost, "h1"), PathRotation, nil, 403, "forbidden"},
		{"a router asks who trusts which CA", as(pki.RoleRouter, "r1"), PathRotation, nil, 403, "forbidden"},
		{"an operator on an internal path", as(pki.RoleOperator, "ann"), "/internal/v1/other", nil, 403, "forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: c.config, ForceAttemptHTTP2: true}
			defer transport.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+r.address+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range c.header {
				req.Header[k] = v
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			ok := resp.StatusCode == c.status && strings.Contains(string(body), c.body)
			if !ok || c.status == 200 && string(body) != c.body {
				t.Fatalf("%d %q, want %d %q", resp.StatusCode, body, c.status, c.body)
			}
		})
	}
}

func TestRaftStreamIsForReplicas(t *testing.T) {
	r := newRig(t)
	layer := r.Raft()
	other := &stream{dealt: newDealt("b"), node: r.node(t, pki.RoleReplica, "b")}
	conn, err := other.Dial(raft.ServerAddress(r.address), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	accepted, err := layer.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	got := make([]byte, 4)
	if _, err := io.ReadFull(accepted, got); err != nil || string(got) != "ping" {
		t.Fatalf("%q, %v", got, err)
	}

	host := &stream{dealt: newDealt("h"), node: r.node(t, pki.RoleHost, "h1")}
	hostConn, err := host.Dial(raft.ServerAddress(r.address), time.Second)
	if err == nil { // TLS 1.3: the client is done before the server has looked
		defer hostConn.Close()
		if _, err = hostConn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("a host on Raft's stream: %v, want the connection closed", err)
		}
	}
	layer.Close()
	if _, err := layer.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Accept after Close: %v", err)
	}
}

// When a member is removed, the connections that it has opened are cut.
func TestConnectionsOfWhoIsRemovedAreCut(t *testing.T) {
	r := newRig(t)
	layer := r.Raft()
	open := func(name string) net.Conn {
		conn, err := (&stream{dealt: newDealt("m"), node: r.node(t, pki.RoleReplica, name)}).Dial(raft.ServerAddress(r.address), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		accepted, err := layer.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { accepted.Close() })
		return conn
	}
	stays, goes := open("b"), open("c")
	r.Trust(func(id pki.Identity, _ *x509.Certificate) bool { return id.Name != "c" })
	r.Recheck()
	if _, err := goes.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the removed replica's connection: %v, want its end", err)
	}
	again, err := (&stream{dealt: newDealt("c"), node: r.node(t, pki.RoleReplica, "c")}).Dial(raft.ServerAddress(r.address), time.Second)
	if err == nil { // TLS 1.3: the client is done before the server has looked
		defer again.Close()
		_, err = again.Read(make([]byte, 1))
	}
	if err == nil {
		t.Error("the removed replica connected again")
	}
	if _, err := stays.Write([]byte("x")); err != nil {
		t.Errorf("the connection of a member: %v", err)
	}
	until(t, "open connections, beside a removed replica's", 1, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.open)
	})
}

// A replica that was removed is told so when it asks, and nothing else.
func TestAReplicaThatWasRemovedLearnsOfIt(t *testing.T) {
	r := newRig(t)
	r.Trust(func(id pki.Identity, _ *x509.Certificate) bool { return id.Name != "c" && id.Name != "h1" })
	ask := func(role pki.Role, name, path string) (int, string, error) {
		transport := &http.Transport{TLSClientConfig: r.node(t, role, name).ClientTLS(pki.AnyOf(pki.RoleReplica), "http/1.1")}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+r.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if path != PathStatus {
			req.Header.Set(HeaderForwarded, name)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), nil
	}
	if status, body, err := ask(pki.RoleReplica, "c", PathStatus); err != nil || status != http.StatusGone || !strings.Contains(body, "was removed") {
		t.Errorf("the removed replica is told %d %q, %v", status, body, err)
	}
	for _, path := range []string{PathRate, PathApps + "activity", "/v1/sandboxes", "/healthz", hostapi.PathJoin} {
		if status, body, err := ask(pki.RoleReplica, "c", path); err == nil {
			t.Errorf("the removed replica asks for %s and gets %d %q", path, status, body)
		}
	}
	if status, body, err := ask(pki.RoleHost, "h1", PathStatus); err == nil {
		t.Errorf("a removed host gets %d %q", status, body)
	}
	if status, _, err := ask(pki.RoleReplica, "b", PathStatus); err != nil || status != http.StatusOK {
		t.Errorf("a member gets %d, %v", status, err)
	}
	until(t, "connections of whoever was removed", 0, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.strangers)
	})
}

func TestPortOutlivesHostileBytes(t *testing.T) {
	r := newRigWithin(t, time.Second)
	junk := make([]byte, 64<<10)
	rand.Read(junk)
	for name, bytesSent := range map[string][]byte{
		"noise":              junk,
		"plain HTTP":         []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"half a ClientHello": {0x16, 0x03, 0x01, 0x40, 0x00, 0x01},
		"huge record":        append([]byte{0x16, 0x03, 0x03, 0xff, 0xff}, bytes.Repeat([]byte{0}, 1<<16)...),
		"nothing":            nil,
	} {
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		conn.Write(bytesSent) // may fail once the server has closed
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%s: the connection was still open after 20 s", name)
		}
		conn.Close()
	}
	// The port still serves members.
	transport := NewTransport(r.node(t, pki.RoleReplica, "b"))
	defer transport.CloseIdleConnections()
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := (&http.Client{Transport: transport}).Get("https://" + r.address + PathStatus)
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestStrangersHandshakesAreBounded(t *testing.T) {
	r := newRigWithin(t, 300*time.Millisecond)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range maxHandshakes + 20 {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	// All of them are closed after the handshake timeout, without an answer.
	for _, c := range conns {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Read(make([]byte, 1)); isTimeout(err) {
			t.Fatal("a silent connection was kept")
		}
	}
}

// until waits until count returns want.
func until(t *testing.T, what string, want int, count func() int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); count() != want; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d, want %d", what, count(), want)
		}
	}
}

// Connections that finish the handshake and then send nothing stay open until they have
// been idle for a long time. Members can still connect meanwhile.
func TestStrangersConnectionsAreBounded(t *testing.T) {
	r := newRig(t)
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	var conns []*tls.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	dial := func() *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", r.address, config)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		return c
	}
	counted := func() int {
		r.Port.mu.Lock()
		defer r.Port.mu.Unlock()
		return len(r.Port.strangers)
	}
	for range maxStrangers {
		dial()
	}
	until(t, "strangers, at the bound", maxStrangers, func() int {
		if counted() < maxStrangers {
			dial() // one before was given up: its handshake waited too long for a processor
		}
		return counted()
	})
	more := dial()
	more.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := more.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Fatalf("one more was not closed: %v", err)
	}
	transport := NewTransport(r.node(t, pki.RoleReplica, "b"))
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + r.address + PathStatus)
	if err != nil {
		t.Fatalf("a member beside them: %v", err)
	}
	resp.Body.Close()
	for _, c := range conns {
		c.Close()
	}
	until(t, "strangers, when they have gone", 0, counted)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
