package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// appRig is an edge with one app.
type appRig struct {
	*host
	edge     *Edge
	front    *httptest.Server
	registry *prometheus.Registry

	leading   atomic.Bool
	forwarded atomic.Int64
	wakes     atomic.Int64

	mu    sync.Mutex
	known bool
	app   App
	rows  map[string]*record.Sandbox
	awake func(ctx context.Context) error
}

func newAppRig(t testing.TB, change ...func(*Config)) *appRig {
	t.Helper()
	r := &appRig{
		host: newHost(t), registry: prometheus.NewRegistry(), rows: map[string]*record.Sandbox{},
		known: true, app: App{Status: record.AppRunning, Live: true},
	}
	r.leading.Store(true)
	client := r.client()
	t.Cleanup(client.Close)
	cfg := Config{
		Find: r.find, Host: func(string, string) *hostapi.Client { return client }, Leading: r.leading.Load,
		Forward: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.forwarded.Add(1)
			raw, _ := io.ReadAll(req.Body)
			fmt.Fprintf(w, "from the leader %s %s %s %s", req.URL.Path, req.Header.Get("Authorization"), req.Header.Get("Cookie"), raw)
		}),
		Log: slog.New(slog.DiscardHandler), OpenWait: 5 * time.Second, Registerer: r.registry,
		Apps: &Apps{
			Suffix: appSuffix, Self: "b", Hold: 20 * time.Second,
			Find: func(id string) (App, bool) {
				r.mu.Lock()
				defer r.mu.Unlock()
				a := r.app
				a.Instances = slices.Clone(a.Instances)
				return a, id == appID && r.known
			},
			Awake: func(ctx context.Context, _ string) error {
				r.wakes.Add(1)
				r.mu.Lock()
				awake := r.awake
				r.mu.Unlock()
				return awake(ctx)
			},
			Heard:  func(string, []Activity) {},
			Leader: func() (string, string) { return "b", "" }, Term: func() uint64 { return 1 },
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	r.edge = New(cfg)
	t.Cleanup(r.edge.Close)
	r.front = httptest.NewUnstartedServer(r.edge)
	r.front.EnableHTTP2 = true
	r.front.StartTLS()
	t.Cleanup(r.front.Close)
	return r
}

func (r *appRig) find(id string) (*record.Sandbox, string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.rows[id]
	if row == nil {
		return nil, "", false
	}
	return row.Clone(), "h1", true
}

// start makes a sandbox that runs a program, which serves no app yet.
func (r *appRig) start(t testing.TB, id string, program http.Handler) {
	t.Helper()
	s := httptest.NewServer(program)
	t.Cleanup(s.Close)
	r.startAt(id, s.Listener.Addr().String())
}

func (r *appRig) startAt(id, address string) {
	r.host.mu.Lock()
	r.boxes[id] = &boxOf{address: address}
	r.host.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[id] = &record.Sandbox{Meta: record.Meta{ID: id}, Status: record.SandboxRunning, HostID: "h1", Generation: 1, Owner: &record.Owner{Type: "app", ID: appID}}
}

// flip makes sandboxes the instances of the app.
func (r *appRig) flip(status record.AppStatus, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.app.Status, r.app.Instances = status, nil
	for _, id := range ids {
		r.app.Instances = append(r.app.Instances, Instance{SandboxID: id, Port: 3000})
	}
}

// sleeps makes a wake start the sandbox of that id.
func (r *appRig) sleeps(id string) {
	r.flip(record.AppHibernated)
	r.wakesBy(func(context.Context) error { r.flip(record.AppRunning, id); return nil })
}

func (r *appRig) wakesBy(awake func(ctx context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awake = awake
}

func (r *appRig) become(change func(a *App)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.app)
}

func (r *appRig) refuse(id string, e *hostapi.Error) {
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	r.boxes[id].refuse = e
}

func (r *appRig) request(t testing.TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.front.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = appHost
	req.Header.Set("User-Agent", browser)
	return req
}

func (r *appRig) do(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := r.front.Client().Do(req)
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

func (r *appRig) get(t testing.TB, path string) (*http.Response, string) {
	t.Helper()
	return r.do(t, r.request(t, http.MethodGet, path, http.NoBody))
}

func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		io.WriteString(w, text)
	})
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

var errSome = errors.New("no memory")

var discard = slog.New(slog.DiscardHandler)

func insecure(r *appRig) *tls.Config {
	return r.front.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
}
