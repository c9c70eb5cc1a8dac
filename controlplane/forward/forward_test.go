package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is what the replicas of a test believe about the leader.
type cluster struct {
	mu      sync.Mutex
	leader  string
	address map[string]string // peer addresses
	ca      *pki.CA
	stall   time.Duration
}

func (c *cluster) lead(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = id
}

func (c *cluster) who() (id, address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader, c.address[c.leader]
}

// replica is a forwarder with its public server and its peer port.
type replica struct {
	id       string
	public   *httptest.Server
	served   atomic.Int64 // requests that the API itself got
	probed   atomic.Int64 // questions of others whether it is there
	frozen   atomic.Bool  // its peer port answers nothing
	believes func() (id, address string)
}

func newCluster(t *testing.T) *cluster {
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{ca: ca, address: map[string]string{}}
}

func (c *cluster) add(t *testing.T, id string, api http.HandlerFunc) *replica {
	t.Helper()
	cert, key, err := c.ca.Issue(pki.Identity{Role: pki.RoleReplica, Name: id}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node, err := pki.ParseNode(c.ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{id: id, believes: c.who}
	transport := peer.NewTransport(node)
	f := New(Config{
		Self: id, Transport: transport, Logger: slog.New(slog.DiscardHandler), Wait: 600 * time.Millisecond, Stall: c.stall,
		Leading:    func() bool { leader, _ := c.who(); return leader == id },
		Leader:     func() (string, string) { return r.believes() },
		AnyReplica: func(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/own/") },
		Repeatable: func(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/twice/") },
		Local: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.served.Add(1)
			w.Header().Set("Served-By", id)
			w.Header().Set(headerRequestID, req.Header.Get(headerRequestID))
			api(w, req)
		}),
	})
	r.public = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		peer.StripMarks(req)
		f.ServeHTTP(w, req)
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := peer.Handler(peer.Routes{Public: f})
	internal := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/healthz" {
			r.probed.Add(1)
		}
		if r.frozen.Load() {
			<-req.Context().Done()
			return
		}
		port.ServeHTTP(w, req)
	})}, TLS: &tls.Config{
		// httptest has a certificate of its own for clients that name no server.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return node.ServerTLS("http/1.1"), nil },
	}}
	internal.StartTLS()
	c.mu.Lock()
	c.address[id] = l.Addr().String()
	c.mu.Unlock()
	t.Cleanup(func() {
		r.public.Close()
		internal.Close()
		transport.CloseIdleConnections()
	})
	return r
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Got-Header", r.Header.Get("Some-Header"))
	w.WriteHeader(http.StatusTeapot)
	fmt.Fprintf(w, "%s %s %s %d", r.Method, r.URL.RequestURI(), body, r.ContentLength)
}

func do(t *testing.T, r *replica, method, path, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.public.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(out)
}

func TestFollowerForwardsAsItCame(t *testing.T) {
	c := newCluster(t)
	a, b := c.add(t, "a", echo), c.add(t, "b", echo)
	c.lead("a")
	const path = "/v1/sandboxes/a%2Fb/exec?x=1&x=%zz;y&empty="
	resp, body := do(t, b, "POST", path, `{"cmd":"true"}`, http.Header{"Some-Header": {"v"}, headerRequestID: {"mine"}})
	if resp.StatusCode != http.StatusTeapot || body != "POST "+path+` {"cmd":"true"} 14` {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if resp.Header.Get("Served-By") != "a" || resp.Header.Get("Got-Header") != "v" || resp.Header.Get(headerRequestID) != "mine" {
		t.Fatalf("%v", resp.Header)
	}
	if a.served.Load() != 1 || b.served.Load() != 0 {
		t.Fatal("served in the wrong place")
	}
	// A POST without a body is passed on without one.
	if _, body := do(t, b, "POST", "/v1/sandboxes", "", nil); body != "POST /v1/sandboxes  0" {
		t.Fatal(body)
	}
	if resp, _ := do(t, b, "GET", "/v1/sandboxes", "", nil); !strings.HasPrefix(resp.Header.Get(headerRequestID), "req_") {
		t.Fatalf("no request id was made: %v", resp.Header)
	}
}

// Behind a proxy that ends TLS, the leader learns what the follower's client speaks.
func TestTheClientsSchemeIsPassedOn(t *testing.T) {
	c := newCluster(t)
	tell := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, peer.ClientScheme(r), " ", strings.Join(r.Header.Values(peer.HeaderProto), ","))
	}
	c.add(t, "a", tell)
	b := c.add(t, "b", tell)
	c.lead("a")
	for said, want := range map[string]string{"": "http", "http": "http", "https": "https", "gopher": "http"} {
		h := http.Header{}
		if said != "" {
			h.Set(peer.HeaderProto, said)
		}
		if _, got := do(t, b, "GET", "/", "", h); got != want+" "+want {
			t.Errorf("%q became %q, want %q", said, got, want)
		}
	}
}

