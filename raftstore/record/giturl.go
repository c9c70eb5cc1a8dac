package record

import (
	"net/url"
	"strings"
)

// NormalGitURL is the one form of all URLs of a repository over HTTPS: lower-case, as
// git hosts compare owners and names, without user, ".git" and a slash at the end. It is
// "" for what is no such URL. HTTP without TLS stays distinct.
func NormalGitURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return ""
	}
	scheme := strings.ToLower(u.Scheme)
	host := strings.ToLower(u.Host)
	switch scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	default:
		return ""
	}
	path := strings.ToLower(u.EscapedPath())
	for before := ""; before != path; { // no host lets a name end so
		before = path
		path = strings.TrimSuffix(strings.TrimRight(path, "/"), ".git")
	}
	if strings.Trim(path, "/") == "" {
		return ""
	}
	return scheme + "://" + host + path
}
