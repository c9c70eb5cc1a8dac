package edge

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	appSuffix = "app.localhost"
	appID     = "a7m2qz4xw3v5n6a2j7p4t5r6sd"
	appHost   = appID + "." + appSuffix
	browser   = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
)

// ids of sandboxes.
const (
	boxA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	boxB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestARequestReachesTheApp(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, _ := io.ReadAll(req.Body)
		h := req.Header
		fmt.Fprintf(w, "%s %s %s host=%s for=%s proto=%s at=%s prefix=%q body=%s", req.Proto, req.Method, req.URL, req.Host,
			h.Get("X-Forwarded-For"), h.Get("X-Forwarded-Proto"), h.Get("X-Forwarded-Host"), h.Get("X-Forwarded-Prefix"), raw)
	}))
	r.flip(record.AppRunning, boxA)
	for _, h2 := range []bool{true, false} {
		req := r.request(t, http.MethodPost, "/a%2Fb?x=1;y=2&z", strings.NewReader("hello"))
		req.Host = strings.ToUpper(appHost) + ":443"
		req.Header.Set("X-Forwarded-For", "1.2.3.4")
		req.Header.Set("X-Forwarded-Host", "forged")
		req.Header.Set("X-Forwarded-Prefix", "/forged")
		client := r.front.Client()
		if !h2 {
			transport := &http.Transport{TLSClientConfig: client.Transport.(*http.Transport).TLSClientConfig.Clone()}
			transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
			defer transport.CloseIdleConnections()
			client = &http.Client{Transport: transport}
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		want := "HTTP/1.1 POST /a%2Fb?x=1;y=2&z host=" + req.Host + " for=127.0.0.1 proto=https at=" + req.Host + ` prefix="" body=hello`
		if string(raw) != want || (resp.ProtoMajor == 2) != h2 {
			t.Errorf("%s %s\nwant\n%s", resp.Proto, raw, want)
		}
	}
}

// A program that reads X_Forwarded_For as X-Forwarded-For, as CGI does, is told nothing by a
// client all the same.
func TestHeadersInDisguise(t *testing.T) {
	r := newAppRig(t)
	got := make(chan http.Header, 1)
	r.start(t, boxA, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got <- req.Header.Clone() }))
	r.flip(record.AppRunning, boxA)
	req := r.request(t, http.MethodGet, "/", http.NoBody)
	for _, k := range []string{"X_Forwarded_For", "x-forwarded_host", "X_FORWARDED-PROTO", "X_Forwarded_Prefix", "X_Request_Id", "Berth_Forwarded", "My_Own"} {
		req.Header[k] = []string{"forged"}
	}
	r.do(t, req)
	var kept []string
	for k := range <-got {
		if strings.Contains(k, "_") {
			kept = append(kept, strings.ToLower(k))
		}
	}
	if len(kept) != 1 || kept[0] != "my_own" {
		t.Errorf("the app has %q", kept)
	}
}

// A proxy in front that ends TLS says what its client speaks. Where TLS ends here, a
// client's own word does not count.
func TestTheSchemeOfAppsBehindAProxy(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprint(w, strings.Join(req.Header.Values("X-Forwarded-Proto"), ","))
	}))
	r.flip(record.AppRunning, boxA)
	plain := httptest.NewServer(r.edge)
	t.Cleanup(plain.Close)
	for _, c := range []struct{ front, said, want string }{
		{plain.URL, "", "http"}, {plain.URL, "https", "https"}, {plain.URL, "http", "http"}, {plain.URL, "javascript", "http"},
		{r.front.URL, "", "https"}, {r.front.URL, "http", "https"},
	} {
		req := r.request(t, http.MethodGet, "/", http.NoBody)
		front, err := url.Parse(c.front)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Scheme, req.URL.Host = front.Scheme, front.Host
		if c.said != "" {
			req.Header.Set("X-Forwarded-Proto", c.said)
		}
		resp, err := r.front.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(raw) != c.want {
			t.Errorf("at %s, with %q: %q, want %q", front.Scheme, c.said, raw, c.want)
		}
	}
}

