package edge

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	suffix = "preview.localhost"
	box    = "k7m2qz4xw3v5n6a2j7p4t5r6sd"
)

func (plainSealer) Seal(p, context []byte) ([]byte, error) {
	sum := sha256.Sum256(append(bytes.Clone(context), p...))
	return append(sum[:], p...), nil
}

func (plainSealer) Open(c, context []byte) ([]byte, error) {
	if len(c) < sha256.Size {
		return nil, errors.New("short")
	}
	if sum := sha256.Sum256(append(bytes.Clone(context), c[sha256.Size:]...)); !bytes.Equal(sum[:], c[:sha256.Size]) {
		return nil, errors.New("forged")
	}
	return c[sha256.Size:], nil
}

func TestRequestReachesThePort(t *testing.T) {
	r := newRig(t)
	r.serve(3000, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, _ := io.ReadAll(req.Body)
		w.Header().Set("X-App", "mine")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s host=%s proto=%s body=%s", req.Method, req.URL, req.Host, req.Header.Get("X-Forwarded-Proto"), raw)
	}))
	resp, body := r.do(t, r.request(t, http.MethodPost, hostOf(3000)+":7443", "/a%2Fb?x=1;y=2&z", strings.NewReader("hello")))
	want := "POST /a%2Fb?x=1;y=2&z host=" + hostOf(3000) + ":7443 proto=https body=hello"
	if resp.StatusCode != http.StatusTeapot || body != want || resp.Header.Get("X-App") != "mine" || resp.ProtoMajor != 2 {
		t.Errorf("%s %s\n%s\nwant\n%s", resp.Proto, resp.Status, body, want)
	}
}

func TestHostNamesThatAreNone(t *testing.T) {
	r := newRig(t)
	for _, h := range []string{
		"x." + suffix, "0-" + box + "." + suffix, "65536-" + box + "." + suffix, "080-" + box + "." + suffix, "+80-" + box + "." + suffix,
		"80-" + box[:25] + "." + suffix, "80-" + strings.Repeat("a", 300) + "." + suffix, "80--" + box + "." + suffix, "80-" + box + ".x." + suffix,
		"80-" + strings.Replace(box, "k", "1", 1) + "." + suffix, "." + suffix,
	} {
		if resp, body := r.do(t, r.request(t, http.MethodGet, h, "/", http.NoBody)); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, `"error":"not found"`) {
			t.Errorf("%s: %s %s", h, resp.Status, body)
		}
	}
	if n := r.dialled(); n != 0 {
		t.Errorf("the host was called %d times", n)
	}
	for h, want := range map[string]bool{
		suffix: false, "x" + suffix: false, "evil.example.com": false, "": false, "a." + strings.ToUpper(suffix) + ".:80": true,
	} {
		if Belongs(h, suffix) != want {
			t.Errorf("Belongs(%q) is %v", h, !want)
		}
	}
	if Belongs("a.", "") {
		t.Error("without a suffix there is no preview")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("80-"+box+"."+suffix+":443", suffix)
	f.Add("80-"+box+".", "")
	f.Add("[::1]:80", suffix)
	f.Fuzz(func(t *testing.T, host, suffix string) {
		n, ok := Parse(host, suffix)
		if ok && (!Belongs(host, suffix) || n.Port < 1 || n.Port > 65535 || !hostapi.ValidID(n.SandboxID)) {
			t.Errorf("%q: %+v", host, n)
		}
	})
}

// A managed sandbox is reached only through what manages it: an app or a database.
func TestAManagedSandboxIsUnknown(t *testing.T) {
	r := newRig(t)
	r.serve(80, http.NotFoundHandler())
	r.mu.Lock()
	r.sandbox.Owner = &record.Owner{Type: "database", ID: "d"}
	r.mu.Unlock()
	resp, managed := r.get(t, 80, "/")
	other := "80-" + strings.Replace(box, "k", "a", 1) + "." + suffix
	if _, unknown := r.do(t, r.request(t, http.MethodGet, other, "/", http.NoBody)); resp.StatusCode != http.StatusNotFound || managed != unknown || r.dialled() != 0 {
		t.Errorf("%d %s, and an unknown one %s", resp.StatusCode, managed, unknown)
	}
}

