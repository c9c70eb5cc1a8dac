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

// Headers by which a replica tells the leader about a request that it forwards.
// They count only on a connection with a replica's certificate; on any other,
// and on the public port, they are removed.
const (
	HeaderForwarded = "Berth-Forwarded" // id of the replica that forwards
	HeaderOperator  = "Berth-Operator"  // name on the operator certificate the client showed there
)

// PathStatus answers a replica with the RaftStatus of the one it asks.
const PathStatus = "/internal/v1/status"

const pathInternal = "/internal/"

// Internal reports whether a request is for an internal route. None of them
// is served on the public port, and none but a join is ever forwarded.
func Internal(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, pathInternal) }

// Routes are the handlers behind the port's HTTP side.
type Routes struct {
	Join      http.Handler                                              // needs no client certificate
	Heartbeat func(w http.ResponseWriter, r *http.Request, host string) // from the host of that id
	Events    func(w http.ResponseWriter, r *http.Request, host string) // from the host of that id
	Status    http.Handler                                              // from replicas
	Public    http.Handler                                              // forwarded by replicas, or an operator's own

	// Trusted reports whether who shows a certificate is a member still; nil:
	// everyone is. It is asked at each request.
	Trusted func(id pki.Identity) bool
}

// Handler checks who calls before it lets a request through.
func Handler(routes Routes) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, known := pki.PeerIdentity(r.TLS)
		m := marksOf(r, id)
		StripMarks(r)
		r = r.WithContext(context.WithValue(r.Context(), marksKey{}, m))
		switch {
		case known && routes.Trusted != nil && !routes.Trusted(id):
			w.Header().Set("Connection", "close")
			refuse(w, true)
		case r.URL.Path == hostapi.PathJoin:
			routes.Join.ServeHTTP(w, r)
		case r.URL.Path == hostapi.PathHeartbeat && id.Role == pki.RoleHost:
			routes.Heartbeat(w, r, id.Name)
		case r.URL.Path == hostapi.PathEvents && id.Role == pki.RoleHost:
			routes.Events(w, r, id.Name)
		case r.URL.Path == PathStatus && id.Role == pki.RoleReplica && !m.forwarded:
			routes.Status.ServeHTTP(w, r)
		case Internal(r):
			refuse(w, known)
		case m.forwarded, id.Role == pki.RoleOperator:
			routes.Public.ServeHTTP(w, r)
		default:
			refuse(w, known)
		}
	})
}

// marksOf believes a replica what it says of a request that it forwards, and
// everyone else only their certificate.
func marksOf(r *http.Request, id pki.Identity) marks {
	switch {
	case id.Role == pki.RoleReplica && r.Header.Get(HeaderForwarded) == id.Name:
		return marks{forwarded: true, operator: r.Header.Get(HeaderOperator)}
	case id.Role == pki.RoleOperator:
		return marks{operator: id.Name}
	}
	return marks{}
}

// refuse answers a caller that has no business here. A stranger's connection
// ends with it.
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

type marksKey struct{}

type marks struct {
	forwarded bool
	operator  string
}

// Forwarded says that another replica sent the request on; it is not sent on again.
func Forwarded(ctx context.Context) bool {
	m, _ := ctx.Value(marksKey{}).(marks)
	return m.forwarded
}

// Operator is the name on the operator certificate behind the request, or "".
func Operator(ctx context.Context) string {
	m, _ := ctx.Value(marksKey{}).(marks)
	return m.operator
}

// StripMarks removes the headers that only replicas may send.
func StripMarks(r *http.Request) {
	r.Header.Del(HeaderForwarded)
	r.Header.Del(HeaderOperator)
}

// NewTransport makes the HTTP client's side towards other replicas. HTTP/1.1
// only: WebSockets have to pass, and one slow body must not hold up the rest.
func NewTransport(node *pki.Node) *Transport {
	shared := &http.Transport{
		TLSClientConfig: node.ClientTLS(pki.AnyOf(pki.RoleReplica), "http/1.1"),
		// The kernel's own keep-alive settings, below, and not those of net.
		DialContext:         (&net.Dialer{Timeout: timescale.Limit(2 * time.Second), KeepAlive: -1, Control: noticeDeadPeers}).DialContext,
		TLSHandshakeTimeout: timescale.Limit(3 * time.Second),
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second,
	}
	own := shared.Clone()
	own.DisableKeepAlives = true
	return &Transport{shared: shared, own: own}
}

// Transport sends requests that are upgraded on connections of their own. On one
// that was used before, http.Transport sends a GET again when the connection
// ends over it, as it may a read; an upgrade starts something each time.
type Transport struct {
	shared, own *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return t.own.RoundTrip(r)
	}
	return t.shared.RoundTrip(r)
}

// CloseIdleConnections closes those that nobody uses.
func (t *Transport) CloseIdleConnections() { t.shared.CloseIdleConnections() }

// deadAfter is how long what was sent to a replica may stay unacknowledged.
var deadAfter = timescale.Limit(5 * time.Second)

// noticeDeadPeers ends connections to a machine that is gone without a word in
// seconds: the kernel by itself would try for a quarter of an hour.
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
