package edge

import (
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Where a preview token may be. A browser is given it as a link and keeps it in
// a cookie; a program sends the header.
const (
	HeaderToken = "Berth-Preview-Token"
	QueryToken  = api.QueryPreviewToken
	cookieToken = "berth_preview"
)

// authorized lets a request through whose sandbox is public, or which has a
// token for it; otherwise it answers. It is asked before anything is woken, and
// the token never reaches the sandbox.
func (e *Edge) authorized(w http.ResponseWriter, r *http.Request, n Name, s *record.Sandbox) bool {
	tokens, from := takeTokens(r)
	if s.Preview != record.PreviewToken {
		return true
	}
	token, expires, ok := e.valid(n, tokens)
	if !ok {
		detail := "this preview is private: ask its owner for a link"
		if len(tokens) > 0 {
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

// valid returns the first of the tokens that opens a preview.
func (e *Edge) valid(n Name, tokens []string) (token string, expires time.Time, ok bool) {
	for _, token := range tokens {
		if expires, err := e.cfg.Tokens.Check(n.SandboxID, n.Port, token); err == nil {
			return token, expires, true
		}
	}
	return "", time.Time{}, false
}

type source int

const (
	fromNowhere source = iota
	fromHeader
	fromQuery
	fromCookie
)

// takeTokens removes the token from a request, wherever it is. Of cookies there may
// be several: every preview under the suffix can set one for all of them, and a
// browser does not say which is whose.
func takeTokens(r *http.Request) (tokens []string, from source) {
	for _, c := range r.CookiesNamed(cookieToken) {
		tokens, from = append(tokens, c.Value), fromCookie
	}
	if from == fromCookie {
		dropCookie(r)
	}
	if strings.Contains(r.URL.RawQuery, QueryToken) {
		if q := r.URL.Query(); q.Has(QueryToken) {
			tokens, from = []string{q.Get(QueryToken)}, fromQuery
			q.Del(QueryToken)
			r.URL.RawQuery = q.Encode()
		}
	}
	if v := r.Header.Get(HeaderToken); v != "" {
		tokens, from = []string{v}, fromHeader
		r.Header.Del(HeaderToken)
	}
	return tokens, from
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
