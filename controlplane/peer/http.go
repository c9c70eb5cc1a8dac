package peer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// Headers in which a replica tells the leader about a forwarded request. They count only
// on a connection with a replica's certificate. On all other connections, and on the
// public port, they are removed.
const (
	HeaderForwarded = "Berth-Forwarded" // id of the forwarding replica
	HeaderOperator  = "Berth-Operator"  // name on the operator certificate that the client showed to that replica
)

// PathStatus is the route on which a replica returns its RaftStatus to other replicas.
const PathStatus = "/internal/v1/status"

// PathRate is the route on which a replica takes tokens from the leader's buckets.
const PathRate = "/internal/v1/rate"

// PathDatabases is the prefix of the routes about databases. Replicas call them on each
// other, and routers that run as separate processes call them on replicas. Package pgedge
// defines the routes.
const PathDatabases = "/internal/v1/databases/"

// PathApps is the prefix of the routes on which replicas report to the leader about apps
// and ask it about them. Package edge defines the routes.
const PathApps = "/internal/v1/apps/"

// PathRotation is the route on which a replica tells other replicas, and the command that
// exchanges the cluster's CA, who trusts which authority. Package rotation defines the answer.
const PathRotation = "/internal/v1/rotation"

const pathInternal = "/internal/"

// Internal reports whether a request is for an internal route. The public port serves
// no internal route, and no internal request except a join is forwarded.
func Internal(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, pathInternal) }

// Routes holds the handlers of the port's HTTP side.
type Routes struct {
	Join      http.Handler                                              // needs no client certificate
	Heartbeat func(w http.ResponseWriter, r *http.Request, host string) // from hosts; host is the caller's id
	Events    func(w http.ResponseWriter, r *http.Request, host string) // from hosts; host is the caller's id
	Renew     http.Handler                                              // from hosts and routers; nil: refused
	// Authorities serves hosts and routers; nil: refused. id is the caller's.
	Authorities func(w http.ResponseWriter, r *http.Request, id pki.Identity)
	Rotation    http.Handler // from replicas; nil: refused
	Status      http.Handler // from replicas
	Rate        http.Handler // from replicas
	Databases   http.Handler // from replicas and routers, below PathDatabases
	// Apps serves replicas, below PathApps; replica is the caller's id.
	Apps   func(w http.ResponseWriter, r *http.Request, replica string)
	Public http.Handler // forwarded by replicas, or sent by an operator

	// Trusted is called for each request with a certificate; nil: every holder of a
	// certificate is a member.
	Trusted Trusted
}

// Handler routes requests by path and refuses those that the caller's certificate does
// not allow.
func Handler(routes Routes) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, known := pki.PeerIdentity(r.TLS)
		m := marksOf(r, id)
		StripMarks(r)
		r = r.WithContext(context.WithValue(r.Context(), marksKey{}, m))
		switch {
		case known && routes.Trusted != nil && !routes.Trusted(id, r.TLS.PeerCertificates[0]):
			refuseFormer(w, r, id)
		case r.URL.Path == hostapi.PathJoin:
			routes.Join.ServeHTTP(w, r)
		case (r.URL.Path == hostapi.PathHeartbeat || r.URL.Path == hostapi.PathHeartbeatPart) && id.Role == pki.RoleHost:
			routes.Heartbeat(w, r, id.Name)
		case r.URL.Path == hostapi.PathEvents && id.Role == pki.RoleHost:
			routes.Events(w, r, id.Name)
		case r.URL.Path == hostapi.PathRenew && (id.Role == pki.RoleHost || id.Role == pki.RoleRouter) && routes.Renew != nil:
			routes.Renew.ServeHTTP(w, r)
		case r.URL.Path == hostapi.PathAuthorities && (id.Role == pki.RoleHost || id.Role == pki.RoleRouter) && routes.Authorities != nil:
			routes.Authorities(w, r, id)
		case r.URL.Path == PathRotation && id.Role == pki.RoleReplica && !m.forwarded && routes.Rotation != nil:
			routes.Rotation.ServeHTTP(w, r)
		case r.URL.Path == PathStatus && id.Role == pki.RoleReplica && !m.forwarded:
			routes.Status.ServeHTTP(w, r)
		case r.URL.Path == PathRate && id.Role == pki.RoleReplica && !m.forwarded && routes.Rate != nil:
			routes.Rate.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, PathDatabases) && (id.Role == pki.RoleReplica || id.Role == pki.RoleRouter) && !m.forwarded:
			routes.Databases.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, PathApps) && id.Role == pki.RoleReplica && !m.forwarded:
			routes.Apps(w, r, id.Name)
		case Internal(r):
			refuse(w, known)
		case m.forwarded, id.Role == pki.RoleOperator:
			routes.Public.ServeHTTP(w, r)
		default:
			refuse(w, known)
		}
	})
}

