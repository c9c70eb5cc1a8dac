package edge

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/raftstore/record"
)

// through serves AppProxy as the API does.
func (r *appRig) through(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/apps/{id}/proxy/{rest...}", func(w http.ResponseWriter, req *http.Request) {
		r.edge.AppProxy(req.PathValue("id"), req.PathValue("rest")).ServeHTTP(w, req)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestTheProxyOfAnApp(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, _ := io.ReadAll(req.Body)
		h := req.Header
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		for _, k := range []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "X-Service-App"} {
			w.Header().Set(k, "theirs")
		}
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Location", "/next")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%s %s host=%s at=%s prefix=%s auth=%q cookie=%q key=%q body=%s", req.Method, req.URL, req.Host, h.Get("X-Forwarded-Host"), h.Get("X-Forwarded-Prefix"),
			h.Get("Authorization"), h.Get("Cookie"), h.Get("X-Key"), raw)
	}))
	r.sleeps(boxA)
	api := r.through(t)
	var hints []http.Header // of 1xx answers
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		hints = append(hints, http.Header(h))
		return nil
	}})
	ask := func(id, rest string) (*http.Response, string) {
		t.Helper()
		hints = nil
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, api.URL+"/v1/apps/"+id+"/proxy"+rest, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer brt_secret")
		req.Header.Set("Cookie", "a=b")
		req.Header.Set("X-Key", "mine")
		req.Header.Set("X-Forwarded-Prefix", "/forged")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		return resp, string(raw)
	}
	for _, rest := range []string{"/", "/a/b?x=1;y", "/a%2Fb", "/%C3%A9", "/v1/apps/" + appID + "/proxy/x"} {
		resp, body := ask(appID, rest)
		want := fmt.Sprintf(`POST %s host=%s at=%s prefix=/v1/apps/%s/proxy auth="" cookie="" key="mine" body=hello`, rest, appHost, strings.TrimPrefix(api.URL, "http://"), appID)
		if resp.StatusCode != http.StatusCreated || body != want || resp.Header.Get("Location") != "/next" {
			t.Errorf("%s: %s %v %s\nwant %s", rest, resp.Status, resp.Header, body, want)
		}
		for _, h := range append(hints, resp.Header) {
			for _, k := range []string{"Set-Cookie", "Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "X-Service-App"} {
				if h.Get(k) != "" {
					t.Errorf("%s: %s says %s of the API's host name", rest, k, h.Get(k))
				}
			}
		}
	}
	eventually(t, "none is open", func() bool { _, open := r.openOf(boxA); return open == 0 })
	if last, _ := r.openOf(boxA); r.wakes.Load() != 1 || last.IsZero() {
		t.Errorf("%d wakes, last %v", r.wakes.Load(), last)
	}
	for _, id := range []string{strings.Repeat("b", 26), "a_b", strings.Repeat("a", 64), "%2e%2e"} {
		if resp, body := ask(id, "/"); resp.StatusCode != http.StatusNotFound || strings.TrimSpace(body) != `{"error":"not found"}` {
			t.Errorf("%s: %s %s", id, resp.Status, body)
		}
	}
	none := httptest.NewRecorder()
	New(Config{Log: discard}).AppProxy(appID, "").ServeHTTP(none, httptest.NewRequest(http.MethodGet, "/v1/apps/"+appID+"/proxy/", http.NoBody))
	if none.Code != http.StatusNotFound {
		t.Errorf("without apps: %d", none.Code)
	}
}

// The classes are those of the app's own paths.
func TestTheProxyOfASleepingApp(t *testing.T) {
	r := newAppRig(t)
	r.flip(record.AppHibernated)
	r.wakesBy(func(context.Context) error { t.Error("it was woken"); return errSome })
	api := r.through(t)
	resp, err := http.Get(api.URL + "/v1/apps/" + appID + "/proxy/robots.txt")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("X-Service-App") != "asleep" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}

// The leader gets the client's own request: it checks again who asks.
func TestAProxyThatIsLeftToTheLeader(t *testing.T) {
	r, _, _ := follower(t)
	r.known = false
	api := r.through(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL+"/v1/apps/"+appID+"/proxy/x", strings.NewReader("kept"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer brt_secret")
	req.Header.Set("Cookie", "a=b")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); string(raw) != "from the leader /v1/apps/"+appID+"/proxy/x Bearer brt_secret a=b kept" {
		t.Errorf("%s", raw)
	}
}
