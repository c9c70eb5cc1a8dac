package httpapi

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/timescale"
)

// Limits of the git hosts' webhooks. GitHub sends up to 25 MB. Whoever sends one is known
// only when the whole of it is in memory, so the memory for the large ones is limited,
// and that of one sender. It is taken as they arrive: who sends slowly holds little.
const (
	maxHookBody   = 25 << 20
	freeHookBody  = 256 << 10
	maxHookMemory = 4 * maxHookBody
	maxSenderHook = 2 * maxHookBody
)

// hookTimeout is how long a webhook that is large may take to arrive. GitHub waits 10 s
// for the whole of a delivery.
var hookTimeout = timescale.Limit(10 * time.Second)

// hookMemory is the memory of the large webhooks that arrive, in bytes.
type hookMemory struct {
	mu  sync.Mutex
	all int64
	of  map[string]int64 // by sender; those that have any
}

func newHookMemory() *hookMemory { return &hookMemory{of: map[string]int64{}} }

// take reports whether a sender gets so many bytes more.
func (m *hookMemory) take(sender string, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all+n > maxHookMemory || m.of[sender]+n > maxSenderHook {
		return false
	}
	m.all += n
	m.of[sender] += n
	return true
}

func (m *hookMemory) give(sender string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all -= n
	if m.of[sender] -= n; m.of[sender] <= 0 {
		delete(m.of, sender)
	}
}

// readHook reads the body of a webhook. release gives back its memory.
func (a *API) readHook(c *gin.Context) (body []byte, release func(), err error) {
	r := c.Request
	if r.ContentLength > maxHookBody || 0 <= r.ContentLength && r.ContentLength <= freeHookBody {
		body, err = readBody(c, maxHookBody)
		return body, func() {}, err
	}
	setReadDeadline(c, time.Now().Add(hookTimeout))
	from, held := sender(r), int64(0)
	release = func() { a.hooks.give(from, held) }
	body = make([]byte, 0, freeHookBody)
	for {
		if len(body) == cap(body) {
			// The buffer doubles, up to the length of the body if that is known.
			more := min(int64(len(body)), maxHookBody+1-int64(len(body)))
			if r.ContentLength > 0 {
				more = min(more, r.ContentLength+1-int64(len(body)))
			}
			if !a.hooks.take(from, more) {
				return nil, release, &apierror.Error{Code: apierror.EUnavailable, Message: "too many webhooks at once", RetryAfter: 10 * time.Second}
			}
			held += more
			body = append(make([]byte, 0, int64(len(body))+more), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > maxHookBody:
			return nil, release, tooLarge(maxHookBody)
		case errors.Is(err, io.EOF):
			setReadDeadline(c, time.Time{})
			return body, release, nil
		case err != nil:
			return nil, release, bodyError(err, "invalid json")
		}
	}
}

// sender is the address that a request comes from, without what one sender may choose:
// of IPv6 its network. Of a request that another replica sent on, that replica says it.
func sender(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if peer.Forwarded(r.Context()) {
		said := strings.Split(r.Header.Get("X-Forwarded-For"), ",")
		host = strings.TrimSpace(said[len(said)-1])
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	if ip = ip.Unmap(); ip.Is6() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}
