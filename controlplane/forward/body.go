package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// maxKept is the largest body that is kept to be sent again: nearly every JSON
// body of the API is far smaller. A PUT carries a file, which may come slowly.
const maxKept = 256 << 10

// maxKeptAtOnce bounds what is kept of all bodies, in bytes: they are read before
// anybody knows who sent them.
const maxKeptAtOnce = 64 << 20

// keepTimeout bounds how long a client may take over a body that is kept.
var keepTimeout = timescale.Limit(30 * time.Second)

// lingerTime is how long the client may take over the next piece of a body when
// the request is answered: net/http sends no answer while the body is waited for.
var lingerTime = timescale.Limit(time.Second)

// body is a request's body that may have to be sent twice.
type body struct {
	kept   []byte
	stream io.ReadCloser // the body itself, when it is not kept
	begun  atomic.Bool   // some of the stream is gone

	control *http.ResponseController // of a stream over HTTP/1; others do not wait for it
	mu      sync.Mutex
	over    bool // all of the stream is gone, or the request is over
}

// keep reads a body that is to be kept, until release is called. Where there is
// no room it is not kept, and can be sent once.
func (f *Forwarder) keep(w http.ResponseWriter, r *http.Request) (b *body, release func(), err error) {
	size, control := r.ContentLength, http.NewResponseController(w)
	streamed := &body{stream: r.Body}
	if r.ProtoMajor == 1 {
		streamed.control = control
	}
	switch {
	case r.Body == nil, size == 0:
		return &body{}, func() {}, nil
	case r.Method == http.MethodPut, size < 0, size > maxKept:
		return streamed, func() {}, nil
	case f.kept.Add(size) > maxKeptAtOnce:
		f.kept.Add(-size)
		return streamed, func() {}, nil
	}
	// A server without deadlines has none to set, and none is needed in tests.
	_ = control.SetReadDeadline(time.Now().Add(keepTimeout))
	kept, err := io.ReadAll(r.Body)
	if err == nil { // else net/http reads on, before it sends what is answered
		_ = control.SetReadDeadline(time.Time{})
	}
	return &body{kept: kept}, func() { f.kept.Add(-size) }, err
}

// reader is the body from its beginning; of a stream, only while replayable.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.stream != nil:
		return &streamed{b}
	case len(b.kept) == 0:
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(b.kept))
}

// replayable reports whether reader still gives all of it.
func (b *body) replayable() bool { return b.stream == nil || !b.begun.Load() }

// answered bounds the wait for what is left of a stream.
func (b *body) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.control != nil && !b.over {
		_ = b.control.SetReadDeadline(time.Now().Add(lingerTime))
	}
}

// ended lifts that bound when the stream is at its end: the connection is read
// on, to see that the client is still there.
func (b *body) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.control != nil && !b.over {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	b.over = true
}

// leave lets the connection alone from now on, which is the next request's: a
// transport may still read when its round trip is over.
func (b *body) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// streamed is the stream behind a Close that does nothing: a transport that
// could not connect closes the body, and the next attempt still needs it. The
// server closes the real one.
type streamed struct{ *body }

func (s *streamed) Read(p []byte) (int, error) {
	s.begun.Store(true)
	n, err := s.stream.Read(p)
	if errors.Is(err, io.EOF) {
		s.ended()
	}
	return n, err
}

func (*streamed) Close() error { return nil }
