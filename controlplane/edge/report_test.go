package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// leaders is the network to the peer ports of a leader, which others may replace.
type leaders struct {
	mu   sync.Mutex
	id   string
	term uint64
	edge *Edge
	deaf bool
	// freezes has the leader freeze at the next question, so that another one leads.
	freezes bool
	heard   map[string][][]Activity // by leader: what it was told
}

func (l *leaders) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	e, deaf, frozen := l.edge, l.deaf, l.freezes
	if l.freezes = false; frozen {
		l.id, l.term = "c", l.term+1
	}
	l.mu.Unlock()
	if frozen {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if e == nil || deaf {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	e.ServePeer(w, req, "b")
	return w.Result(), nil
}

func (l *leaders) hear(replica string, seen []Activity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := l.id + " of " + replica
	l.heard[key] = append(l.heard[key], seen)
}

// last is what the leader was told last of the app.
func (l *leaders) last(key string) (a Activity, reports int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, report := range l.heard[key] {
		for _, one := range report {
			if one.AppID == appID {
				a = one
				reports++
			}
		}
	}
	return a, reports
}

// lead makes the other edge lead a term.
func (l *leaders) lead(id string, term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id, l.term = id, term
}

// follower is an edge that does not lead, and the one that does, which has what change
// sets.
func follower(t *testing.T, change ...func(*Config)) (*appRig, *leaders, *appRig) {
	t.Helper()
	l := &leaders{heard: map[string][][]Activity{}, id: "a", term: 1}
	leader := newAppRig(t, append(change, func(c *Config) { c.Apps.Heard = l.hear })...)
	l.edge = leader.edge
	r := newAppRig(t, func(c *Config) {
		c.Apps.Heard = func(string, []Activity) { t.Error("a follower was told") }
		c.Apps.Awake = func(context.Context, string) error { t.Error("a follower was asked"); return nil }
		c.Apps.Leader = func() (string, string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.id, l.id
		}
		c.Apps.Term = func() uint64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.term
		}
		c.Apps.Transport, c.Apps.ReportEvery = l, 5*time.Millisecond
	})
	r.leading.Store(false)
	return r, l, leader
}

func (r *appRig) run(t *testing.T) {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); r.edge.Run(ctx) }()
	t.Cleanup(func() { end(); <-over })
}

func TestAFollowerHasTheLeaderWakeAnApp(t *testing.T) {
	r, _, leader := follower(t)
	r.start(t, boxA, says("awake"))
	r.flip(record.AppHibernated)
	leader.wakesBy(func(ctx context.Context) error {
		if hostapi.RequestID(ctx) != "mine" {
			t.Errorf("the wake is of request %q", hostapi.RequestID(ctx))
		}
		go func() { // the follower's copy is a little behind
			<-time.After(30 * time.Millisecond)
			r.flip(record.AppRunning, boxA)
		}()
		return nil
	})
	req := r.request(t, http.MethodPost, "/", strings.NewReader("x"))
	req.Header.Set("X-Request-Id", "mine")
	if resp, body := r.do(t, req); resp.StatusCode != 200 || body != "awake" || leader.wakes.Load() != 1 || r.forwarded.Load() != 0 {
		t.Errorf("%s %s, %d wakes", resp.Status, body, leader.wakes.Load())
	}
	r.flip(record.AppHibernated)
	leader.wakesBy(func(context.Context) error {
		return &apierror.Error{Code: apierror.EConflict, Message: "app has no live deployment"}
	})
	if resp, body := r.get(t, "/"); resp.StatusCode != 404 || !strings.Contains(body, "app has no live deployment") {
		t.Errorf("a refusal: %s %s", resp.Status, body)
	}
}

