package peer

import "net/http"

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
