package edge

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/raftstore/record"
)

const shop = "shop.example.com"

// onDomains has an app at shop and at a name that is under the service's own suffix.
func onDomains(c *Config) {
	c.Apps.Domain = func(name string) (string, bool) {
		return appID, name == shop || name == "stolen."+appSuffix
	}
}

func TestADomainLeadsToItsApp(t *testing.T) {
	r := newAppRig(t, onDomains)
	r.start(t, "one", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, req.Host+" "+req.Header.Get("X-Forwarded-Host"))
	}))
	r.flip(record.AppRunning, "one")
	for _, host := range []string{shop, "SHOP.example.com", shop + ".", shop + ":8443"} {
		status, body := r.at(t, host)
		if status != 200 || body != host+" "+host {
			t.Errorf("%s: %d %q", host, status, body)
		}
		if !r.edge.Belongs(host) || !r.edge.IsDomain(host) {
			t.Errorf("%s is not the edge's", host)
		}
	}
	for _, host := range []string{"other.example.com", "x." + shop, "example.com", "", "127.0.0.1"} {
		if r.edge.Belongs(host) || r.edge.IsDomain(host) {
			t.Errorf("%q is the edge's", host)
		}
	}
	// A claim can never stand in for a name of the service's.
	if status, _ := r.at(t, "stolen."+appSuffix); status != 404 || r.edge.IsDomain("stolen."+appSuffix) {
		t.Errorf("%d", status)
	}
	if newAppRig(t).edge.Belongs(shop) {
		t.Error("without domains there is one")
	}
}

// at gets the front page at a host name.
func (r *appRig) at(t *testing.T, host string) (int, string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+appHost+"/", http.NoBody)
	req.Host, req.TLS = host, nil
	req.Header.Set("User-Agent", browser)
	w := httptest.NewRecorder()
	r.edge.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

// A follower that does not know the app yet lets the leader serve it.
func TestADomainOfAnAppThatIsNotKnownHere(t *testing.T) {
	r := newAppRig(t, onDomains)
	r.leading.Store(false)
	r.mu.Lock()
	r.known = false
	r.mu.Unlock()
	if status, body := r.at(t, shop); status != 200 || !strings.HasPrefix(body, "from the leader / ") {
		t.Errorf("%d %q", status, body)
	}
}

// Over the TLS of one name there is nothing of another.
func TestAConnectionIsForItsDomainAlone(t *testing.T) {
	r := newAppRig(t, onDomains)
	for _, c := range []struct {
		sni, host string
		want      bool
	}{
		{shop, shop, false}, {"SHOP.example.com", shop + ":443", false}, {shop, appHost, true}, {shop, "api.example.com", true}, {shop, "", true},
		{appHost, shop, false}, // whoever asks so has been shown the service's own certificate, as a balancer is
		{appHost, appHost, false}, {"", shop, false}, {"api.example.com", appHost, false},
	} {
		req := &http.Request{Host: c.host, TLS: &tls.ConnectionState{ServerName: c.sni}}
		if got := r.edge.Misdirected(req); got != c.want {
			t.Errorf("%s over %s: %v", c.host, c.sni, got)
		}
	}
	if r.edge.Misdirected(&http.Request{Host: appHost}) {
		t.Error("without TLS")
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	req.TLS = &tls.ConnectionState{ServerName: shop}
	w := httptest.NewRecorder()
	if r.edge.RefuseMisdirected(w, req); w.Code != http.StatusMisdirectedRequest {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
