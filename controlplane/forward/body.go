package forward

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// maxKept is the largest body that is kept to be sent again: nearly every JSON
// body of the API is far smaller. A PUT carries a file, which may come slowly.
const maxKept = 256 << 10

// keepTimeout bounds how long a client may take over a body that is kept.
var keepTimeout = timescale.Limit(30 * time.Second)

// body is a request's body that may have to be sent twice.
type body struct {
	kept   []byte
	stream io.ReadCloser // the body itself, when it is not kept
	begun  atomic.Bool   // some of the stream is gone
}

func keep(w http.ResponseWriter, r *http.Request) (*body, error) {
	switch {
	case r.Body == nil:
		return &body{}, nil
	case r.Method == http.MethodPut, r.ContentLength < 0, r.ContentLength > maxKept:
		return &body{stream: r.Body}, nil
	}
	// A server without deadlines has none to set, and none is needed in tests.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(keepTimeout))
	kept, err := io.ReadAll(r.Body)
	_ = control.SetReadDeadline(time.Time{})
	return &body{kept: kept}, err
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

// streamed is the stream behind a Close that does nothing: a transport that
// could not connect closes the body, and the next attempt still needs it. The
// server closes the real one.
type streamed struct{ *body }

func (s *streamed) Read(p []byte) (int, error) {
	s.begun.Store(true)
	return s.stream.Read(p)
}

func (*streamed) Close() error { return nil }
