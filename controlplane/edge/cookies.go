package edge

import (
	"net/http"
	"strings"
)

// ofOneHost returns the value of a Set-Cookie without a Domain that is not the host name
// itself. Under a suffix, each name is somebody else's: a cookie for the suffix would be
// sent to all of them, and could stand in for theirs.
func ofOneHost(line, host string) string {
	parts := strings.Split(line, ";") // as browsers do, whatever is quoted (RFC 6265, 5.2)
	kept := parts[:1]
	for _, p := range parts[1:] {
		name, value, _ := strings.Cut(p, "=")
		domain := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(value), "."))
		if strings.EqualFold(strings.TrimSpace(name), "domain") && domain != host {
			continue
		}
		kept = append(kept, p)
	}
	return strings.Join(kept, ";")
}

// keepCookies has a response set cookies for its own host name alone.
func keepCookies(h http.Header, host string) {
	lines := h["Set-Cookie"]
	for i, line := range lines {
		lines[i] = ofOneHost(line, host)
	}
}