// The Upgrade header of a 426 is for one hop, and is still passed on.
func TestUpgradeRequiredSaysToWhat(t *testing.T) {
	c := newCluster(t)
	c.add(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusUpgradeRequired)
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	resp, _ := do(t, b, "GET", "/v1/sandboxes/x/exec/ws", "", nil)
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != "websocket" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

func TestLocalRoutesStayLocal(t *testing.T) {
	c := newCluster(t)
	a, b := c.add(t, "a", echo), c.add(t, "b", echo)
	c.lead("a")
	if resp, _ := do(t, b, "GET", "/own/health", "", nil); resp.Header.Get("Served-By") != "b" {
		t.Errorf("it was served by %s", resp.Header.Get("Served-By"))
	}
	if a.served.Load() != 0 {
		t.Fatal("the leader was bothered")
	}
}

func TestMarksOfStrangersAreIgnored(t *testing.T) {
	c := newCluster(t)
	var operator atomic.Value
	c.add(t, "a", func(_ http.ResponseWriter, r *http.Request) { operator.Store(peer.Operator(r.Context())) })
	b := c.add(t, "b", echo)
	c.lead("a")
	do(t, b, "GET", "/v1/admin/agents", "", http.Header{peer.HeaderOperator: {"eve"}, peer.HeaderForwarded: {"b"}})
	if operator.Load() != "" {
		t.Fatalf("a client made itself operator %q", operator.Load())
	}
}

func TestNoLeader(t *testing.T) {
	c := newCluster(t)
	b := c.add(t, "b", echo)
	resp, body := do(t, b, "GET", "/v1/sandboxes", "", nil)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || resp.Header.Get(headerRequestID) == "" || !strings.Contains(body, `"error"`) {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
}

func TestElectionIsWaitedFor(t *testing.T) {
	for _, leader := range []string{"a", "b"} { // another replica, and the very one that was asked
		c := newCluster(t)
		c.add(t, "a", echo)
		b := c.add(t, "b", echo)
		time.AfterFunc(150*time.Millisecond, func() { c.lead(leader) })
		resp, body := do(t, b, "POST", "/v1/sandboxes", "{}", nil)
		if resp.StatusCode != http.StatusTeapot || resp.Header.Get("Served-By") != leader || body != "POST /v1/sandboxes {} 2" {
			t.Fatalf("leader %s: %d %s", leader, resp.StatusCode, body)
		}
	}
}

// A leader that is down has not received the request, so a new leader gets it even
// if it must not run twice.
func TestDeadLeaderIsReplaced(t *testing.T) {
	c := newCluster(t)
	c.add(t, "a", echo)
	b := c.add(t, "b", echo)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address["dead"] = dead.Addr().String()
	dead.Close()
	c.lead("dead")
	time.AfterFunc(150*time.Millisecond, func() { c.lead("a") })
	large := strings.Repeat("x", maxKept+1) // streamed, not kept
	for _, body := range []string{"{}", large} {
		resp, got := do(t, b, "POST", "/v1/sandboxes", body, nil)
		if resp.StatusCode != http.StatusTeapot || !strings.Contains(got, body) {
			t.Fatalf("%d, %d bytes", resp.StatusCode, len(got))
		}
	}
}

// A leader that dies during a request may have carried it out.
func TestLeaderThatDiesOverARequest(t *testing.T) {
	for _, tc := range []struct {
		name, method, path string
		header             http.Header
		status             int
		asked              int64 // how often the API was asked in all
	}{
		{"what may be done once is not repeated", "POST", "/v1/sandboxes", nil, 502, 1},
		{"nor a GET", "GET", "/v1/sandboxes/x/exec/ws", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, 502, 1},
		{"what may be done twice is repeated", "POST", "/twice/sandboxes", nil, http.StatusTeapot, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			var asked atomic.Int64
			c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 1 {
					panic(http.ErrAbortHandler) // the connection is cut
				}
				echo(w, r)
			})
			b := c.add(t, "b", echo)
			c.lead("a")
			resp, body := do(t, b, tc.method, tc.path, "{}", tc.header)
			if resp.StatusCode != tc.status || asked.Load() != tc.asked {
				t.Fatalf("%d %s, asked %d times", resp.StatusCode, body, asked.Load())
			}
			if tc.status == 502 && resp.Header.Get("Retry-After") != "1" {
				t.Fatal("no Retry-After")
			}
		})
	}
}

