package edge

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A function is reached by Invoke alone, and by it no app is. Whatever asks wakes it.
func TestInvocations(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		raw, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %s prefix=%s auth=%q %s", req.Method, req.URL, req.Header.Get("X-Forwarded-Prefix"), req.Header.Get("Authorization"), raw)
	}))
	r.sleeps(boxA)
	r.become(func(a *App) { a.Function = true })
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/functions/{id}/invoke/{rest...}", func(w http.ResponseWriter, req *http.Request) {
		r.edge.Invoke(req.PathValue("id"), req.PathValue("rest")).ServeHTTP(w, req)
	})
	api := httptest.NewServer(mux)
	t.Cleanup(api.Close)
	ask := func(method, rest, agent string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, api.URL+"/v1/functions/"+appID+"/invoke"+rest, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer brt_secret")
		req.Header.Set("User-Agent", agent)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		return resp, string(raw)
	}
	// What would wake no app: a monitor, and what browsers ask for.
	for _, c := range []struct{ rest, agent string }{{"/health", "UptimeRobot/2.0"}, {"/favicon.ico", "Googlebot"}, {"/a%2Fb?x=1", ""}} {
		resp, body := ask("POST", c.rest, c.agent)
		if want := fmt.Sprintf(`POST %s prefix=/v1/functions/%s/invoke auth="" hello`, c.rest, appID); resp.StatusCode != 200 || body != want || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s %v %s, want %s", c.rest, resp.Status, resp.Header, body, want)
		}
	}
	if resp, body := r.get(t, "/"); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "not found") {
		t.Errorf("by its host name: %s %s", resp.Status, body)
	}
	proxy := r.through(t)
	resp, err := http.Get(proxy.URL + "/v1/apps/" + appID + "/proxy/") //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("by the proxy of apps: %s", resp.Status)
	}
	r.become(func(a *App) { a.Function = false })
	if resp, body := ask("POST", "/", "x"); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "not found") {
		t.Errorf("an app is invoked: %s %s", resp.Status, body)
	}
	r.become(func(a *App) { *a = App{Function: true, Status: record.AppCreated} })
	if resp, body := ask("POST", "/", "x"); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "no code deployed yet") {
		t.Errorf("never deployed: %s %s", resp.Status, body)
	}
	r.become(func(a *App) { *a = App{Function: true, Live: true, Suspended: true, Status: record.AppHibernated} })
	if resp, body := ask("POST", "/", "x"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "function is suspended") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("suspended: %s %s", resp.Status, body)
	}
}

