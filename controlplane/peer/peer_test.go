package peer

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
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

// newRig runs a port with an HTTP server that answers what it was routed to.
func newRig(t *testing.T) *rig {
	t.Helper()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{ca: ca}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	r.Port = New(l, r.address, r.node(t, pki.RoleReplica, "a"), slog.New(slog.DiscardHandler))
	r.timeout = 300 * time.Millisecond
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
		Status:    say("status"),
		Public:    say("public"),
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
		{"a replica's heartbeat", as(pki.RoleReplica, "b"), hostapi.PathHeartbeat, nil, 403, "forbidden"},
		{"a replica forwards", as(pki.RoleReplica, "b"), "/v1/sandboxes", http.Header{HeaderForwarded: {"b"}}, 200, "public forwarded"},
		{"a replica forwards for an operator", as(pki.RoleReplica, "b"), "/v1/admin/agents", http.Header{HeaderForwarded: {"b"}, HeaderOperator: {"ann"}}, 200, "public forwarded for ann"},
		{"a replica in another's name", as(pki.RoleReplica, "b"), "/v1/sandboxes", http.Header{HeaderForwarded: {"c"}}, 403, "forbidden"},
		{"an operator", as(pki.RoleOperator, "ann"), "/v1/admin/agents", http.Header{HeaderOperator: {"eve"}}, 200, "public for ann"},
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

// What a member opened while it was one ends when it is removed.
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
	r.Trust(func(id pki.Identity) bool { return id.Name != "c" })
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

func TestPortOutlivesHostileBytes(t *testing.T) {
	r := newRig(t)
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
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		conn.Write(bytesSent) // may fail once the server has closed
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%s: the connection was still open after 5 s", name)
		}
		conn.Close()
	}
	// And it still serves.
	transport := NewTransport(r.node(t, pki.RoleReplica, "b"))
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + r.address + PathStatus)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestStrangersHandshakesAreBounded(t *testing.T) {
	r := newRig(t)
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
	// All of them are closed after the handshake time-out, unanswered.
	for _, c := range conns {
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); isTimeout(err) {
			t.Fatal("a silent connection was kept")
		}
	}
}

// until waits for a number of something.
func until(t *testing.T, what string, want int, count func() int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); count() != want; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d, want %d", what, count(), want)
		}
	}
}

// Connections that went through the handshake and then say nothing are kept until
// they are idle for long; members have room beside them.
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
		// A handshake that a busy machine draws out past its limit is cut off.
		for deadline := time.Now().Add(2 * time.Minute); ; {
			c, err := tls.Dial("tcp", r.address, config)
			if err == nil {
				conns = append(conns, c)
				return c
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	counted := func() int {
		r.Port.mu.Lock()
		defer r.Port.mu.Unlock()
		return len(r.Port.strangers)
	}
	for range maxStrangers {
		dial()
	}
	until(t, "strangers, at the bound", maxStrangers, counted)
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
