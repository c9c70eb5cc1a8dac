package server

import (
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
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/hostd/ledger"
)

func TestMain(m *testing.M) {
	// A real guest's freeze ends with its VM; the guests here are goroutines.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/berth-cloud/berth/guest/proc.(*Freezer).hold"))
}

const id = "aaaaaaaaaaaaaaaaaaaaaaaaaa"

var leader = hostapi.Binding{Term: 7}

// boxes is a Boxes of functions; one that is not set is not expected.
type boxes struct {
	put    func(context.Context, string, hostapi.BoxSpec) (hostapi.Box, error)
	get    func(string) (hostapi.Box, error)
	delete func(context.Context, string, uint64) error
	exec   func(context.Context, string, hostapi.ExecRequest) (hostapi.ExecResult, error)
	move   func(string) (hostapi.Box, error)
	ready  bool
}

func (b *boxes) Put(ctx context.Context, id string, s hostapi.BoxSpec) (hostapi.Box, error) {
	return b.put(ctx, id, s)
}
func (b *boxes) Get(id string) (hostapi.Box, error) { return b.get(id) }
func (b *boxes) List() []hostapi.Box                { return []hostapi.Box{{ID: id}} }
func (b *boxes) Ready() bool                        { return b.ready }
func (b *boxes) Delete(ctx context.Context, id string, g uint64) error {
	return b.delete(ctx, id, g)
}
func (b *boxes) DeleteKeepingDisk(ctx context.Context, id string, g uint64) error {
	return b.delete(ctx, "kept/"+id, g)
}
func (b *boxes) Pause(_ context.Context, id string) (hostapi.Box, error) {
	return b.move("pause " + id)
}
func (b *boxes) Resume(_ context.Context, id string) (hostapi.Box, error) {
	return b.move("resume " + id)
}
func (b *boxes) Hibernate(_ context.Context, id string) (hostapi.Box, error) {
	return b.move("hibernate " + id)
}
func (b *boxes) Wake(_ context.Context, id string) (hostapi.Box, error) {
	return b.move("wake " + id)
}
func (b *boxes) Restart(_ context.Context, id string) (hostapi.Box, error) {
	return b.move("restart " + id)
}
func (b *boxes) Update(_ context.Context, id string, u hostapi.BoxUpdate) (hostapi.Box, error) {
	return b.move(fmt.Sprintf("persistent=%v ", u.Persistent != nil && *u.Persistent) + id)
}

// guests run commands, and know nothing else.
type guests struct {
	Guests
	exec func(context.Context, string, hostapi.ExecRequest) (hostapi.ExecResult, error)
}

func (b *boxes) guests() Guests {
	if b.exec == nil {
		return nil
	}
	return guests{exec: b.exec}
}

func (g guests) Exec(ctx context.Context, id string, r hostapi.ExecRequest) (hostapi.ExecResult, error) {
	return g.exec(ctx, id, r)
}

// stats has measured one box.
type stats struct{}

func (stats) Usage(_ context.Context, box string, history time.Duration) (hostapi.BoxStats, error) {
	if box != id {
		return hostapi.BoxStats{}, hosterr.ErrNotFound
	}
	return hostapi.BoxStats{CPU: 3, Every: history}, nil
}

type fixture struct {
	*hostapi.Client
	ca     *testca.CA
	server *Server
	addr   string
	log    *bytes.Buffer
}