// What a function has written last is in the answer to an invocation that failed, as
// guestapp has masked it, and nothing of what others have written since.
func TestAFailureHasTheLastLinesOfTheLog(t *testing.T) {
	const answer = `{"error":"the function failed","detail":"ValueError","request_id":"mine"}`
	var log atomic.Pointer[string] // nil: guestapp does not answer
	set := func(text string) { log.Store(&text) }
	ended := make(chan struct{}, 100)
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == appapi.PathRunLog {
			if log.Load() == nil {
				http.Error(w, `{"error":"away"}`, http.StatusInternalServerError)
				return
			}
			w.Header().Set(appapi.HeaderOffset, "0")
			io.WriteString(w, *log.Load())
			w.(http.Flusher).Flush()
			if req.URL.Query().Get("follow") != "" {
				<-req.Context().Done() // as a log that goes on
				ended <- struct{}{}
			}
			return
		}
		status, _ := strconv.Atoi(req.URL.Query().Get("status"))
		if req.URL.Query().Has("failed") {
			w.Header().Set("Berth-Function-Failed", "1")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, req.URL.Query().Get("say"))
	}))
	r.flip(record.AppRunning, boxA)
	r.become(func(a *App) { a.Function = true })
	ask := func(method, query string) (*http.Response, string) {
		t.Helper()
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), method, "/v1/functions/"+appID+"/invoke/x?"+query, http.NoBody)
		req.Header.Set("X-Request-Id", "mine")
		r.edge.Invoke(appID, "x").ServeHTTP(w, req)
		return w.Result(), w.Body.String()
	}
	failed := "status=500&failed&say=" + url.QueryEscape(answer)
	long := strings.Repeat("ä", 3000)
	for name, c := range map[string]struct {
		log  string
		want []string
	}{
		"up to its own line":   {"before\nmine failed\nValueError: ********\nmine POST /x 500 3ms\nother POST /x 200 1ms\n", []string{"before", "mine failed", "ValueError: ********"}},
		"its line is no other": {"mine POSTED\nmine POST /x 500 3ms\n", []string{"mine POSTED"}},
		"at most 20":           {strings.Repeat("x\n", 80) + "mine POST /x 500 3ms\n", slices.Repeat([]string{"x"}, 20)},
		"at most 4 KiB":        {"first\n" + strings.Repeat("x", 4000) + "\n" + strings.Repeat("y", 96) + "\nmine POST /x 500 3ms\n", []string{strings.Repeat("x", 4000), strings.Repeat("y", 96)}},
		"the end of a line":    {"first\n" + long + "\nmine POST /x 500 3ms\n", []string{strings.Repeat("ä", 2047)}},
		"what is no text":      {"a\xffb\r\nmine POST /x 500 3ms\n", []string{"a\uFFFDb"}},
		"none":                 {"mine POST /x 500 3ms\n", nil},
	} {
		set(c.log)
		resp, body := ask("POST", failed)
		var got struct {
			Error, Detail string
			RequestID     string `json:"request_id"`
			Log           []string
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 500 || got.Error != "the function failed" || got.Detail != "ValueError" || got.RequestID != "mine" || !slices.Equal(got.Log, c.want) {
			t.Errorf("%s: %s %q", name, resp.Status, body)
		}
		if resp.Header.Get("Content-Length") != strconv.Itoa(len(body)) || resp.Header.Get("Berth-Function-Failed") != "" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d bytes, %v", name, len(body), resp.Header)
		}
		<-ended // the log is not read on
	}
	// An answer stays as it is without the header, if it is no object, and if there is no log.
	for name, query := range map[string]string{
		"a handler's own": "status=500&say=" + url.QueryEscape(answer), "no object": "status=500&failed&say=[1]", "no JSON": "status=500&failed&say=x", "large": "status=500&failed&say=%22" + strings.Repeat("x", 40000),
	} {
		if resp, body := ask("POST", query); resp.StatusCode != 500 || body != must(url.ParseQuery(query)).Get("say") {
			t.Errorf("%s: %s %.100q", name, resp.Status, body)
		}
	}
	log.Store(nil)
	if resp, body := ask("POST", failed); resp.StatusCode != 500 || body != answer {
		t.Errorf("without a log: %s %q", resp.Status, body)
	}
	if resp, body := ask("HEAD", failed); resp.StatusCode != 500 || body != "" {
		t.Errorf("HEAD: %s %q", resp.Status, body)
	}
}

// A runner that does not even answer has its log told by the edge.
func TestAFunctionThatBreaksOffHasItsLogTold(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != appapi.PathRunLog {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set(appapi.HeaderOffset, "0")
		io.WriteString(w, "SyntaxError: ********\n==> It failed with exit code 1.\n")
	}))
	r.flip(record.AppRunning, boxA)
	for _, function := range []bool{true, false} {
		r.become(func(a *App) { a.Function = function })
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/functions/"+appID+"/invoke/", http.NoBody)
		if function {
			r.edge.Invoke(appID, "").ServeHTTP(w, req)
		} else {
			r.edge.AppProxy(appID, "").ServeHTTP(w, req)
		}
		if told := strings.Contains(w.Body.String(), `"log":["SyntaxError: ********","==\u003e It failed with exit code 1."]`); w.Code != http.StatusBadGateway || told != function {
			t.Errorf("function %t: %d %s", function, w.Code, w.Body)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
