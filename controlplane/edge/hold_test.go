package edge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestWhatDoesNotWakeASleepingApp(t *testing.T) {
	const uptimeRobot = "UptimeRobot/2.0"
	for _, c := range []struct {
		method, path, agent string
		status              int
		service, retry      string
		body                string
	}{
		{"GET", "/", uptimeRobot, 200, "asleep", "", ""},
		{"HEAD", "/", uptimeRobot, 200, "asleep", "", ""},
		{"POST", "/deep/path", uptimeRobot, 200, "asleep", "", ""},
		{"GET", "/favicon.ico", uptimeRobot, 200, "asleep", "", ""},
		{"HEAD", "/", browser, 200, "asleep", "", ""},
		{"GET", "/favicon.ico", browser, 503, "asleep", "60", `{"error":"app is asleep"}`},
		{"GET", "/robots.txt", browser, 503, "asleep", "60", `{"error":"app is asleep"}`},
		{"GET", "/sitemap.xml", browser, 503, "asleep", "60", `{"error":"app is asleep"}`},
		{"GET", "/apple-touch-icon.png", browser, 503, "asleep", "60", `{"error":"app is asleep"}`},
	} {
		for _, status := range []record.AppStatus{record.AppHibernated, record.AppWaking} {
			r := newAppRig(t)
			r.sleeps(boxA)
			r.flip(status)
			req := r.request(t, c.method, c.path, http.NoBody)
			req.Header.Set("User-Agent", c.agent)
			resp, body := r.do(t, req)
			h := resp.Header
			if resp.StatusCode != c.status || h.Get("X-Service-App") != c.service || h.Get("Retry-After") != c.retry || strings.TrimSpace(body) != c.body || r.wakes.Load() != 0 {
				t.Errorf("%s %s by %s: %s %v %q, %d wakes", c.method, c.path, c.agent, resp.Status, h, body, r.wakes.Load())
			}
			if last, _ := r.openOf(boxA); !last.IsZero() {
				t.Errorf("%s %s by %s counts as a request", c.method, c.path, c.agent)
			}
		}
	}
}

// The leader may know before this copy that a workspace is paused.
func TestAPauseThatOnlyTheLeaderKnowsOf(t *testing.T) {
	r := newAppRig(t)
	r.flip(record.AppHibernated)
	r.wakesBy(func(context.Context) error {
		return &apierror.Error{Code: apierror.EQuota, Message: "monthly free credit exhausted"}
	})
	resp, body := r.get(t, "/")
	if h := resp.Header; resp.StatusCode != 503 || h.Get("Retry-After") != "3600" || h.Get("X-Service-App") != "suspended" || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || strings.Contains(body, "credit") {
		t.Errorf("%s %v %s", resp.Status, h, body)
	}
}

// A ceiling of the month refuses to wake an app. Its visitors see the page of one that is
// suspended; the workspace, which asks by the API, is told why.
func TestAWakeBeyondTheMonthsBudget(t *testing.T) {
	r := newAppRig(t)
	r.flip(record.AppHibernated)
	r.wakesBy(func(context.Context) error {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "monthly budget exceeded", Detail: "what runs goes on", Fields: map[string]any{"budget_usd": 20.0, "cost_usd_used": 20.5},
		}
	})
	resp, body := r.get(t, "/")
	if h := resp.Header; resp.StatusCode != 503 || h.Get("Retry-After") != "3600" || h.Get("X-Service-App") != "suspended" || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || strings.Contains(body, "budget") {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.through(t).URL+"/v1/apps/"+appID+"/proxy/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, body = r.do(t, req)
	const want = `{"budget_usd":20,"cost_usd_used":20.5,"detail":"what runs goes on","error":"monthly budget exceeded"}`
	if resp.StatusCode != 429 || strings.TrimSpace(body) != want || resp.Header.Get("Retry-After") != "" {
		t.Errorf("by the API: %s %v %s", resp.Status, resp.Header, body)
	}
}