// A connection that was used before may break over a request without a body. With an
// idempotency key, of which an app's program need not know, it is not repeated either.
func TestAKeyRepeatsNothingOnAKeptConnection(t *testing.T) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		c := newCluster(t)
		var asked atomic.Int64
		c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete && asked.Add(1) == 1 {
				panic(http.ErrAbortHandler) // the connection is cut
			}
			echo(w, r)
		})
		b := c.add(t, "b", echo)
		c.lead("a")
		do(t, b, "GET", "/v1/apps/x", "", nil)
		resp, body := do(t, b, "DELETE", "/v1/apps/x/proxy/y", "", http.Header{name: {"k"}})
		if resp.StatusCode != 502 || asked.Load() != 1 {
			t.Errorf("%s: %d %s, asked %d times", name, resp.StatusCode, body, asked.Load())
		}
	}
}

// Two replicas that take each other for the leader do not forward a request in
// circles. When one of them learns who leads, the request goes there.
func TestForwardedAtMostOnce(t *testing.T) {
	c := newCluster(t)
	a, b := c.add(t, "a", echo), c.add(t, "b", echo)
	a.believes = func() (string, string) { return "b", c.address["b"] }
	var mistaken atomic.Int64
	b.believes = func() (string, string) {
		if mistaken.Add(1) <= 2 {
			return "a", c.address["a"]
		}
		return c.who()
	}
	c.add(t, "c", echo)
	c.lead("c")
	resp, _ := do(t, b, "POST", "/v1/sandboxes", "{}", nil)
	if resp.Header.Get("Served-By") != "c" {
		t.Fatalf("%d served by %q", resp.StatusCode, resp.Header.Get("Served-By"))
	}
	b.believes = func() (string, string) { return "a", c.address["a"] }
	resp, _ = do(t, b, "POST", "/v1/sandboxes", "{}", nil)
	if resp.StatusCode != 503 || a.served.Load()+b.served.Load() != 0 {
		t.Fatalf("%d", resp.StatusCode)
	}
	// A request whose body is streamed has not been carried out either.
	if resp, got := do(t, b, "PUT", "/v1/sandboxes/x/fs?path=/a", "{}", nil); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Fatalf("%d %s", resp.StatusCode, got)
	}
}

func TestClientThatGoesIsNoticed(t *testing.T) {
	c := newCluster(t)
	arrived, gone := make(chan struct{}), make(chan struct{})
	c.add(t, "a", func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	req, err := http.NewRequestWithContext(ctx, "POST", b.public.URL+"/v1/sandboxes/x/exec", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-gone
}

func TestStreamsPass(t *testing.T) {
	c := newCluster(t)
	next := make(chan struct{})
	c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			kind, msg, err := ws.Read(r.Context())
			if err == nil {
				err = ws.Write(r.Context(), kind, bytes.ToUpper(msg))
			}
			_ = err // the client's side of the test reports what is missing
			ws.Close(websocket.StatusNormalClosure, "")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		http.NewResponseController(w).Flush()
		<-next
		fmt.Fprint(w, "data: two\n\n")
	})
	b := c.add(t, "b", echo)
	c.lead("a")

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(b.public.URL + "/v1/sandboxes/x/events?follow=1")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	if lines.Scan(); lines.Text() != "data: one" {
		t.Fatalf("first event: %q", lines.Text())
	}
	close(next) // the first came before the second was sent
	if lines.Scan(); lines.Scan() && lines.Text() != "data: two" {
		t.Fatalf("second event: %q", lines.Text())
	}
	resp.Body.Close()

	ws, _, err := websocket.Dial(t.Context(), b.public.URL+"/v1/sandboxes/x/exec/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, msg, err := ws.Read(t.Context()); err != nil || string(msg) != "HELLO" {
		t.Fatalf("%s, %v", msg, err)
	}
	ws.Close(websocket.StatusNormalClosure, "")
}
