package pgsni

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Lengths of the relay's buffers. A direction that is idle or has short messages
// holds a small one, as long as the one that PostgreSQL sends from. One that fills
// it gets a large one from the pool, until a read comes up so short that another
// is not to be expected at once.
const (
	smallBuffer = 8 << 10
	largeBuffer = 64 << 10
	shortRead   = largeBuffer / 4
)

// loginBuffer holds what a server says at once during a login, in bytes.
const loginBuffer = 4 << 10

var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}
)

// relay carries a session. Its own goroutine is down, from the server to the
// client, and alone writes to the client; up is the other direction.
type relay struct {
	*conn
	backend Backend
	from    *bufio.Reader // the server; only until it is ready
	session Session

	fromClient, toClient atomic.Int64
	frames               framer       // of what went to the client
	asked                atomic.Int64 // when the client last spoke, in Unix nanoseconds
	loggedIn, ready      bool
	key                  CancelKey
	sqlstate             string // of the server's refusal
}

// newRelay is a relay to a server that attach has been called with.
func (c *conn) newRelay(b Backend, session Session) *relay {
	return &relay{conn: c, backend: b, from: bufio.NewReaderSize(c.server, loginBuffer), session: session}
}

// run relays until both sides are done. The client has been told its refusal.
func (r *relay) run() error {
	up := make(chan struct{})
	go func() {
		defer close(up)
		r.up()
	}()
	err := r.down()
	r.server.Close()
	var refusal *Refusal
	if errors.As(err, &refusal) {
		r.tell(refusal)
	}
	r.hangUp()
	_ = r.wire.SetReadDeadline(time.Now().Add(lingerTimeout)) // ends up, if the client does not
	<-up
	r.done(err)
	return nil
}

// done gives back what the session held, and tells the observer.
func (r *relay) done(err error) {
	r.router.keys.revoke(r.key.PID)
	if r.loggedIn {
		r.router.leaveSession()
	}
	if r.ready {
		r.router.cfg.Observe.closed(r.session, Traffic{FromClient: r.fromClient.Load(), ToClient: r.toClient.Load()})
		return
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		r.sqlstate = refusal.Code
	}
	r.router.refused(r.conn, r.sqlstate, err)
}

// up carries what the client says, and then its end. Once the server takes no
// more, what the client still says is thrown away.
func (r *relay) up() {
	written := func(n int) { r.fromClient.Add(int64(n)) }
	if _, writing := pump(r.server, stamped{r.conn, &r.asked}, written); writing != nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.conn, lingerBytes))
		return
	}
	// A client that is gone is to its server what it would be without a router:
	// the query that runs goes on, and the next read finds the end.
	if !closeWrite(r.server) {
		r.server.Close()
	}
}

// down carries what the server says: first the login, message by message, then
// everything.
func (r *relay) down() error {
	err := r.login()
	if err == nil && r.ready {
		err = r.downReady()
	}
	if isTimeout(err) {
		return r.timedOut()
	}
	return err
}

// downReady copies without looking further than where messages end.
func (r *relay) downReady() error {
	written := func(n int) { r.toClient.Add(int64(n)) }
	rest, _ := r.from.Peek(r.from.Buffered())
	r.frames.advance(rest)
	if len(rest) > 0 {
		if _, err := r.stream.Write(rest); err != nil {
			return err
		}
		written(len(rest))
	}
	r.from = nil
	reading, writing := pump(r.stream, framed{r.server, &r.frames}, written)
	return errors.Join(reading, writing)
}

// timedOut says how a session ends whose deadline is over: the drain's, which may
// put a last word where a message has ended, or the login's.
func (r *relay) timedOut() error {
	switch {
	case !r.isCutting():
		return refuse(codeQueryCanceled, messageAuthTimeout)
	case r.frames.atBoundary():
		return refuse(codeAdminShutdown, messageShutdown)
	}
	return errDraining
}

// stamped notes when something was read, in Unix nanoseconds.
type stamped struct {
	io.Reader
	at *atomic.Int64
}

func (s stamped) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.at.Store(time.Now().UnixNano())
	return n, err
}

// framed notes where the messages end that it reads.
type framed struct {
	io.Reader
	frames *framer
}

func (f framed) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.frames.advance(p[:n])
	return n, err
}

// pump copies until the reader ends or one of the two fails. The end is no error.
// io.Copy would hold a large buffer for each idle direction.
func pump(to io.Writer, from io.Reader, written func(int)) (reading, writing error) {
	small := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(small)
	var large *[]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	buffer := *small
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return nil, err
			}
			written(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return err, nil
		case large == nil && n == len(buffer):
			large = largeBuffers.Get().(*[]byte)
			buffer = *large
		case large != nil && n < shortRead:
			largeBuffers.Put(large)
			large, buffer = nil, *small
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