// serve starts a server; the client presents commonName.
func serve(t *testing.T, b *boxes, commonName string) *fixture {
	t.Helper()
	f := &fixture{ca: testca.New(t), log: &bytes.Buffer{}}
	var mu sync.Mutex
	highest := uint64(5)
	b.ready = true
	f.server = New(Config{
		Boxes: b, Guests: b.guests(), Stats: stats{}, Info: func() hostapi.Heartbeat { return hostapi.Heartbeat{HostID: "h1"} },
		Member: func(replica string) bool { return replica != "removed" },
		Router: func(name string) bool { return name != "removed" },
		ObserveTerm: func(_ string, term uint64) error {
			mu.Lock()
			defer mu.Unlock()
			if term < highest {
				return fmt.Errorf("%w: %d, and %d was seen", ledger.ErrStaleTerm, term, highest)
			}
			highest = term
			return nil
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") }),
		Log:     slog.New(hostapi.WithRequestIDs(slog.NewTextHandler(f.log, nil))), Certificate: f.ca.Issue(t, "host:h1"), CA: f.ca.Pool,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(l) }()
	f.Client = hostapi.NewClient(f.addr, hostapi.PeerTLS(f.ca.Issue(t, commonName), f.ca.Pool, hostapi.IsHost("h1"))).Bind(leader)
	t.Cleanup(func() {
		f.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(t, f.server.Shutdown(ctx))
		must(t, <-served)
	})
	return f
}

func TestEveryRouteReachesItsBox(t *testing.T) {
	ctx := hostapi.WithRequestID(t.Context(), "req-1")
	var deleted uint64
	var kept bool
	b := &boxes{
		put: func(_ context.Context, id string, s hostapi.BoxSpec) (hostapi.Box, error) {
			return hostapi.Box{ID: id, Generation: s.Generation, Status: hostapi.StatusRunning}, nil
		},
		get:    func(id string) (hostapi.Box, error) { return hostapi.Box{ID: id}, nil },
		delete: func(_ context.Context, of string, g uint64) error { deleted, kept = g, of == "kept/"+id; return nil },
		exec: func(_ context.Context, _ string, r hostapi.ExecRequest) (hostapi.ExecResult, error) {
			return hostapi.ExecResult{Stdout: append([]byte(r.Argv[0]), 0xff, 0)}, nil
		},
		move: func(what string) (hostapi.Box, error) { return hostapi.Box{ID: what}, nil },
	}
	f := serve(t, b, "replica:r1")
	must(t, f.Healthz(ctx))
	if got, err := f.Info(ctx); err != nil || got.HostID != "h1" {
		t.Errorf("info = %+v, %v", got, err)
	}
	if got, err := f.Boxes(ctx); err != nil || len(got) != 1 {
		t.Errorf("list = %+v, %v", got, err)
	}
	if got, err := f.PutBox(ctx, id, hostapi.BoxSpec{Generation: 3}); err != nil || got.ID != id || got.Generation != 3 {
		t.Errorf("put = %+v, %v", got, err)
	}
	if got, err := f.GetBox(ctx, id); err != nil || got.ID != id {
		t.Errorf("get = %+v, %v", got, err)
	}
	if got, err := f.Pause(ctx, id); err != nil || got.ID != "pause "+id {
		t.Errorf("pause = %+v, %v", got, err)
	}
	if got, err := f.Resume(ctx, id); err != nil || got.ID != "resume "+id {
		t.Errorf("resume = %+v, %v", got, err)
	}
	if got, err := f.Hibernate(ctx, id); err != nil || got.ID != "hibernate "+id {
		t.Errorf("hibernate = %+v, %v", got, err)
	}
	if got, err := f.Wake(ctx, id); err != nil || got.ID != "wake "+id {
		t.Errorf("wake = %+v, %v", got, err)
	}
	if got, err := f.RestartBox(ctx, id); err != nil || got.ID != "restart "+id {
		t.Errorf("restart = %+v, %v", got, err)
	}
	if got, err := f.BoxStats(ctx, id, time.Minute); err != nil || got.CPU != 3 || got.Every != time.Minute {
		t.Errorf("usage = %+v, %v", got, err)
	}
	if _, err := f.BoxStats(ctx, strings.Repeat("b", 26), 0); !hostapi.HasCode(err, hostapi.CodeNotFound) {
		t.Errorf("usage of no box: %v", err)
	}
	if got, err := f.UpdateBox(ctx, id, hostapi.BoxUpdate{Persistent: new(true)}); err != nil || got.ID != "persistent=true "+id {
		t.Errorf("update = %+v, %v", got, err)
	}
	if got, err := f.Bind(hostapi.Binding{}).Exec(ctx, id, hostapi.ExecRequest{Argv: []string{"x"}}); err != nil || string(got.Stdout) != "x\xff\x00" {
		t.Errorf("exec = %+v, %v", got, err)
	}
	if err := f.DeleteBoxKeepingDisk(ctx, id, 8); err != nil || deleted != 8 || !kept {
		t.Errorf("delete of generation %d, %v; its disk is kept: %t", deleted, err, kept)
	}
	if err := f.DeleteBox(ctx, id, 9); err != nil || deleted != 9 || kept {
		t.Errorf("delete of generation %d, %v; its disk is kept: %t", deleted, err, kept)
	}
	if !strings.Contains(f.log.String(), "request_id=req-1") {
		t.Errorf("the request id is not in the log:\n%s", f.log)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	for _, row := range table {
		t.Run(string(row.code)+" "+row.err.Error(), func(t *testing.T) {
			rec := httptest.NewRecorder()
			fail(rec, httptest.NewRequest(http.MethodGet, "/", nil), slog.New(slog.DiscardHandler), fmt.Errorf("doing: %w", row.err))
			if rec.Code != row.status || !strings.Contains(rec.Body.String(), `"code":"`+string(row.code)+`"`) {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
		})
	}
	f := serve(t, &boxes{get: func(string) (hostapi.Box, error) { return hostapi.Box{}, errors.New("disk on fire") }}, "replica:r1")
	if _, err := f.GetBox(t.Context(), id); !hostapi.HasCode(err, hostapi.CodeInternal) {
		t.Errorf("unknown error = %v, want internal", err)
	}
}

func TestOnlyReplicasAreServed(t *testing.T) {
	b := &boxes{}
	for cn, want := range map[string]hostapi.Code{
		"replica:r1": "", "replica:": hostapi.CodeUnauthorized, "host:h2": hostapi.CodeUnauthorized,
		"operator:ann": hostapi.CodeUnauthorized, "xreplica:r1": hostapi.CodeUnauthorized, "": hostapi.CodeUnauthorized,
		"replica:removed": hostapi.CodeUnauthorized,
		"router:removed":  hostapi.CodeUnauthorized,
	} {
		t.Run(cn, func(t *testing.T) {
			f := serve(t, b, cn)
			_, err := f.Info(t.Context())
			if want == "" && err != nil || want != "" && !hostapi.HasCode(err, want) {
				t.Errorf("info = %v, want %q", err, want)
			}
			must(t, f.Healthz(t.Context()))

			// An operator may read the numbers, too.
			numbers := want == "" || cn == "operator:ann"
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
				InsecureSkipVerify: true, Certificates: []tls.Certificate{f.ca.Issue(t, cn)},
			}}}
			defer client.CloseIdleConnections()
			resp, err := client.Get("https://" + f.addr + hostapi.PathMetrics)
			must(t, err)
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || numbers != (resp.StatusCode == http.StatusOK && string(body) == "up 1\n") {
				t.Errorf("metrics: %d %q, %v; want them: %t", resp.StatusCode, body, err, numbers)
			}
		})
	}
}

func TestARouterConnectsToPostgresAlone(t *testing.T) {
	h := serve(t, &boxes{}, "replica:r1").server.handler()
	caller := "router:r1"
	status := func(path string) int {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Header.Set("Upgrade", hostapi.UpgradeTCP)
		r.TLS = verified(caller)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		return rec.Code
	}
	notHere, _ := classify(errNotHere)
	for path, want := range map[string]int{
		"/dial/5432": notHere, // these boxes have no guests: it was let in
		"/dial/998":  403, "/dial/22": 403, "/dial/05433": 403, "": 403, "/logs": 403,
	} {
		if got := status(hostapi.PathBoxes + "/" + id + path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if got := status(hostapi.PathInfo); got != 403 {
		t.Errorf("info: %d", got)
	}
	caller = "router:removed"
	if got := status(hostapi.PathBoxes + "/" + id + "/dial/5432"); got != 403 {
		t.Errorf("a router that was removed: %d", got)
	}
}

func TestStrangersGetHealthAlone(t *testing.T) {
	f := serve(t, &boxes{}, "replica:r1")
	other := testca.New(t)
	noCert := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer noCert.CloseIdleConnections()
	for path, want := range map[string]int{hostapi.PathHealthz: 200, hostapi.PathReadyz: 200, hostapi.PathInfo: 403, hostapi.PathMetrics: 403, "/v1/boxes/" + id: 403, "/nowhere": 403} {
		resp, err := noCert.Get("https://" + f.addr + path)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a certificate: %d, want %d", path, resp.StatusCode, want)
		}
	}
	stranger := hostapi.NewClient(f.addr, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{other.Issue(t, "replica:r1")}})
	defer stranger.Close()
	if err := stranger.Healthz(t.Context()); err == nil {
		t.Error("a certificate of another CA was let in")
	}
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}}
	defer old.CloseIdleConnections()
	if resp, err := old.Get("https://" + f.addr + hostapi.PathHealthz); err == nil {
		resp.Body.Close()
		t.Error("TLS 1.2 was accepted")
	}
}