func TestAnAppThatCannotAnswer(t *testing.T) {
	const notFound = `404 {"error":"not found"}`
	for name, c := range map[string]struct {
		prepare func(*appRig)
		want    string
	}{
		"unknown":          {func(r *appRig) { r.known = false }, notFound},
		"being deleted":    {func(r *appRig) { r.app.Status = record.AppDeleting }, notFound},
		"never deployed":   {func(r *appRig) { r.app = App{Status: record.AppCreated} }, `404 {"error":"app has no live deployment"}`},
		"deleted, running": {func(r *appRig) { r.flip(record.AppDeleting, boxA) }, notFound},
	} {
		r := newAppRig(t)
		r.start(t, boxA, says("it serves"))
		r.awake = func(context.Context) error { t.Errorf("%s: it was woken", name); return nil }
		c.prepare(r)
		resp, body := r.get(t, "/")
		if got := fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(body)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		req := r.request(t, http.MethodGet, "/", http.NoBody)
		req.Header.Set("Accept", "text/html,*/*")
		if resp, body := r.do(t, req); resp.StatusCode != http.StatusNotFound || !strings.HasPrefix(body, "<!doctype html>") {
			t.Errorf("%s: a browser gets %s %s", name, resp.Status, body)
		}
	}
}

// The page of a suspended workspace is for everybody, whatever its app does.
func TestASuspendedWorkspace(t *testing.T) {
	for _, status := range []record.AppStatus{record.AppRunning, record.AppHibernated, record.AppWaking, record.AppFailed} {
		r := newAppRig(t)
		r.start(t, boxA, says("it serves"))
		r.awake = func(context.Context) error { t.Errorf("%s: it was woken", status); return nil }
		r.flip(status, boxA)
		r.become(func(a *App) { a.Suspended = true })
		for _, agent := range []string{browser, "curl/8.0", "UptimeRobot/2.0"} {
			req := r.request(t, http.MethodGet, "/", http.NoBody)
			req.Header.Set("User-Agent", agent)
			resp, body := r.do(t, req)
			h := resp.Header
			if resp.StatusCode != http.StatusServiceUnavailable || h.Get("Retry-After") != "3600" || h.Get("X-Service-App") != "suspended" ||
				!strings.HasPrefix(h.Get("Content-Type"), "text/html") || !strings.HasPrefix(body, "<!doctype html>") {
				t.Errorf("%s, to %s: %s %v %s", status, agent, resp.Status, h, body)
			}
		}
	}
}

func TestAppNamesThatAreNone(t *testing.T) {
	r := newAppRig(t)
	for _, h := range []string{"." + appSuffix, "-a." + appSuffix, "a-." + appSuffix, "a.b." + appSuffix, "a_b." + appSuffix, strings.Repeat("a", 64) + "." + appSuffix, "3000-" + boxA + "." + appSuffix} {
		req := r.request(t, http.MethodGet, "/", http.NoBody)
		req.Host = h
		if resp, body := r.do(t, req); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, `"error":"not found"`) {
			t.Errorf("%s: %s %s", h, resp.Status, body)
		}
	}
	for h, want := range map[string]bool{appSuffix: false, "x" + appSuffix: false, "x.example.com": false, "a." + strings.ToUpper(appSuffix) + ":80": true} {
		if r.edge.Belongs(h) != want {
			t.Errorf("Belongs(%q) is %v", h, !want)
		}
	}
}

func FuzzParseApp(f *testing.F) {
	f.Add(appHost+":443", appSuffix)
	f.Add("a.b."+appSuffix, appSuffix)
	f.Add("[::1]:80", "")
	f.Fuzz(func(t *testing.T, host, suffix string) {
		id, ok := parseApp(host, suffix)
		if ok && (!Belongs(host, suffix) || !validAppID(id) || strings.ContainsAny(id, "./:%")) {
			t.Errorf("%q: %q", host, id)
		}
		if again, same := parseApp(id+"."+suffix, suffix); ok && !strings.ContainsAny(suffix, ":[]") && (!same || again != id) {
			t.Errorf("%q is %q, and that is %q", host, id, again)
		}
	})
}

