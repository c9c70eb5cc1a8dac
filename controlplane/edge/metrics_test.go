package edge

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-cloud/berth/raftstore/record"
)

func TestRequestsAreMeasuredAndLogged(t *testing.T) {
	var lines logged
	r := newAppRig(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		w.Write([]byte("12345"))
	}))
	r.sleeps(boxA)
	r.get(t, "/page?token=secret")
	r.get(t, "/broken")
	r.get(t, "/healthz")
	r.become(func(a *App) { a.Status, a.Instances = record.AppHibernated, nil })
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	req.Header.Set("User-Agent", "UptimeRobot/2.0")
	r.do(t, req)
	eventually(t, "all are logged", func() bool { return strings.Count(lines.String(), `msg="app request"`) == 4 })
	for _, want := range []string{
		`class=real method=GET path=/page proto=HTTP/2.0 status=200 held=true bytes=5`, `path=/broken proto=HTTP/2.0 status=500 held=false`,
		`class=served method=GET path=/healthz`, `class=monitor`, "app_id=" + appID,
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no %s in\n%s", want, lines.String())
		}
	}
	if strings.Contains(lines.String(), "secret") {
		t.Error("a query is logged")
	}
	err := testutil.GatherAndCompare(r.registry, strings.NewReader(`
# HELP berth_app_requests_total Requests to apps by class (real, served, quiet, monitor) and by the first digit of the status; 0: the client left before an answer.
# TYPE berth_app_requests_total counter
berth_app_requests_total{class="monitor",status="2"} 1
berth_app_requests_total{class="quiet",status="2"} 0
berth_app_requests_total{class="real",status="2"} 1
berth_app_requests_total{class="real",status="5"} 1
berth_app_requests_total{class="served",status="2"} 1
# HELP berth_app_open_requests Requests to apps that are in progress on this replica.
# TYPE berth_app_open_requests gauge
berth_app_open_requests 0
# HELP berth_app_bytes_total Bytes of the bodies of requests to apps (in) and of their answers (out), without those of WebSockets.
# TYPE berth_app_bytes_total counter
berth_app_bytes_total{direction="in"} 0
berth_app_bytes_total{direction="out"} 15
# HELP berth_app_wakes_total Wakes of apps that requests on this replica have waited for, by result.
# TYPE berth_app_wakes_total counter
berth_app_wakes_total{result="error"} 0
berth_app_wakes_total{result="ok"} 1
# HELP berth_app_counted_apps Apps whose requests this replica has counted for their workspaces.
# TYPE berth_app_counted_apps gauge
berth_app_counted_apps 1
`), "berth_app_requests_total", "berth_app_open_requests", "berth_app_bytes_total", "berth_app_wakes_total", "berth_app_counted_apps")
	if err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r.registry, "berth_app_request_seconds", "berth_app_held_seconds"); err != nil || n != 3 {
		t.Errorf("%d series, %v", n, err)
	}
}

// logged is what a logger wrote.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Without a reader of debug lines nothing is formatted.
func TestNothingIsLoggedAboveDebug(t *testing.T) {
	var lines logged
	r := newAppRig(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
	r.start(t, boxA, says("a"))
	r.sleeps(boxA)
	r.get(t, "/")
	r.wakesBy(func(context.Context) error { return nil })
	if lines.String() != "" {
		t.Error(lines.String())
	}
}