func TestSandboxThatCannotAnswer(t *testing.T) {
	for status, want := range map[record.SandboxStatus]string{
		record.SandboxPaused:   "409 sandbox not running (paused or hibernated) — resume/wake it first",
		record.SandboxFailed:   "404 sandbox not found or not running",
		record.SandboxDeleting: "404 sandbox not found or not running",
		record.SandboxStarting: "503 sandbox is starting",
	} {
		r := newRig(t)
		r.become(status)
		resp, body := r.get(t, 80, "/")
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(resp.StatusCode, " ", e.Error); got != want {
			t.Errorf("%s: %s, want %s", status, got, want)
		}
	}
	r := newRig(t)
	other := "80-" + strings.Replace(box, "k", "a", 1) + "." + suffix
	if resp, _ := r.do(t, r.request(t, http.MethodGet, other, "/", http.NoBody)); resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown id: %s", resp.Status)
	}
	req := r.request(t, http.MethodGet, other, "/", http.NoBody)
	req.Header.Set("Accept", "text/html,*/*")
	resp, body := r.do(t, req)
	if !strings.HasPrefix(body, "<!doctype html>") || resp.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("a browser gets %v %s", resp.Header, body)
	}
}

func TestPortThatOpensLate(t *testing.T) {
	r := newRig(t)
	go func() {
		for r.dialled() < 3 {
			select {
			case <-t.Context().Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
		r.serve(8000, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _, _ = io.Copy(w, req.Body) }))
	}()
	resp, body := r.do(t, r.request(t, http.MethodPost, hostOf(8000), "/", strings.NewReader("kept")))
	if resp.StatusCode != http.StatusOK || body != "kept" {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestPortThatStaysClosed(t *testing.T) {
	r := newRig(t, func(c *Config) { c.OpenWait = 50 * time.Millisecond })
	resp, body := r.get(t, 8000, "/")
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "port is closed") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestHibernatedSandboxIsWoken(t *testing.T) {
	r := newRig(t)
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "awake") }))
	r.become(record.SandboxHibernated)
	var wakes atomic.Int64
	r.awake = func() error { wakes.Add(1); r.become(record.SandboxRunning); return nil }
	if resp, body := r.get(t, 80, "/"); resp.StatusCode != 200 || body != "awake" || wakes.Load() != 1 {
		t.Errorf("%s %s after %d wakes", resp.Status, body, wakes.Load())
	}
	r.become(record.SandboxHibernated)
	r.awake = func() error { return errors.New("no memory") }
	if resp, _ := r.get(t, 80, "/"); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a wake that fails: %s", resp.Status)
	}
	for code, wait := range map[apierror.Code]string{apierror.EUnprocessable: "3600", apierror.ERateLimited: "3600", apierror.EUnavailable: "1"} {
		r.awake = func() error { return &apierror.Error{Code: code, Message: "refused"} }
		if resp, _ := r.get(t, 80, "/"); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != wait {
			t.Errorf("%s: %s, again in %s s", code, resp.Status, resp.Header.Get("Retry-After"))
		}
	}
}

func TestFollowerSendsWhatItCannotSettleToTheLeader(t *testing.T) {
	for name, prepare := range map[string]func(*rig) string{
		"a sandbox it does not know": func(*rig) string { return "80-" + strings.Replace(box, "k", "a", 1) + "." + suffix },
		"one that sleeps":            func(r *rig) string { r.become(record.SandboxHibernated); return hostOf(80) },
		"one of which the host says otherwise": func(r *rig) string {
			r.set(&hostapi.Error{Code: hostapi.CodeNotRunning, Message: "it is hibernated"})
			return hostOf(80)
		},
	} {
		r := newRig(t)
		r.leading.Store(false)
		h := prepare(r)
		resp, body := r.do(t, r.request(t, http.MethodPost, h, "/", strings.NewReader("x")))
		if resp.StatusCode != 200 || !strings.HasPrefix(body, "from the leader") {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	r := newRig(t)
	r.leading.Store(false)
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "mine") }))
	if _, body := r.get(t, 80, "/"); body != "mine" || r.forwarded.Load() != 0 {
		t.Errorf("a running sandbox needs no leader: %s", body)
	}
}

