package edge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