func TestTheClientRefusesAnotherHost(t *testing.T) {
	f := serve(t, &boxes{}, "replica:r1")
	c := hostapi.NewClient(f.addr, hostapi.PeerTLS(f.ca.Issue(t, "replica:r1"), f.ca.Pool, hostapi.IsHost("h2")))
	defer c.Close()
	if err := c.Healthz(t.Context()); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Errorf("call to the wrong host = %v, want ErrUnreachable", err)
	}
}

func TestTerms(t *testing.T) {
	b := &boxes{move: func(string) (hostapi.Box, error) { return hostapi.Box{}, nil }}
	f := serve(t, b, "replica:r1")
	for _, step := range []struct {
		term uint64
		want hostapi.Code
	}{{0, hostapi.CodeInvalid}, {4, hostapi.CodeStaleTerm}, {5, ""}, {9, ""}, {8, hostapi.CodeStaleTerm}, {9, ""}} {
		_, err := f.Bind(hostapi.Binding{Term: step.term}).Pause(t.Context(), id)
		if step.want == "" && err != nil || step.want != "" && !hostapi.HasCode(err, step.want) {
			t.Errorf("term %d: %v, want %q", step.term, err, step.want)
		}
	}
}

// Whatever changes a box, or what outlives boxes, is refused to a deposed leader
// before it reaches either; so it is to a caller that does not say its term.
func TestADeposedLeaderChangesNothing(t *testing.T) {
	type ( // a field may not be named as a method is
		captures = Captures
		volumes  = Volumes
	)
	h := New(Config{
		// What reaches a part ends in a 500: there is nothing in it.
		Boxes: struct{ Boxes }{}, Captures: struct{ captures }{}, Stored: struct{ Stored }{}, Volumes: struct{ volumes }{},
		Builds: struct{ Builds }{}, Events: struct{ Events }{},
		ObserveTerm: func(cluster string, term uint64) error {
			return fmt.Errorf("%w: %d of %s", ledger.ErrStaleTerm, term, cluster)
		},
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	}).handler()
	const one = hostapi.PathBoxes + "/" + id
	for _, route := range []string{
		"PUT " + one, "PATCH " + one, "DELETE " + one, "POST " + one + "/pause", "POST " + one + "/resume",
		"POST " + one + "/hibernate", "POST " + one + "/wake", "POST " + one + "/events",
		"PUT " + hostapi.PathCaptures + "/snap-1", "DELETE " + hostapi.PathCaptures + "/snap-1?stored=true",
		"POST " + hostapi.PathCaptures + "/snap-1/store",
		"PUT " + hostapi.PathVolumes + "/vol-1", "DELETE " + hostapi.PathVolumes + "/vol-1",
		"PUT " + hostapi.PathBuilds + "/bld-1", "DELETE " + hostapi.PathBuilds + "/bld-1",
		"DELETE " + hostapi.PathTemplates + "/base",
	} {
		method, path, _ := strings.Cut(route, " ")
		for term, want := range map[string]struct {
			status int
			says   string
		}{"4": {http.StatusConflict, "4 of cl-old"}, "": {http.StatusBadRequest, ""}, "0": {http.StatusBadRequest, ""}} {
			r := httptest.NewRequest(method, path, strings.NewReader("{}"))
			r.Header.Set(hostapi.HeaderTerm, term)
			r.Header.Set(hostapi.HeaderCluster, "cl-old")
			r.TLS = verified("replica:r1")
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			if rec.Code != want.status || !strings.Contains(rec.Body.String(), want.says) {
				t.Errorf("%s in term %q: %d %s", route, term, rec.Code, rec.Body)
			}
		}
	}
}