// A leader that is frozen keeps its connections: who waits for it asks the next one.
func TestAFrozenLeaderHoldsNoWakeUp(t *testing.T) {
	r, l, leader := follower(t)
	r.start(t, boxA, says("awake"))
	r.flip(record.AppHibernated)
	leader.wakesBy(func(context.Context) error { r.flip(record.AppRunning, boxA); return nil })
	l.mu.Lock()
	l.freezes = true
	l.mu.Unlock()
	resp, body := r.get(t, "/")
	l.mu.Lock()
	defer l.mu.Unlock()
	if resp.StatusCode != 200 || body != "awake" || l.freezes {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// A copy of the store that stays behind does not decide.
func TestAFollowerLeavesToTheLeaderWhatItDoesNotKnow(t *testing.T) {
	for name, prepare := range map[string]func(r, leader *appRig){
		"an app it does not know": func(r, _ *appRig) { r.known = false },
		"one not deployed yet":    func(r, _ *appRig) { r.app = App{Status: record.AppCreated} },
		"one that is awake there": func(r, leader *appRig) {
			r.flip(record.AppHibernated)
			leader.wakesBy(func(context.Context) error { return nil })
		},
		"one whose instance is gone": func(r, _ *appRig) {
			r.start(t, boxA, says("a"))
			r.flip(record.AppRunning, boxA)
			r.refuse(boxA, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "gone"})
		},
	} {
		r, _, leader := follower(t)
		prepare(r, leader)
		if resp, body := r.do(t, r.request(t, http.MethodPost, "/x", strings.NewReader("kept"))); resp.StatusCode != 200 || body != "from the leader /x   kept" {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	r, _, _ := follower(t)
	r.start(t, boxA, says("mine"))
	r.flip(record.AppRunning, boxA)
	if _, body := r.get(t, "/"); body != "mine" || r.forwarded.Load() != 0 {
		t.Errorf("a running app needs no leader: %s", body)
	}
}

func TestTheLeaderHearsOfActivity(t *testing.T) {
	r, l, _ := follower(t)
	inside, leave := make(chan struct{}, 2), make(chan struct{})
	r.start(t, boxA, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-leave }))
	r.flip(record.AppRunning, boxA)
	r.run(t)
	begin := time.Now()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { r.get(t, "/") })
	}
	<-inside
	<-inside
	const key = "a of b"
	eventually(t, "it hears of open requests", func() bool {
		a, _ := l.last(key)
		return maps.Equal(a.Open, map[string]int{boxA: 2}) && !a.LastRequest.Before(begin)
	})
	_, before := l.last(key)
	eventually(t, "it hears again, while they are open", func() bool { _, n := l.last(key); return n > before+2 })

	l.lead("c", 2)
	eventually(t, "a new leader hears all", func() bool {
		a, _ := l.last("c of b")
		return a.Open[boxA] == 2 && !a.LastRequest.IsZero()
	})
	end := time.Now()
	close(leave)
	all.Wait()
	eventually(t, "it hears once more when nothing is open", func() bool {
		a, _ := l.last("c of b")
		return len(a.Open) == 0 && !a.LastRequest.Before(end)
	})
	// Then it hears nothing, until there is a new leader, who does not know the last
	// request.
	_, before = l.last("c of b")
	l.lead("c", 3)
	eventually(t, "the same leader in another term hears it anew", func() bool { _, n := l.last("c of b"); return n == before+1 })
}

func TestAReportThatIsLostIsSentAgain(t *testing.T) {
	r, l, _ := follower(t)
	r.start(t, boxA, says("a"))
	r.flip(record.AppRunning, boxA)
	l.deaf = true
	r.run(t)
	r.get(t, "/")
	for range 3 {
		<-time.After(10 * time.Millisecond)
	}
	l.mu.Lock()
	l.deaf = false
	l.mu.Unlock()
	eventually(t, "it hears", func() bool { a, _ := l.last("a of b"); return !a.LastRequest.IsZero() })
}

// Who leads hears itself, without a peer port.
func TestTheLeaderHearsItself(t *testing.T) {
	got := make(chan string, 100)
	r := newAppRig(t, func(c *Config) {
		c.Apps.ReportEvery = 5 * time.Millisecond
		c.Apps.Heard = func(replica string, seen []Activity) { got <- fmt.Sprint(replica, " ", seen[0].AppID) }
	})
	r.start(t, boxA, says("a"))
	r.flip(record.AppRunning, boxA)
	r.run(t)
	r.get(t, "/")
	if s := <-got; s != "b "+appID {
		t.Error(s)
	}
}