// The part of a response that has arrived is passed on, even if more is announced.
func TestResponseInPieces(t *testing.T) {
	r := newRig(t)
	more := make(chan struct{})
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", "8")
		for i, part := range []string{"", "half", "rest"} {
			if i > 0 {
				<-more
			}
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	}))
	for _, method := range []string{"GET", "POST"} {
		req, err := http.NewRequestWithContext(t.Context(), method, r.front.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = fmt.Sprintf("80-%s.%s", box, suffix)
		resp, err := r.front.Client().Do(req) // the head comes before the first half
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"half", "rest"} {
			more <- struct{}{}
			got := make([]byte, 4)
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				t.Errorf("%s: got %q, %v, want %q", method, got, err, want)
			}
		}
		resp.Body.Close()
	}
}

func TestWebSocketAndEventStream(t *testing.T) {
	r := newRig(t)
	next := make(chan string)
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			for {
				select {
				case s := <-next:
					fmt.Fprintf(w, "data: %s\n\n", s)
					w.(http.Flusher).Flush()
				case <-req.Context().Done():
					close(next)
					return
				}
			}
		}
		c, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(req.Context())
			if err != nil {
				return
			}
			if err := c.Write(req.Context(), kind, append([]byte("echo "), data...)); err != nil {
				return
			}
		}
	}))
	c, _, err := websocket.Dial(t.Context(), "wss"+strings.TrimPrefix(r.front.URL, "https"), &websocket.DialOptions{
		Host: hostOf(80), HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: r.front.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for i := range 3 {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != "echo "+strconv.Itoa(i) {
			t.Fatalf("%q, %v", got, err)
		}
	}

	resp, err := r.front.Client().Do(r.request(t, http.MethodGet, hostOf(80), "/events", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for _, s := range []string{"one", "two"} {
		next <- s // and nothing is sent after it: it must arrive by itself
		if line, err := lines.ReadString('\n'); err != nil || line != "data: "+s+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	resp.Body.Close()
	<-next // the program sees that its client has gone
}

func TestTooManyAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxRequests = 1 })
	inside, leave := make(chan struct{}), make(chan struct{})
	r.serve(80, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(inside); <-leave }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.get(t, 80, "/")
	}()
	<-inside
	if resp, _ := r.get(t, 81, "/"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the second: %s", resp.Status)
	}
	close(leave)
	<-done
}

