package edge

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/core"
)

// headerRequestID contains the request's id, here and on the sandbox's host.
const headerRequestID = "X-Request-Id"

// headerForwardedPrefix contains the part of the path that a proxy has removed.
const headerForwardedPrefix = "X-Forwarded-Prefix"

// internal is the prefix of the names of our own headers.
const internal = "Berth-"

// removeOwnHeaders removes headers from a program's response that only replicas may
// set: they trust each other's, and clients believe what they say of an app.
func removeOwnHeaders(h http.Header) {
	for k := range h {
		if strings.HasPrefix(k, internal) {
			delete(h, k)
		}
	}
	delete(h, headerRequestID)
	delete(h, headerServiceApp)
}

// ofHostName are the headers of a response that speak for a whole host name.
var ofHostName = []string{"Set-Cookie", "Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security"}

// removeForHost removes what an app may say of its own host name, and not of the
// API's.
func removeForHost(h http.Header) {
	for _, k := range ofHostName {
		delete(h, k)
	}
}

// removeDisguised removes headers of a request that a program may take for one of those
// that it has from the edge alone: CGI and WSGI make the same variable of X_Forwarded_For
// and X-Forwarded-For.
func removeDisguised(h http.Header) {
	for k := range h {
		if !strings.Contains(k, "_") {
			continue
		}
		switch name := http.CanonicalHeaderKey(strings.ReplaceAll(k, "_", "-")); {
		case strings.HasPrefix(name, "X-Forwarded-"), strings.HasPrefix(name, internal), name == headerRequestID:
			delete(h, k)
		}
	}
}

// fewFields refuses a head with too many lines.
func fewFields(h http.Header) error {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	if n > maxFields {
		return fmt.Errorf("the head of the response has %d lines, at most %d", n, maxFields)
	}
	return nil
}

// nameRequest sets the request's id: the client's own if it is valid.
func (e *Edge) nameRequest(r *http.Request) {
	given := ""
	if v := r.Header.Values(headerRequestID); len(v) == 1 {
		given = v[0]
	}
	r.Header.Set(headerRequestID, core.RequestID(given, e.cfg.MaxRequestID))
}