func TestUnreachableAndUnknownAreToldApart(t *testing.T) {
	hang := make(chan struct{})
	b := &boxes{put: func(ctx context.Context, _ string, _ hostapi.BoxSpec) (hostapi.Box, error) {
		close(hang)
		<-ctx.Done()
		return hostapi.Box{}, ctx.Err()
	}}
	f := serve(t, b, "replica:r1")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hang; cancel() }()
	if _, err := f.PutBox(ctx, id, hostapi.BoxSpec{Generation: 1}); !errors.Is(err, hostapi.ErrUnknownOutcome) {
		t.Errorf("call that was cut off = %v, want ErrUnknownOutcome", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := l.Addr().String()
	must(t, l.Close())
	c := hostapi.NewClient(closed, hostapi.PeerTLS(f.ca.Issue(t, "replica:r1"), f.ca.Pool, hostapi.IsHost("h1")))
	defer c.Close()
	if _, err := c.PutBox(t.Context(), id, hostapi.BoxSpec{}); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Errorf("call to a closed port = %v, want ErrUnreachable", err)
	}
}

func TestBadInput(t *testing.T) {
	b := &boxes{
		put: func(context.Context, string, hostapi.BoxSpec) (hostapi.Box, error) { return hostapi.Box{}, nil },
		exec: func(context.Context, string, hostapi.ExecRequest) (hostapi.ExecResult, error) {
			panic("exec of bad input")
		},
		get: func(string) (hostapi.Box, error) { return hostapi.Box{}, hosterr.ErrNotFound },
	}
	h := serve(t, b, "replica:r1").server.handler()
	big := `{"generation":1,"template":"` + strings.Repeat("x", hostapi.MaxBody) + `"}`
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		says               string
	}{
		"id with a slash":       {"PUT", "/v1/boxes/aaaaaaaaaaaa%2Faaaaaaaaaaaaa", "{}", 400, "base32"},
		"id with NUL":           {"PUT", "/v1/boxes/aaaaaaaaaaaa%00aaaaaaaaaaaaa", "{}", 400, "base32"},
		"id with Unicode":       {"GET", "/v1/boxes/%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0", "", 400, "base32"},
		"id in upper case":      {"GET", "/v1/boxes/" + strings.ToUpper(id), "", 400, "base32"},
		"id with digit 1":       {"GET", "/v1/boxes/1" + id[1:], "", 400, "base32"},
		"id of dots":            {"PUT", "/v1/boxes/%2E%2E", "{}", 400, "base32"},
		"no id":                 {"PUT", "/v1/boxes/", "{}", 404, "no such route"},
		"upper case in a PUT":   {"PUT", "/v1/boxes/" + strings.ToUpper(id), "{}", 400, "base32"},
		"Unicode in a DELETE":   {"DELETE", "/v1/boxes/%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0%D0%B0", "", 400, "base32"},
		"id that is a path":     {"GET", "/v1/boxes/..%2F..%2Fetc%2Fpasswd", "", 400, "base32"},
		"no such box":           {"GET", "/v1/boxes/" + id, "", 404, "not_found"},
		"no such route":         {"GET", "/v2", "", 404, "no such route"},
		"no such method":        {"POST", "/v1/boxes/" + id, "{}", 404, "no such route"},
		"empty body":            {"PUT", "/v1/boxes/" + id, "", 400, "empty"},
		"no JSON":               {"PUT", "/v1/boxes/" + id, "{", 400, "JSON"},
		"two values":            {"PUT", "/v1/boxes/" + id, "{}{}", 400, "more than one"},
		"a wrong type":          {"PUT", "/v1/boxes/" + id, `{"generation":"one"}`, 400, "field generation"},
		"a negative generation": {"PUT", "/v1/boxes/" + id, `{"generation":-1}`, 400, "field generation"},
		"an env that is a list": {"PUT", "/v1/boxes/" + id, `{"env":["A"]}`, 400, "field env"},
		"a body over 10 MiB":    {"PUT", "/v1/boxes/" + id, big, 413, "too_large"},
		"stdin that is no text": {"POST", "/v1/boxes/" + id + "/exec", `{"stdin":"%%%"}`, 400, "JSON"},
		"a generation in words": {"DELETE", "/v1/boxes/" + id + "?generation=one", "", 400, "generation"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := serveHTTP(h, c.method, c.path, c.body)
			if status != c.status || !strings.Contains(body, c.says) {
				t.Errorf("%d %s, want %d with %q", status, body, c.status, c.says)
			}
		})
	}
	if status, _ := serveHTTP(h, "POST", "/v1/boxes/"+id+"/exec", `{"argv":["x"]}`); status != 500 {
		t.Errorf("a panic gave %d, want 500", status)
	}
}

