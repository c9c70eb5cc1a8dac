package forward

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/timescale"
)

// maxKept is the size of the largest body that is kept to be sent again. Nearly all
// JSON bodies of the API are far smaller. A PUT carries a file, which may arrive
// slowly.
const maxKept = 256 << 10

// maxKeptAtOnce limits the size of all kept bodies, in bytes: they are read before
// their senders are authenticated.
const maxKeptAtOnce = 64 << 20

// keepTimeout is how long a client may take to send a body that is kept.
var keepTimeout = timescale.Limit(30 * time.Second)

// lingerTime is how long the rest of a body may take to arrive once the request is refused
// here: net/http sends no answer while it waits for the body.
var lingerTime = timescale.Limit(time.Second)

// body is a request's body that may be sent more than once.
type body struct {
	kept   []byte
	stream *stall.Body // the body, if it is not kept
	begun  atomic.Bool // part of the stream has been read

	control *http.ResponseController // of a stream over HTTP/1; other protocols do not wait for it
}

// keep reads a body and keeps it until release is called. If there is no room for
// it, it is not kept, and can be sent only once.
func (f *Forwarder) keep(w http.ResponseWriter, r *http.Request) (b *body, release func(), err error) {
	size, control := r.ContentLength, http.NewResponseController(w)
	streamed := &body{stream: stall.NewBody(w, r)}
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
	// Test servers without deadlines return an error, which does not matter.
	_ = control.SetReadDeadline(time.Now().Add(keepTimeout))
	kept, err := io.ReadAll(r.Body)
	if err == nil { // after an error net/http reads on before it sends the answer
		_ = control.SetReadDeadline(time.Time{})
	}
	return &body{kept: kept}, func() { f.kept.Add(-size) }, err
}

// reader returns the body from its beginning; for a stream, only while it is
// replayable.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.stream != nil:
		return &streamed{b}
	case len(b.kept) == 0:
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(b.kept))
}

// replayable reports whether reader still returns the whole body.
func (b *body) replayable() bool { return b.stream == nil || !b.begun.Load() }

// answered prepares the head of the leader's answer. From then on the leader says how long
// a stream may stand still.
func (b *body) answered(head http.Header) {
	if b.stream != nil {
		b.stream.Answering(head)
	}
}

// refused limits the wait for the rest of a stream.
func (b *body) refused() {
	if b.control != nil {
		_ = b.control.SetReadDeadline(time.Now().Add(lingerTime))
	}
}

// leave ends the reads of a stream, because the connection belongs to the next request
// from now on, and a transport may still read after its round trip.
func (b *body) leave() {
	if b.stream != nil {
		b.stream.Leave()
	}
}

// streamed is the stream. A transport that could not connect closes the body, which does
// nothing, and the next attempt still needs it.
type streamed struct{ *body }

func (s *streamed) Read(p []byte) (int, error) {
	s.begun.Store(true)
	return s.stream.Read(p)
}

func (*streamed) Close() error { return nil }
