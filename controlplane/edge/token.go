package edge

import (
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Where a preview token may be. A browser is given it as a link and keeps it in
// a cookie; a program sends the header.
const (
	HeaderToken = "Berth-Preview-Token"
	QueryToken  = service.QueryPreviewToken
	cookieToken = "berth_preview"
)

// authorized lets a request through whose sandbox is public, or which has a
// token for it; otherwise it answers. It is asked before anything is woken, and
// the token never reaches the sandbox.
func (e *Edge) authorized(w http.ResponseWriter, r *http.Request, n Name, s *record.Sandbox) bool {
	token, from := takeToken(r)
	if s.Preview != record.PreviewToken {
		return true
	}
	expires, err := e.cfg.Tokens.Check(n.SandboxID, n.Port, token)
	if err != nil {
		detail := "this preview is private: ask its owner for a link"
		if token != "" {
			detail = "the preview token is not valid or has expired"
		}
		e.refuse(w, r, http.StatusUnauthorized, "unauthorized", detail)
		return false
	}
	if from != fromQuery || r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		// For the leader, or for another look at the same request; rewrite drops it.
		r.Header.Set(HeaderToken, token)
		return true
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieToken, Value: token, Path: "/", Expires: expires, MaxAge: max(1, int(time.Until(expires).Seconds())),
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode,
	})
	w.Header().Set(headerRequestID, r.Header.Get(headerRequestID))
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	to := *r.URL
	to.Scheme, to.Host = "", ""
	http.Redirect(w, r, to.RequestURI(), http.StatusFound)
	return false
}

type source int

const (
	fromNowhere source = iota
	fromHeader
	fromQuery
	fromCookie
)

// takeToken removes the token from a request, wherever it is.
func takeToken(r *http.Request) (token string, from source) {
	if c, err := r.Cookie(cookieToken); err == nil {
		token, from = c.Value, fromCookie
		dropCookie(r)
	}
	if strings.Contains(r.URL.RawQuery, QueryToken) {
		if q := r.URL.Query(); q.Has(QueryToken) {
			token, from = q.Get(QueryToken), fromQuery
			q.Del(QueryToken)
			r.URL.RawQuery = q.Encode()
		}
	}
	if v := r.Header.Get(HeaderToken); v != "" {
		token, from = v, fromHeader
		r.Header.Del(HeaderToken)
	}
	return token, from
}

func dropCookie(r *http.Request) {
	kept := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range kept {
		if c.Name != cookieToken {
			r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value, Quoted: c.Quoted})
		}
	}
}