func TestNothingIsListedBeforeTheListIsComplete(t *testing.T) {
	b := &boxes{}
	f := serve(t, b, "replica:r1")
	b.ready = false
	if _, err := f.Boxes(t.Context()); !hostapi.HasCode(err, hostapi.CodeDraining) {
		t.Errorf("list = %v, want draining", err)
	}
}

// FuzzRequests throws paths and bodies at every route: the answer is a status
// below 500, and a box is reached by a valid id only.
func FuzzRequests(f *testing.F) {
	f.Add("PUT", "/v1/boxes/"+id, `{"generation":1}`)
	f.Add("POST", "/v1/boxes/"+id+"/exec", `{"argv":["a\nb"],"timeout_ns":1e99}`)
	f.Add("DELETE", "/v1/boxes/%00?generation=-1", "")
	f.Add("GET", "/v1/boxes/%2e%2e/x", "")
	reached := func(got string) {
		if !hostapi.ValidID(got) {
			panic("a box was reached by id " + got)
		}
	}
	s := New(Config{
		Boxes: &boxes{
			put: func(_ context.Context, id string, _ hostapi.BoxSpec) (hostapi.Box, error) {
				reached(id)
				return hostapi.Box{}, nil
			},
			get:    func(id string) (hostapi.Box, error) { reached(id); return hostapi.Box{}, nil },
			delete: func(_ context.Context, id string, _ uint64) error { reached(id); return nil },
			move: func(what string) (hostapi.Box, error) {
				reached(what[strings.Index(what, " ")+1:])
				return hostapi.Box{}, nil
			},
			ready: true,
		},
		Guests: guests{exec: func(_ context.Context, id string, _ hostapi.ExecRequest) (hostapi.ExecResult, error) {
			reached(id)
			return hostapi.ExecResult{}, nil
		}},
		Info: func() hostapi.Heartbeat { return hostapi.Heartbeat{} }, ObserveTerm: func(string, uint64) error { return nil },
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	})
	h := s.handler()
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if _, err := http.NewRequest(method, "https://host"+path, nil); err != nil || !strings.HasPrefix(path, "/") {
			return // no request that net/http would hand on
		}
		if status, answer := serveHTTP(h, method, path, body); status >= 500 {
			t.Errorf("%s %q: %d %s", method, path, status, answer)
		}
	})
}

func serveHTTP(h http.Handler, method, path, body string) (int, string) {
	r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
	if u, err := r.URL.Parse("https://host" + path); err == nil {
		r.URL = u
	}
	r.Method = method
	r.RequestURI = path
	r.Header.Set(hostapi.HeaderTerm, "7")
	r.TLS = verified("replica:r1")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Code, rec.Body.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