// Monitors are told when an app could not be brought up: it is down, not asleep.
func TestAFailedAppIsNotAsleep(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, says("awake"))
	r.sleeps(boxA)
	r.flip(record.AppFailed)
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	req.Header.Set("User-Agent", "UptimeRobot/2.0")
	if resp, body := r.do(t, req); resp.StatusCode != 503 || resp.Header.Get("X-Service-App") != "failed" || r.wakes.Load() != 0 {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	if resp, body := r.get(t, "/"); resp.StatusCode != 200 || body != "awake" || r.wakes.Load() != 1 {
		t.Errorf("a request tries again: %s %s", resp.Status, body)
	}
}

func TestWhatWakesASleepingApp(t *testing.T) {
	for _, c := range []struct {
		method, path, agent string
		counts              bool
	}{
		{"GET", "/", browser, true},
		{"POST", "/x", "curl/8.0", true},
		{"OPTIONS", "/x", browser, false},
		{"GET", "/healthz", browser, false},
		{"GET", "/.well-known/x", browser, false},
		{"GET", "/", "Googlebot/2.1", false},
		{"GET", "/", "", false},
	} {
		for _, status := range []record.AppStatus{record.AppHibernated, record.AppWaking, record.AppFailed} {
			r := newAppRig(t)
			r.start(t, boxA, says("awake"))
			r.sleeps(boxA)
			r.flip(status)
			req := r.request(t, c.method, c.path, strings.NewReader("body"))
			req.Header.Set("User-Agent", c.agent)
			if resp, body := r.do(t, req); resp.StatusCode != 200 || body != "awake" || r.wakes.Load() != 1 {
				t.Errorf("%s %s by %q: %s %s, %d wakes", c.method, c.path, c.agent, resp.Status, body, r.wakes.Load())
			}
			if last, _ := r.openOf(boxA); last.IsZero() == c.counts {
				t.Errorf("%s %s by %q: last real request %v", c.method, c.path, c.agent, last)
			}
		}
	}
}

func TestARunningAppGetsEveryRequest(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { w.Header().Set("Path", req.URL.Path) }))
	r.flip(record.AppRunning, boxA)
	for _, agent := range []string{"UptimeRobot/2.0", "Googlebot/2.1", ""} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			for _, path := range []string{"/", "/favicon.ico", "/healthz"} {
				req := r.request(t, method, path, http.NoBody)
				req.Header.Set("User-Agent", agent)
				if resp, _ := r.do(t, req); resp.StatusCode != 200 || resp.Header.Get("Path") != path || resp.Header.Get("X-Service-App") != "" {
					t.Errorf("%s %s by %q: %s %v", method, path, agent, resp.Status, resp.Header)
				}
			}
		}
	}
}

func TestFiftyRequestsShareOneWake(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _, _ = io.Copy(w, req.Body) }))
	r.flip(record.AppHibernated)
	finish := make(chan struct{})
	r.wakesBy(func(context.Context) error { <-finish; r.flip(record.AppRunning, boxA); return nil })
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if resp, body := r.do(t, r.request(t, http.MethodPost, "/", strings.NewReader("kept"))); resp.StatusCode != 200 || body != "kept" {
				t.Errorf("%s %s", resp.Status, body)
			}
		})
	}
	eventually(t, "all are held", func() bool {
		r.edge.mu.Lock()
		defer r.edge.mu.Unlock()
		return r.edge.count[appID] == 50
	})
	// A request that has looked before the end of this wake, and asks after it, begins another.
	if n := r.wakes.Load(); n != 1 {
		t.Errorf("%d wakes", n)
	}
	close(finish)
	all.Wait()
}