// A report says of all open requests; of what else there is it has a part.
func TestManyAppsAreReportedInParts(t *testing.T) {
	r, l, _ := follower(t)
	for i := range 2*maxReport + 1 {
		r.edge.apps.ledger.request(fmt.Sprint("app-", i))
	}
	for i := range 100 {
		r.edge.apps.ledger.begin(fmt.Sprint("busy-", i), []string{boxA})
	}
	for i := range 3 {
		if err := r.edge.report(t.Context(), i == 0); err != nil {
			t.Fatal(err)
		}
	}
	apps := map[string]bool{}
	for _, report := range l.heard["a of b"] {
		busy := 0
		for _, a := range report {
			apps[a.AppID] = true
			if len(a.Open) > 0 {
				busy++
			}
		}
		if busy != 100 || len(report) > maxReport+100 {
			t.Errorf("a report has %d apps, %d of them with open requests", len(report), busy)
		}
	}
	if len(apps) != 2*maxReport+1+100 {
		t.Errorf("%d apps were reported", len(apps))
	}
	if again := r.edge.apps.ledger.report(false, maxReport); len(again) != 100 {
		t.Errorf("%d are reported again", len(again))
	}
}

func TestWhatIsLongOverIsForgotten(t *testing.T) {
	now := time.Now()
	l := newLedger(func() time.Time { return now })
	l.request("a")
	l.begin("b", []string{boxA})
	l.told(l.report(false, 10))
	now = now.Add(keepActivity + time.Second)
	if out := l.report(true, 10); len(out) != 2 {
		t.Errorf("%v", out)
	}
	l.told(l.report(true, 10))
	l.report(false, 10)
	if ids := slices.Sorted(maps.Keys(l.apps)); !slices.Equal(ids, []string{"b"}) {
		t.Errorf("%v are remembered; b has an open request", ids)
	}
	l.end("b", boxA, false)
	out := l.report(false, 10)
	if len(out) != 1 || len(out[0].Open) != 0 {
		t.Errorf("%v", out)
	}
}

func TestWhatReplicasMayNotSay(t *testing.T) {
	_, l, leader := follower(t)
	ask := func(path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		leader.edge.ServePeer(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)), "b")
		return w
	}
	for _, body := range []string{"", "{", "[]", `{"apps":1}`, `{"apps":[` + strings.Repeat(`{"app_id":"a"},`, maxReportBytes/14) + `{}]}`} {
		if w := ask("/internal/v1/apps/activity", body); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), `"code":"invalid"`) {
			t.Errorf("%.30q: %d %s", body, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/internal/v1/apps/", "/internal/v1/apps/x", "/internal/v1/apps/x/y/wake", "/internal/v1/apps/activity/x"} {
		if w := ask(path, "{}"); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	leader.leading.Store(false)
	for _, path := range []string{"/internal/v1/apps/activity", "/internal/v1/apps/x/wake"} {
		if w := ask(path, "{}"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), `"code":"unavailable"`) {
			t.Errorf("%s, of one that does not lead: %d %s", path, w.Code, w.Body)
		}
	}
	if len(l.heard) != 0 || leader.wakes.Load() != 0 {
		t.Errorf("heard %v, %d wakes", l.heard, leader.wakes.Load())
	}
	none := New(Config{Previews: &Previews{}, Log: leader.edge.cfg.Log})
	w := httptest.NewRecorder()
	none.ServePeer(w, httptest.NewRequest(http.MethodPost, "/internal/v1/apps/activity", strings.NewReader("{}")), "b")
	if raw, _ := io.ReadAll(w.Body); w.Code != http.StatusNotFound {
		t.Errorf("without apps: %d %s", w.Code, raw)
	}
}

func FuzzActivityReport(f *testing.F) {
	f.Add([]byte(`{"apps":[{"app_id":"a","last_request":"2026-01-02T03:04:05Z","open":{"s":1}}]}`))
	f.Add([]byte(`{"apps":[{"open":{"":-1}}]}`))
	f.Add([]byte(`{`))
	e := New(Config{Log: discard, Leading: func() bool { return true }, Apps: &Apps{Heard: func(_ string, seen []Activity) {
		for _, a := range seen {
			for _, n := range a.Open {
				if n < 1 {
					panic("an impossible number of open requests was heard")
				}
			}
		}
	}}})
	f.Cleanup(e.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := httptest.NewRecorder()
		e.ServePeer(w, httptest.NewRequest(http.MethodPost, "/internal/v1/apps/activity", strings.NewReader(string(raw))), "b")
		if w.Code != http.StatusNoContent && w.Code != http.StatusConflict {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
