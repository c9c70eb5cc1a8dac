package pgsni

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// refusalTimeout bounds how long a client may take to receive a refusal.
	refusalTimeout = 5 * time.Second
	// lingerTimeout and lingerBytes bound what a client may still send after the
	// last word to it. Closing with its bytes unread would reset the connection,
	// and the word could be lost.
	lingerTimeout = 2 * time.Second
	lingerBytes   = 1 << 20
	// maxEarly is how much of what a client says before its time is read, in bytes.
	maxEarly = 4 << 10
	// cutTimeout is how long a client has to take what was sent to it before its
	// session is cut.
	cutTimeout = time.Second
)

// past is a deadline that ends what is under way.
var past = time.Unix(1, 0)

// wire is a client's connection below TLS. It gives back what was read to find
// out that TLS begins, and notes which certificate TLS showed.
type wire struct {
	net.Conn
	head []byte
	leaf *tls.Certificate
}

func (w *wire) Read(p []byte) (int, error) {
	if len(w.head) > 0 {
		n := copy(p, w.head)
		w.head = w.head[n:]
		return n, nil
	}
	return w.Conn.Read(p)
}

// conn is one client.
type conn struct {
	router  *Router
	wire    *wire
	stream  net.Conn // the wire, then TLS on it
	early   []byte   // read from stream before its time, see watch
	addr    netip.AddrPort
	visitor *visitor
	began   time.Time // when the StartupMessage was there
	name    string    // the database it is for, once that is known
	traced  traced    // from then on, until it is logged in or refused

	mu      sync.Mutex
	cutting bool
	server  net.Conn // once the session has one
}

func newConn(r *Router, raw net.Conn) *conn {
	w := &wire{Conn: raw}
	c := &conn{router: r, wire: w, stream: w}
	if a, ok := raw.RemoteAddr().(interface{ AddrPort() netip.AddrPort }); ok {
		c.addr = a.AddrPort()
	}
	return c
}

// Read reads from the client, first what watch has read already.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.stream.Read(p)
}

// encrypted says whether TLS is up.
func (c *conn) encrypted() bool { return c.stream != net.Conn(c.wire) }

// attach makes server the other side. From then on cut is polite.
func (c *conn) attach(server net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutting {
		return false
	}
	c.server = server
	return true
}

// detach is for a client that waits for another server, in which a cut may end it at
// once. It is false after a cut.
func (c *conn) detach() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = nil
	return !c.cutting
}

// cut ends the connection from another goroutine: before there is a server at
// once, then by waking the relay, which knows whether a last word fits.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutting = true
	if c.server == nil {
		c.wire.Close()
		return
	}
	_ = c.server.SetDeadline(past)
	_ = c.wire.SetWriteDeadline(time.Now().Add(cutTimeout))
}

// limit sets how long server may take to say something, and client to take it;
// the zero time is for ever. It does not revoke a cut.
func (c *conn) limit(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutting {
		return
	}
	_ = c.server.SetReadDeadline(until)
	_ = c.wire.SetWriteDeadline(until)
}

func (c *conn) isCutting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cutting
}

// watch notices that the client goes away while it has nothing to say, and calls
// gone. A client may speak all the same; the first of it is kept. stop ends the
// watch and returns when it is over.
func (c *conn) watch(gone func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for len(c.early) < maxEarly {
			n, err := c.stream.Read(b)
			c.early = append(c.early, b[:n]...)
			if err != nil {
				if !isTimeout(err) {
					gone()
				}
				return
			}
		}
	}()
	return func() {
		_ = c.wire.SetReadDeadline(past)
		<-done
		_ = c.wire.SetReadDeadline(time.Time{})
	}
}

// tell sends the client its refusal.
func (c *conn) tell(r *Refusal) {
	message, err := r.response().Encode(nil)
	if err != nil {
		return
	}
	_ = c.wire.SetWriteDeadline(time.Now().Add(refusalTimeout))
	_, _ = c.stream.Write(message) // a client that is gone needs no word
}

// hangUp says that nothing more comes.
func (c *conn) hangUp() {
	if t, ok := c.stream.(*tls.Conn); ok {
		_ = t.CloseWrite()
	}
	closeWrite(c.wire.Conn)
}

// linger gives the client time to read the last word.
func (c *conn) linger() {
	_ = c.wire.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.CopyN(io.Discard, c.stream, lingerBytes)
}

// closeWrite closes the sending half, and says whether there is such a thing.
func closeWrite(c net.Conn) bool {
	half, ok := c.(interface{ CloseWrite() error })
	if ok {
		_ = half.CloseWrite()
	}
	return ok
}
