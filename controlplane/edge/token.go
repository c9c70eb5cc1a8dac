package edge

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Where a request may have a preview token. A browser gets it in a link and keeps it
// in a cookie; a program sends the header.
const (
	HeaderToken = "Berth-Preview-Token"
	QueryToken  = api.QueryPreviewToken
	cookieToken = "berth_preview"
)

// authorized reports whether the sandbox is public or the request has a valid token;
// otherwise it answers. It runs before anything is woken, and it removes the token,
// so that it never reaches the sandbox.
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
		// For the leader, or for another iteration of serve; rewrite removes it.
		r.Header.Set(HeaderToken, token)
		return true
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieToken, Value: token, Path: "/", Expires: expires, MaxAge: max(1, int(time.Until(expires).Seconds())),
		HttpOnly: true, Secure: peer.ClientScheme(r) == "https", SameSite: http.SameSiteLaxMode,
	})
	e.own(w, r)
	to := url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	location := to.RequestURI()
	if strings.HasPrefix(location, "//") {
		location = "/." + location // a browser would take what follows for a host
	}
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusFound)
	return false
}

// valid returns the first valid token.
func (e *Edge) valid(n Name, tokens []string) (token string, expires time.Time, ok bool) {
	for _, token := range tokens {
		if expires, err := e.cfg.Previews.Tokens.Check(n.SandboxID, n.Port, token); err == nil {
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

// takeTokens removes the tokens from a request, wherever they are. There may be
// several cookies: every preview under the suffix can set one for all of them, and a
// browser does not say which preview a cookie is from.
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

// dropCookie removes the tokens from the cookies, and leaves all others as they came:
// programs set values that http.Request.Cookies does not take.
func dropCookie(r *http.Request) {
	var kept []string
	for _, line := range r.Header["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			if name, _, _ := strings.Cut(part, "="); part != "" && strings.TrimSpace(name) != cookieToken {
				kept = append(kept, part)
			}
		}
	}
	r.Header.Del("Cookie")
	if len(kept) > 0 {
		r.Header.Set("Cookie", strings.Join(kept, "; "))
	}
}