func TestPrivatePreview(t *testing.T) {
	r := newRig(t)
	r.sandbox.Preview = record.PreviewToken
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "cookies=%v token=%q query=%s", req.Header["Cookie"], req.Header.Get(HeaderToken), req.URL.RawQuery)
	}))
	tokens := authn.PreviewTokens{Sealer: plainSealer{}, Clock: time.Now}
	issue := func(id string, port int, ttl time.Duration) string {
		token, err := tokens.Issue(id, port, time.Now().Add(ttl))
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := issue(box, 0, time.Hour)
	r.awake = func() error { t.Error("it was woken for a stranger"); return nil }
	r.become(record.SandboxHibernated)
	for name, token := range map[string]string{
		"none": "", "garbage": "x", "of another sandbox": issue(strings.Replace(box, "k", "a", 1), 0, time.Hour),
		"of another port": issue(box, 81, time.Hour), "expired": issue(box, 0, -time.Second), "long": strings.Repeat("A", 5000),
	} {
		req := r.request(t, http.MethodGet, hostOf(80), "/", http.NoBody)
		if token != "" {
			req.Header.Set(HeaderToken, token)
		}
		if resp, _ := r.do(t, req); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("token %s: %s", name, resp.Status)
		}
	}
	r.become(record.SandboxRunning)

	req := r.request(t, http.MethodGet, hostOf(80), "/x?a=1", http.NoBody)
	req.Header.Set(HeaderToken, good)
	if resp, body := r.do(t, req); resp.StatusCode != 200 || body != `cookies=[] token="" query=a=1` {
		t.Errorf("by header: %s %s", resp.Status, body)
	}
	resp, _ := r.get(t, 80, "/x?a=1&berth_token="+url.QueryEscape(good))
	if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/x?a=1" || len(resp.Cookies()) != 1 {
		t.Fatalf("by link: %s %v", resp.Status, resp.Header)
	}
	for path, want := range map[string]string{
		"//evil.example/x": "/.//evil.example/x", "/a//b/../c/": "/a//b/../c/", "/a%2Fb": "/a%2Fb", "/%5Cevil.example": "/%5Cevil.example",
	} {
		if resp, _ := r.get(t, 80, path+"?berth_token="+url.QueryEscape(good)); resp.Header.Get("Location") != want {
			t.Errorf("by a link to %s: to %s, want %s", path, resp.Header.Get("Location"), want)
		}
	}
	cookie := resp.Cookies()[0]
	if !cookie.HttpOnly || !cookie.Secure || cookie.MaxAge <= 0 {
		t.Errorf("cookie %+v", cookie)
	}
	req = r.request(t, http.MethodGet, hostOf(80), "/x", http.NoBody)
	req.AddCookie(cookie)
	req.AddCookie(&http.Cookie{Name: "app", Value: "1"})
	if resp, body := r.do(t, req); resp.StatusCode != 200 || body != `cookies=[app=1] token="" query=` {
		t.Errorf("by cookie: %s %s", resp.Status, body)
	}
	// A program's cookies may have values of any form.
	req = r.request(t, http.MethodGet, hostOf(80), "/x", http.NoBody)
	req.Header.Set("Cookie", `ui={"dark":true,"n":"é"}; `+cookie.Name+"="+cookie.Value+`; a="b c"; b`)
	if resp, body := r.do(t, req); resp.StatusCode != 200 || body != `cookies=[ui={"dark":true,"n":"é"}; a="b c"; b] token="" query=` {
		t.Errorf("with cookies of the program: %s %s", resp.Status, body)
	}
	// A cookie that another preview has set for the whole domain may come first or
	// last.
	for _, foreign := range []string{"x", issue(strings.Replace(box, "k", "a", 1), 0, time.Hour)} {
		for name, cookies := range map[string][]string{"before": {foreign, good}, "after": {good, foreign}} {
			req = r.request(t, http.MethodGet, hostOf(80), "/x", http.NoBody)
			for _, value := range cookies {
				req.AddCookie(&http.Cookie{Name: cookieToken, Value: value})
			}
			if resp, body := r.do(t, req); resp.StatusCode != 200 || body != `cookies=[] token="" query=` {
				t.Errorf("with another's cookie %s its own: %s %s", name, resp.Status, body)
			}
		}
	}
	r.leading.Store(false)
	r.become(record.SandboxHibernated)
	req = r.request(t, http.MethodGet, hostOf(80), "/x", http.NoBody)
	req.AddCookie(cookie)
	if _, body := r.do(t, req); body != fmt.Sprintf("from the leader, token %q", good) {
		t.Errorf("the leader needs the token too: %s", body)
	}
}

func TestLargeBodiesPassThrough(t *testing.T) {
	r := newRig(t)
	const size = 64 << 20
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			sum := sha256.New()
			n, err := io.Copy(sum, req.Body)
			fmt.Fprintf(w, "%d %v %x", n, err, sum.Sum(nil))
			return
		}
		_, _ = io.Copy(w, io.LimitReader(zeros{}, size))
	}))
	want := sha256.New()
	_, body := r.do(t, r.request(t, http.MethodPost, hostOf(80), "/", io.TeeReader(io.LimitReader(zeros{}, size), want)))
	if body != fmt.Sprintf("%d <nil> %x", size, want.Sum(nil)) {
		t.Errorf("up: %s", body)
	}
	resp, err := r.front.Client().Do(r.request(t, http.MethodGet, hostOf(80), "/", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := sha256.New()
	if n, err := io.Copy(got, resp.Body); err != nil || n != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("down: %d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestSandboxThatIsPausedUnderARequest(t *testing.T) {
	r := newRig(t)
	inside := make(chan struct{})
	r.serve(80, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		close(inside)
		<-req.Context().Done() // as a guest that stands still
	}))
	go func() {
		<-inside
		r.become(record.SandboxPaused)
	}()
	if resp, body := r.get(t, 80, "/"); resp.StatusCode != http.StatusConflict {
		t.Errorf("%s %s", resp.Status, body)
	}
}
