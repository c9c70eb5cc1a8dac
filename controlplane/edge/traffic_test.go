package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/raftstore/record"
)

// counted returns what this replica has counted of the app, once it has counted so many.
func counted(t *testing.T, r *appRig, n int64) traffic.Report {
	t.Helper()
	var report traffic.Report
	eventually(t, "the requests are counted", func() bool {
		report = r.edge.trafficHere(appID, traffic.Question{Counts: true, Entries: 100})
		total := int64(0)
		for _, c := range report.Total.Statuses {
			total += c
		}
		return total >= n
	})
	return report
}

func TestRequestsToAnAppAreCountedAndKept(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var p [16]byte
		for n, err := 1, error(nil); n > 0 && err == nil; {
			n, err = req.Body.Read(p[:])
		}
		if req.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		w.Write([]byte("12345"))
	}))
	r.sleeps(boxA)
	r.get(t, "/p%20age?token=secret")
	r.get(t, "/broken")
	r.do(t, r.request(t, http.MethodPost, "/form", strings.NewReader("abc")))
	r.become(func(a *App) { a.Suspended = true })
	r.get(t, "/x")
	got := counted(t, r, 4)
	if got.Total.Statuses != [6]int64{0, 0, 2, 0, 0, 2} || got.Total.Held != 1 || got.Wakes != 1 || got.Total.Received != 3 || got.Open != 0 || got.Replica != "b" {
		t.Errorf("%+v", got)
	}
	paths := []string{}
	for _, e := range got.Entries {
		paths = append(paths, e.Method+" "+e.Path)
		if e.ID == "" || e.Status == 0 || e.Class != int(classReal) {
			t.Errorf("%+v", e)
		}
	}
	if want := []string{"GET /p%20age", "GET /broken", "POST /form", "GET /x"}; !slices.Equal(paths, want) {
		t.Errorf("kept %q, want %q", paths, want)
	}
}

func TestRequestsToNoAppAreNotCounted(t *testing.T) {
	r := newAppRig(t)
	r.mu.Lock()
	r.known = false
	r.mu.Unlock()
	r.get(t, "/")
	r.mu.Lock()
	r.known = true
	r.mu.Unlock()
	r.flip(record.AppHibernated)
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	req.Header.Set("User-Agent", "UptimeRobot/2.0")
	r.do(t, req)
	if got := counted(t, r, 1); got.Total.Classes != [4]int64{0, 0, 0, 1} || len(got.Entries) != 1 {
		t.Errorf("%+v", got)
	}
}

// What the leader has answered is counted there, and it asks its followers for the rest.
func TestReplicasAreAskedForWhatTheyCounted(t *testing.T) {
	r, l, leader := follower(t)
	r.start(t, boxA, says("hi"))
	r.flip(record.AppRunning, boxA)
	r.get(t, "/")
	counted(t, r, 1)
	leader.edge.apps.cfg.Transport = answers{r.edge}
	leader.edge.apps.cfg.Others = func() map[string]string { return map[string]string{"c": "c:1"} }
	ask := func(replica string) traffic.Question {
		if replica == "c" {
			return traffic.Question{Counts: true, Entries: 1}
		}
		return traffic.Question{Counts: true}
	}
	reports, missing := leader.edge.Traffic(t.Context(), appID, ask)
	if len(reports) != 2 || len(missing) != 0 || reports[1].Replica != "c" || reports[1].Total.Statuses[2] != 1 || len(reports[1].Entries) != 1 || reports[0].Total.Statuses[2] != 0 {
		t.Errorf("%+v, missing %q", reports, missing)
	}
	l.edge = nil // nobody answers
	leader.edge.apps.cfg.Transport = l
	if reports, missing := leader.edge.Traffic(t.Context(), appID, ask); len(reports) != 1 || !slices.Equal(missing, []string{"c"}) {
		t.Errorf("%+v, missing %q", reports, missing)
	}
	r.leading.Store(false)
	r.known = false
	r.do(t, r.request(t, http.MethodGet, "/", http.NoBody))
	if got := counted(t, r, 1); got.Total.Statuses[2] != 1 {
		t.Errorf("what the leader has answered is counted: %+v", got)
	}
}

func TestReplicasAreAskedForTheirHours(t *testing.T) {
	r, l, leader := follower(t)
	r.start(t, boxA, says("hi"))
	r.flip(record.AppRunning, boxA)
	r.get(t, "/")
	counted(t, r, 1)
	leader.edge.apps.cfg.Transport = answers{r.edge}
	leader.edge.apps.cfg.Others = func() map[string]string { return map[string]string{"c": "c:1"} }
	all, missing := leader.edge.Hours(t.Context())
	if len(all) != 2 || len(missing) != 0 || len(all[0].Hours) != 0 || all[1].Replica != "c" || len(all[1].Hours) != 1 || all[1].Hours[0].AppID != appID || all[1].Hours[0].Statuses[2] != 1 {
		t.Errorf("%+v, missing %q", all, missing)
	}
	l.edge = nil // nobody answers
	leader.edge.apps.cfg.Transport = l
	if all, missing := leader.edge.Hours(t.Context()); len(all) != 1 || !slices.Equal(missing, []string{"c"}) {
		t.Errorf("%+v, missing %q", all, missing)
	}
}

// answers is the network to one replica.
type answers struct{ edge *Edge }

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.edge.ServePeer(w, req, "a")
	return w.Result(), nil
}

func TestBadQuestionsAboutTraffic(t *testing.T) {
	r := newAppRig(t)
	for _, body := range []string{"", "[", `{"entries":"x"}`, `"` + strings.Repeat("x", 1<<20)} {
		req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/internal/v1/apps/"+appID+"/traffic", strings.NewReader(body))
		w := httptest.NewRecorder()
		r.edge.ServePeer(w, req, "a")
		if w.Code != http.StatusConflict {
			t.Errorf("%.20q: %d", body, w.Code)
		}
	}
}
