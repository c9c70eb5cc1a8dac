package peer

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// HeaderProto names the scheme that a client used to reach the proxy or replica that
// forwards its request.
const HeaderProto = "X-Forwarded-Proto"

// ClientScheme returns the scheme with which a client reached the public port: http or
// https. If TLS ends at the public port, the scheme is https. Otherwise a proxy may have
// terminated TLS, and its HeaderProto counts. For a forwarded request, the forwarding
// replica has set HeaderProto to the scheme that it determined.
func ClientScheme(r *http.Request) string {
	if r.TLS != nil && !Forwarded(r.Context()) {
		return "https"
	}
	switch said := r.Header.Get(HeaderProto); {
	case said == "http", said == "https":
		return said
	case r.TLS != nil:
		return "https"
	}
	return "http"
}

// HeaderFor lists whom each proxy on a request's way has it from, the last one last.
const HeaderFor = "X-Forwarded-For"

// ClientAddr returns the address, host:port, of the client that a request on a public port
// is from. A proxy of one of the networks is believed in whom it has the request from, and
// the port is 0 then. What comes before that in HeaderFor anybody may have written.
func ClientAddr(r *http.Request, proxies []netip.Prefix) string {
	trusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	from := r.RemoteAddr
	at, ok := address(from)
	said := strings.Split(strings.Join(r.Header.Values(HeaderFor), ","), ",")
	for i := len(said) - 1; i >= 0 && ok && trusted(at); i-- {
		if at, ok = address(strings.TrimSpace(said[i])); ok {
			from = net.JoinHostPort(at.String(), "0")
		}
	}
	return from
}

// address reads an IP address, which may have a port.
func address(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap(), true
	}
	a, err := netip.ParseAddrPort(s)
	return a.Addr().Unmap(), err == nil
}