// A name under two suffixes belongs to the longer one, whichever is which.
func TestOneTableOfHostNames(t *testing.T) {
	hit := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }
	}
	for _, order := range [][]string{{"berth.test", "preview.berth.test"}, {"preview.berth.test", "berth.test"}} {
		var table routes
		for _, suffix := range order {
			table.add(suffix, hit(suffix))
		}
		table.add("", hit("none"))
		for host, want := range map[string]string{"80-x.preview.berth.test": "preview.berth.test", "x.berth.test:80": "berth.test"} {
			serve, ok := table.find(host)
			if !ok {
				t.Fatal(host)
			}
			w := httptest.NewRecorder()
			serve(w, nil)
			if w.Body.String() != want {
				t.Errorf("%s is under %s", host, w.Body)
			}
		}
		if _, ok := table.find("berth.test"); ok {
			t.Error("a suffix itself is nobody's")
		}
	}
}

// An instance that refuses the connection is passed over.
func TestAnotherInstanceServesWhatOneRefuses(t *testing.T) {
	for _, code := range []hostapi.Code{hostapi.CodePortClosed, hostapi.CodeNotRunning, hostapi.CodeNotFound} {
		r := newAppRig(t)
		r.start(t, boxA, says("a"))
		r.start(t, boxB, says("b"))
		r.flip(record.AppRunning, boxA, boxB)
		r.refuse(boxA, &hostapi.Error{Code: code, Message: "no"})
		for range 6 {
			if resp, body := r.do(t, r.request(t, http.MethodPost, "/", strings.NewReader("kept"))); resp.StatusCode != 200 || body != "b" {
				t.Errorf("%s: %s %s", code, resp.Status, body)
			}
		}
	}
}

func TestAnAppThatStopsListening(t *testing.T) {
	r := newAppRig(t, func(c *Config) { c.OpenWait = 30 * time.Millisecond })
	r.start(t, boxA, says("a"))
	r.flip(record.AppRunning, boxA)
	r.refuse(boxA, &hostapi.Error{Code: hostapi.CodePortClosed, Message: "closed"})
	if resp, body := r.get(t, "/"); resp.StatusCode != http.StatusBadGateway || body != `{"detail":"nothing listens on port 3000","error":"app does not listen"}`+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	// It is back before the wait is over.
	r = newAppRig(t)
	r.start(t, boxA, says("a"))
	r.flip(record.AppRunning, boxA)
	r.refuse(boxA, &hostapi.Error{Code: hostapi.CodePortClosed, Message: "closed"})
	go func() {
		for r.dialled() < 3 && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		r.refuse(boxA, nil)
	}()
	if resp, body := r.do(t, r.request(t, http.MethodPost, "/", strings.NewReader("x"))); resp.StatusCode != 200 || body != "a" {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestRequestsGoToTheLeastBusyInstance(t *testing.T) {
	r := newAppRig(t)
	enter, leave := make(chan string), make(chan struct{})
	for _, id := range []string{boxA, boxB} {
		r.start(t, id, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			enter <- id
			<-leave
		}))
	}
	r.flip(record.AppRunning, boxA, boxB)
	var all sync.WaitGroup
	got := map[string]int{}
	for range 10 {
		all.Go(func() { r.get(t, "/") })
		got[<-enter]++
	}
	if !maps.Equal(got, map[string]int{boxA: 5, boxB: 5}) {
		t.Errorf("%v", got)
	}
	close(leave)
	all.Wait()
	eventually(t, "nothing is open", func() bool { return r.edge.apps.ledger.open() == 0 })
}

