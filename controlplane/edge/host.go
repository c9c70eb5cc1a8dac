package edge

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// routes are the suffixes of host names, and who serves what is under each. Of two
// that a name is under, the longer one counts.
type routes []route

type route struct {
	suffix string
	serve  http.HandlerFunc
}

// add adds a route, unless the suffix is empty.
func (t *routes) add(suffix string, serve http.HandlerFunc) {
	if suffix == "" {
		return
	}
	*t = append(*t, route{suffix, serve})
	slices.SortStableFunc(*t, func(a, b route) int { return cmp.Compare(len(b.suffix), len(a.suffix)) })
}

func (t routes) find(host string) (serve http.HandlerFunc, ok bool) {
	for _, r := range t {
		if Belongs(host, r.suffix) {
			return r.serve, true
		}
	}
	return nil, false
}

// name returns a host name that is under a suffix as names are compared, and "" for any
// other.
func (t routes) name(host string) string {
	if _, ok := t.find(host); !ok {
		return ""
	}
	return DomainName(host)
}

// Name is the content of a preview's host name.
type Name struct {
	Port      int
	SandboxID string
}

// Belongs reports whether a request's Host is under the suffix.
func Belongs(host, suffix string) bool {
	_, ok := label(host, suffix)
	return ok
}

// Parse parses "<port>-<sandbox_id>.<suffix>", with or without a port number after
// it. ok is false for any other name under the suffix.
func Parse(host, suffix string) (n Name, ok bool) {
	l, ok := label(host, suffix)
	if !ok {
		return Name{}, false
	}
	digits, id, ok := strings.Cut(l, "-")
	if !ok || !hostapi.ValidID(id) {
		return Name{}, false
	}
	// Only the canonical decimal form, so that each port has one name.
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != digits {
		return Name{}, false
	}
	return Name{Port: int(port), SandboxID: id}, true
}

// parseApp parses "<app_id>.<suffix>", with or without a port number after it. ok is
// false for what can be no app's name.
func parseApp(host, suffix string) (id string, ok bool) {
	l, ok := label(host, suffix)
	if !ok || !validAppID(l) {
		return "", false
	}
	return l, true
}

// maxLabel is the length of the longest label of a host name (RFC 1035).
const maxLabel = 63

// validAppID reports whether an id can be the label of a host name, as all ids of apps
// are.
func validAppID(id string) bool {
	if id == "" || len(id) > maxLabel || id[0] == '-' || id[len(id)-1] == '-' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// label returns the part before ".<suffix>" in lower case, because host names are
// not case-sensitive.
func label(host, suffix string) (string, bool) {
	if suffix == "" {
		return "", false
	}
	return strings.CutSuffix(DomainName(host), "."+strings.ToLower(suffix))
}

// DomainName returns the host name of a Host header, or of a TLS handshake, in the form
// in which names are compared: in lower case, without a port number and a dot at the
// end.
func DomainName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