func TestARequestIsHeldOnlySoLong(t *testing.T) {
	r := newAppRig(t, func(c *Config) { c.Apps.Hold = 20 * time.Millisecond })
	r.flip(record.AppHibernated)
	r.wakesBy(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	resp, body := r.get(t, "/")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "2" || body != `{"error":"app is waking up"}`+"\n" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	req.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	resp, body = r.do(t, req)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "2" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") ||
		!strings.Contains(body, `<meta http-equiv="refresh" content="2">`) || !strings.Contains(body, "app is waking up") || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	if n := r.wakes.Load(); n != 1 {
		t.Errorf("%d wakes: the second waits for the first", n)
	}
}

func TestAWakeThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no deployment":  {&apierror.Error{Code: apierror.EConflict, Message: "app has no live deployment"}, `404  {"error":"app has no live deployment"}`},
		"deleted":        {apierror.NotFound(), `404  {"error":"not found"}`},
		"it has failed":  {failedWake(0), `503 2 {"error":"app could not be woken"}`},
		"for a while":    {failedWake(90500 * time.Millisecond), `503 91 {"error":"app could not be woken"}`},
		"anything":       {errSome, `503 2 {"error":"app could not be woken"}`},
		"nobody leads":   {apierror.Unavailable("there is no leader", nil), `503 2 {"error":"app is waking up"}`},
		"it takes long":  {context.DeadlineExceeded, `503 2 {"error":"app is waking up"}`},
		"it sleeps soon": {nil, `503 2 {"error":"app is waking up"}`},
	} {
		r := newAppRig(t, func(c *Config) { c.Apps.Hold = 50 * time.Millisecond })
		r.flip(record.AppHibernated)
		r.wakesBy(func(context.Context) error { return c.err })
		resp, body := r.get(t, "/")
		if got := strings.TrimSpace(resp.Status[:4] + resp.Header.Get("Retry-After") + " " + body); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// failedWake is what the leader says of an app that could not be brought up.
func failedWake(wait time.Duration) error {
	return &apierror.Error{Code: apierror.EUnwoken, Message: "app could not be woken", Detail: "the build command exited with code 1", RetryAfter: wait}
}

// Nobody is held for an app of which it is known that it will not come up now.
func TestAFailedWakeIsAnsweredAtOnce(t *testing.T) {
	r := newAppRig(t, func(c *Config) { c.Apps.Hold = time.Hour })
	r.flip(record.AppFailed)
	r.wakesBy(func(context.Context) error { return failedWake(time.Minute) })
	if resp, body := r.get(t, "/"); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "60" || strings.Contains(body, "exited") || r.wakes.Load() != 1 {
		t.Errorf("%s %v %s, %d wakes", resp.Status, resp.Header, body, r.wakes.Load())
	}
}

// A request that an election meets is held until the new leader has woken the app.
func TestAWakeSurvivesAnElection(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, says("awake"))
	r.flip(record.AppHibernated)
	r.wakesBy(func(context.Context) error {
		if r.wakes.Load() < 3 {
			return apierror.Unavailable("there is no leader", nil)
		}
		r.flip(record.AppRunning, boxA)
		return nil
	})
	if resp, body := r.get(t, "/"); resp.StatusCode != 200 || body != "awake" {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// An app whose only sandbox is lost is not asleep: also a monitor waits for the next.
func TestALostInstanceIsReplacedForEverybody(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxB, says("replaced"))
	r.sleeps(boxB)
	r.flip(record.AppRunning, boxA) // which has no row
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	req.Header.Set("User-Agent", "UptimeRobot/2.0")
	if resp, body := r.do(t, req); resp.StatusCode != 200 || body != "replaced" || r.wakes.Load() != 1 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// A client that leaves ends its own wait, not the wake.
func TestAClientThatLeavesWhileItIsHeld(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, says("awake"))
	r.flip(record.AppHibernated)
	asked, finish, running := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.wakesBy(func(ctx context.Context) error {
		close(asked)
		select {
		case <-finish:
			r.flip(record.AppRunning, boxA)
			close(running)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		resp, err := r.front.Client().Do(r.request(t, http.MethodGet, "/", http.NoBody).WithContext(ctx))
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	<-asked
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "it counts no more", func() bool {
		r.edge.mu.Lock()
		defer r.edge.mu.Unlock()
		return r.edge.count[appID] == 0
	})
	close(finish)
	<-running // who asks before may begin another wake
	if resp, body := r.get(t, "/"); resp.StatusCode != 200 || body != "awake" || r.wakes.Load() != 1 {
		t.Errorf("%s %s, %d wakes", resp.Status, body, r.wakes.Load())
	}
}
