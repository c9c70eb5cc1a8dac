package edge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/raftstore/record"
)

// All host names under a suffix share it, and no more: what one sets for it, the others
// would be sent.
func TestACookieIsForOneHostName(t *testing.T) {
	for line, want := range map[string]string{
		"a=1":                                              "a=1",
		"a=1; Path=/; Secure":                              "a=1; Path=/; Secure",
		"a=1; Domain=" + appSuffix:                         "a=1",
		"a=1; domain=." + appSuffix:                        "a=1",
		"a=1;DOMAIN =\t" + appSuffix:                       "a=1",
		"a=1; Domain=" + appHost + "":                      "a=1; Domain=" + appHost,
		"a=1; domain=." + appHost:                          "a=1; domain=." + appHost,
		"a=1; Domain=localhost; Max-Age=9":                 "a=1; Max-Age=9",
		"a=1; Domain=" + appHost + "; Domain=" + appSuffix: "a=1; Domain=" + appHost,
		"a=1; Domain=" + strings.ToUpper(appHost):          "a=1; Domain=" + strings.ToUpper(appHost),
		`a="1; Domain=` + appSuffix + `; x"`:               `a="1; x"`,
		"Domain=" + appSuffix + "; Path=/":                 "Domain=" + appSuffix + "; Path=/",
		"a=1; Domain=; Domain; HttpOnly":                   "a=1; HttpOnly",
		"a=1; Comment=Domain=" + appSuffix:                 "a=1; Comment=Domain=" + appSuffix,
	} {
		if got := ofOneHost(line, appHost); got != want {
			t.Errorf("%q is passed on as %q, want %q", line, got, want)
		}
	}
}

func TestAnAppSetsNoCookieForOthers(t *testing.T) {
	r := newAppRig(t, func(c *Config) {
		c.Apps.Domain = func(name string) (string, bool) { return appID, name == "www.example.com" }
	})
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		domain := req.URL.Query().Get("domain")
		w.Header().Add("Set-Cookie", "one=1; Domain="+domain+"; Path=/")
		w.Header().Add("Set-Cookie", "two=2; Path=/")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "ok")
	}))
	r.flip(record.AppRunning, boxA)
	for _, c := range []struct{ host, domain, want string }{
		{appHost, appSuffix, "[one=1; Path=/ two=2; Path=/]"},
		{strings.ToUpper(appHost) + ":8443", "." + appSuffix, "[one=1; Path=/ two=2; Path=/]"},
		{appHost, appHost, "[one=1; Domain=" + appHost + "; Path=/ two=2; Path=/]"},
		{"www.example.com", "example.com", "[one=1; Domain=example.com; Path=/ two=2; Path=/]"}, // its workspace's own
	} {
		var hints []string
		req := r.request(t, http.MethodGet, "/?domain="+c.domain, http.NoBody)
		req.Host = c.host
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(h["Set-Cookie"]))
			return nil
		}}))
		resp, _ := r.do(t, req)
		if got := fmt.Sprint(resp.Header["Set-Cookie"]); resp.StatusCode != http.StatusOK || got != c.want || len(hints) != 1 || hints[0] != c.want {
			t.Errorf("%s sets for %s: %s %s, early %v; want %s", c.host, c.domain, resp.Status, got, hints, c.want)
		}
	}
}

func TestAPreviewSetsNoCookieForOthers(t *testing.T) {
	r := newRig(t)
	r.serve(8000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "one=1; Domain="+suffix)
		w.WriteHeader(http.StatusNoContent)
	}))
	resp, err := r.front.Client().Do(r.request(t, http.MethodGet, "8000-"+box+"."+suffix, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Set-Cookie"); resp.StatusCode != http.StatusNoContent || got != "one=1" {
		t.Errorf("%s %q", resp.Status, got)
	}
}