// marksOf returns the marks of a request from the holder of id. It trusts a replica's
// headers about a request that the replica forwards. For all other callers only the
// certificate counts.
func marksOf(r *http.Request, id pki.Identity) marks {
	switch {
	case id.Role == pki.RoleReplica && r.Header.Get(HeaderForwarded) == id.Name:
		return marks{forwarded: true, operator: r.Header.Get(HeaderOperator)}
	case id.Role == pki.RoleOperator:
		return marks{operator: id.Name}
	}
	return marks{}
}

// refuse answers a caller that may not make this request: 403 to a known caller, 401 to
// an unknown one. It also closes the connection of an unknown caller.
func refuse(w http.ResponseWriter, known bool) {
	w.Header().Set("Content-Type", "application/json")
	if !known {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
		w.Write([]byte(`{"error":"unauthorized","detail":"client certificate required"}`))
		return
	}
	w.WriteHeader(http.StatusForbidden)
	w.Write([]byte(`{"error":"forbidden","detail":"this certificate may not call this"}`))
}

// refuseFormer refuses a former member. A replica that asks for the status gets 410, so
// that it can log that it was removed. What it forwards gets no answer at all, which its
// client would take for the cluster's.
func refuseFormer(w http.ResponseWriter, r *http.Request, id pki.Identity) {
	w.Header().Set("Connection", "close")
	switch {
	case id.Role != pki.RoleReplica:
		refuse(w, true)
	case r.URL.Path == PathStatus:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		w.Write([]byte(`{"error":"removed","detail":"this replica was removed from the cluster"}`))
	default:
		panic(http.ErrAbortHandler)
	}
}

type marksKey struct{}

type marks struct {
	forwarded bool
	operator  string
}

// Forwarded reports whether another replica forwarded the request. Such a request is not
// forwarded again.
func Forwarded(ctx context.Context) bool {
	m, _ := ctx.Value(marksKey{}).(marks)
	return m.forwarded
}

// Operator returns the name on the operator certificate behind the request, or "".
func Operator(ctx context.Context) string {
	m, _ := ctx.Value(marksKey{}).(marks)
	return m.operator
}

// StripMarks removes the headers that only replicas may send.
func StripMarks(r *http.Request) {
	r.Header.Del(HeaderForwarded)
	r.Header.Del(HeaderOperator)
}

// NewTransport returns the transport for HTTP requests to other replicas. It uses only
// HTTP/1.1: WebSockets must pass through, and one slow body must not delay other requests.
func NewTransport(node *pki.Node) *Transport {
	shared := &http.Transport{
		TLSClientConfig: node.ClientTLS(pki.AnyOf(pki.RoleReplica), "http/1.1"),
		// noticeDeadPeers sets the keep-alive options; package net must not change them.
		DialContext:         (&net.Dialer{Timeout: timescale.Limit(2 * time.Second), KeepAlive: -1, Control: noticeDeadPeers}).DialContext,
		TLSHandshakeTimeout: timescale.Limit(3 * time.Second),
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second,
	}
	own := shared.Clone()
	own.DisableKeepAlives = true
	return &Transport{shared: shared, own: own}
}

// Transport sends what must not be repeated on a new connection. On a reused connection,
// http.Transport repeats a GET if the connection closes during the request, because it
// assumes that a GET only reads. But every upgrade starts something. It also repeats any
// request without a body that has an idempotency key, which an app's program need not know.
type Transport struct {
	shared, own *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" || keyed(r) {
		return t.own.RoundTrip(r)
	}
	return t.shared.RoundTrip(r)
}

// keyed reports whether http.Transport would repeat a request only because of its
// idempotency key.
func keyed(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return (r.Body == nil || r.Body == http.NoBody) && (r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil)
}

// CloseIdleConnections closes the connections that are not in use.
func (t *Transport) CloseIdleConnections() { t.shared.CloseIdleConnections() }

// deadAfter is how long data sent to a replica may stay unacknowledged.
var deadAfter = timescale.Limit(5 * time.Second)

// noticeDeadPeers makes the kernel drop a connection within seconds when the other
// machine disappears without closing it. By default the kernel tries for a quarter of
// an hour.
func noticeDeadPeers(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds())),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1),
		)
	})
	return errors.Join(err, failed)
}
