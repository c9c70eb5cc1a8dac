package edge

import (
	"net"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Name is what a preview's host name says.
type Name struct {
	Port      int
	SandboxID string
}

// Belongs reports whether a request's Host is under the suffix, whatever stands
// before it: such a request is the edge's to answer, and never the API's.
func Belongs(host, suffix string) bool {
	_, ok := label(host, suffix)
	return ok
}

// Parse reads "<port>-<sandbox_id>.<suffix>", with or without a port of its own
// behind it. ok is false for anything else under the suffix.
func Parse(host, suffix string) (n Name, ok bool) {
	l, ok := label(host, suffix)
	if !ok {
		return Name{}, false
	}
	digits, id, ok := strings.Cut(l, "-")
	if !ok || !hostapi.ValidID(id) {
		return Name{}, false
	}
	// As it is written in decimal, so that there is one name for each port.
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != digits {
		return Name{}, false
	}
	return Name{Port: int(port), SandboxID: id}, true
}

// label is what stands before ".<suffix>", in lower case: host names have none.
func label(host, suffix string) (string, bool) {
	if suffix == "" {
		return "", false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return strings.CutSuffix(host, "."+strings.ToLower(suffix))
}