// An app is deployed ten times under constant load. No request is lost: what is under
// way ends where it began.
func TestFlipsLoseNoRequest(t *testing.T) {
	r := newAppRig(t)
	version := func(n int) string { return strings.Repeat(string(rune('a'+n)), 26) }
	program := func(n int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			raw, _ := io.ReadAll(req.Body)
			fmt.Fprintf(w, "%d %s", n, raw)
		})
	}
	r.start(t, version(0), program(0))
	r.flip(record.AppRunning, version(0))
	stop := make(chan struct{})
	var all sync.WaitGroup
	var served atomic.Int64
	for i := range 16 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				method, text := http.MethodGet, ""
				if i%2 == 0 {
					method, text = http.MethodPost, fmt.Sprint("body ", i, n)
				}
				resp, body := r.do(t, r.request(t, method, "/", strings.NewReader(text)))
				if resp.StatusCode != 200 || !strings.HasSuffix(body, " "+text) {
					t.Errorf("%s %s", resp.Status, body)
				}
				served.Add(1)
			}
		})
	}
	for n := 1; n <= 10; n++ {
		before := served.Load()
		eventually(t, "requests are served", func() bool { return served.Load() > before+50 })
		r.start(t, version(n), program(n))
		r.flip(record.AppRunning, version(n))
		// The old one drains: it is stopped when nothing is open any more.
		old := version(n - 1)
		eventually(t, "the old instance drains", func() bool {
			_, open := r.openOf(old)
			return open == 0
		})
		r.mu.Lock()
		delete(r.rows, old)
		r.mu.Unlock()
		r.refuse(old, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "gone"})
	}
	close(stop)
	all.Wait()
}

func (r *appRig) openOf(sandbox string) (last time.Time, open int) {
	l := r.edge.apps.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.apps[appID]
	if s == nil {
		return last, 0
	}
	return s.last, s.open[sandbox]
}

// A request that has been sent is finished by the old instance.
func TestARequestUnderWayIsFinishedByTheOldInstance(t *testing.T) {
	r := newAppRig(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-leave
		io.WriteString(w, "old")
	}))
	r.start(t, boxB, says("new"))
	r.flip(record.AppRunning, boxA)
	answer := make(chan string)
	go func() {
		_, body := r.get(t, "/")
		answer <- body
	}()
	<-inside
	r.flip(record.AppRunning, boxB)
	for range 3 {
		if _, body := r.get(t, "/"); body != "new" {
			t.Errorf("after the flip: %s", body)
		}
	}
	<-time.After(2 * stoppedCheck) // it does not count as stopped
	close(leave)
	if got := <-answer; got != "old" {
		t.Errorf("the one under way: %s", got)
	}
}

// A sandbox that is lost under a request is no reason to wait for ever, nor to send the
// request twice.
func TestASandboxThatIsLostUnderARequest(t *testing.T) {
	r := newAppRig(t)
	inside := make(chan struct{})
	var asked atomic.Int64
	r.start(t, boxA, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		close(inside)
		<-req.Context().Done()
	}))
	r.start(t, boxB, says("new"))
	r.flip(record.AppRunning, boxA)
	go func() {
		<-inside
		r.mu.Lock()
		delete(r.rows, boxA)
		r.mu.Unlock()
		r.flip(record.AppRunning, boxB)
	}()
	if resp, body := r.get(t, "/"); resp.StatusCode != http.StatusBadGateway || asked.Load() != 1 || !strings.Contains(body, "broke off") {
		t.Errorf("%s %s, asked %d times", resp.Status, body, asked.Load())
	}
	if _, body := r.get(t, "/"); body != "new" {
		t.Errorf("the next: %s", body)
	}
}

func TestTooManyRequestsToOneApp(t *testing.T) {
	r := newAppRig(t, func(c *Config) { c.Apps.MaxRequests = 1 })
	inside, leave := make(chan struct{}), make(chan struct{})
	r.start(t, boxA, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(inside); <-leave }))
	r.flip(record.AppRunning, boxA)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.get(t, "/")
	}()
	<-inside
	if resp, body := r.get(t, "/"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "too many requests at once to this app") {
		t.Errorf("%s %s", resp.Status, body)
	}
	close(leave)
	<-done
}
