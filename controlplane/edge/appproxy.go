package edge

import (
	"net/http"
	"net/url"
	"strings"
)

// AppProxy serves a request to the API as one to an app: rest is the path there. The
// caller has checked who asks. Credentials of the API and cookies, which belong to the
// API's host name, do not pass in either direction.
func (e *Edge) AppProxy(appID, rest string) http.Handler {
	return e.proxyTo(nounApp, appID, "/v1/apps/"+appID+"/proxy", rest)
}

// Invoke serves a request to the API as an invocation of a function. All is as with
// AppProxy, but that every request wakes it, and keeps it awake.
func (e *Edge) Invoke(functionID, rest string) http.Handler {
	return e.proxyTo(nounFunction, functionID, "/v1/functions/"+functionID+"/invoke", rest)
}

func (e *Edge) proxyTo(noun, id, prefix, rest string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.nameRequest(r)
		if e.apps == nil || !validAppID(id) {
			e.refuse(w, r, http.StatusNotFound, "not found", "")
			return
		}
		in := r.WithContext(r.Context())
		in.Header = r.Header.Clone()
		for _, h := range []string{"Authorization", "Cookie"} {
			in.Header.Del(h)
		}
		in.URL = below(r.URL, prefix, rest)
		e.visitApp(w, in, &visitApp{id: id, noun: noun, whole: r, proxy: prefix})
	})
}

// below returns the URL without a prefix of its path. The escapes of the rest stay as
// they are.
func below(u *url.URL, prefix, rest string) *url.URL {
	out := *u
	out.Path, out.RawPath = "/"+strings.TrimPrefix(rest, "/"), ""
	if raw, ok := strings.CutPrefix(u.EscapedPath(), prefix); ok && strings.HasPrefix(raw, "/") {
		if path, err := url.PathUnescape(raw); err == nil {
			out.Path, out.RawPath = path, raw
		}
	}
	return &out
}
