package edge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// host is a host daemon that has one box, whose ports are backends of the test.
type host struct {
	t      testing.TB
	server *httptest.Server

	mu     sync.Mutex
	ports  map[string]string // guest port to address
	refuse *hostapi.Error    // answers every dial, if set
	dials  []string          // the ids of the requests that they were for

	boxes map[string]*boxOf // further boxes, by id
}

// boxOf is a box all of whose ports are one backend.
type boxOf struct {
	address string
	refuse  *hostapi.Error
}

func newHost(t testing.TB) *host {
	h := &host{t: t, ports: map[string]string{}, boxes: map[string]*boxOf{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+hostapi.PathBoxes+"/{id}/dial/{port}", h.dial)
	h.server = httptest.NewTLSServer(mux)
	t.Cleanup(h.server.Close)
	return h
}

func (h *host) serve(port int, backend http.Handler) {
	h.t.Helper()
	b := httptest.NewServer(backend)
	h.t.Cleanup(b.Close)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports[strconv.Itoa(port)] = b.Listener.Addr().String()
}

func (h *host) set(e *hostapi.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = e
}

func (h *host) dialled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.dials)
}

func (h *host) dialledFor() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.dials)
}

func (h *host) dial(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.dials = append(h.dials, r.Header.Get(hostapi.HeaderRequestID))
	address, refuse := h.ports[r.PathValue("port")], h.refuse
	if of := h.boxes[r.PathValue("id")]; of != nil {
		address, refuse = of.address, of.refuse
	}
	h.mu.Unlock()
	if refuse == nil && address == "" {
		refuse = &hostapi.Error{Code: hostapi.CodePortClosed, Message: "port is closed"}
	}
	if refuse != nil {
		w.WriteHeader(map[hostapi.Code]int{hostapi.CodePortClosed: 502, hostapi.CodeNotRunning: 409, hostapi.CodeNotFound: 404}[refuse.Code])
		_ = json.NewEncoder(w).Encode(refuse)
		return
	}
	guest, err := net.Dial("tcp", address)
	for tries := 0; errors.Is(err, syscall.ECONNRESET) && tries < 10; tries++ {
		// Thousands a second use a loopback port again before its last peer has let go of it.
		guest, err = net.Dial("tcp", address)
	}
	if err != nil {
		// Connections that no request needs any more are also dialled when the guest is gone.
		w.WriteHeader(http.StatusBadGateway)
		_ = json.NewEncoder(w).Encode(&hostapi.Error{Code: hostapi.CodePortClosed, Message: err.Error()})
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.t.Error(err)
		return
	}
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", hostapi.UpgradeTCP)
	rw.Flush()
	go func() {
		defer conn.Close()
		defer guest.Close()
		_, _ = io.Copy(guest, rw)
	}()
	go func() {
		defer conn.Close()
		defer guest.Close()
		_, _ = io.Copy(conn, guest)
	}()
}

func (h *host) client() *hostapi.Client {
	roots := x509.NewCertPool()
	roots.AddCert(h.server.Certificate())
	return hostapi.NewClient(h.server.Listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12})
}

// rig is an edge with one sandbox on one host.
type rig struct {
	*host
	edge  *Edge
	front *httptest.Server

	mu        sync.Mutex
	sandbox   record.Sandbox
	leading   atomic.Bool
	forwarded atomic.Int64
	awake     func() error
}

// plainSealer does not encrypt, but binds its result to the context as the real one
// does.
type plainSealer struct{}

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{host: newHost(t), sandbox: record.Sandbox{
		Meta: record.Meta{ID: box}, Status: record.SandboxRunning, HostID: "h1", Generation: 1,
	}}
	r.leading.Store(true)
	client := r.client()
	t.Cleanup(client.Close)
	cfg := Config{
		Find: func(id string) (*record.Sandbox, string, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.sandbox.Clone(), "h1", id == box
		},
		Host:    func(string, string) *hostapi.Client { return client },
		Leading: r.leading.Load,
		Forward: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.forwarded.Add(1)
			tokens, _ := takeTokens(req)
			fmt.Fprintf(w, "from the leader, token %q", strings.Join(tokens, " "))
		}),
		Previews: &Previews{
			Suffix: suffix,
			Awake:  func(context.Context, string) error { return r.awake() },
			Tokens: authn.PreviewTokens{Sealer: plainSealer{}, Clock: time.Now},
		},
		Log: slog.New(slog.DiscardHandler), OpenWait: 5 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	e := New(cfg)
	r.edge = e
	t.Cleanup(e.Close)
	r.front = httptest.NewUnstartedServer(e)
	r.front.EnableHTTP2 = true
	r.front.StartTLS()
	t.Cleanup(r.front.Close)
	return r
}

func (r *rig) become(s record.SandboxStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandbox.Status = s
}

func (r *rig) request(t *testing.T, method, host, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.front.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	return req
}

func (r *rig) do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	client := *r.front.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(raw)
}

func (r *rig) get(t *testing.T, port int, path string) (*http.Response, string) {
	t.Helper()
	return r.do(t, r.request(t, http.MethodGet, hostOf(port), path, http.NoBody))
}

func hostOf(port int) string { return strconv.Itoa(port) + "-" + box + "." + suffix }
