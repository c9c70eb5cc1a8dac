package stall

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// lingerTime is how long net/http may read what is left of a body after its answer, so
// that the client takes the answer before the connection is reset.
var lingerTime = timescale.Limit(time.Second)

// RestTime is how long the rest of a body may take to arrive when its request is answered
// without it.
var RestTime = timescale.Limit(30 * time.Second)

// Rest limits the wait for the rest of a body that nobody reads, before the answer is
// written: over HTTP/1 net/http reads it first, so that the connection can be kept.
func Rest(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		// A test's recorder has no deadlines; a server's connection always has.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(RestTime))
	}
}

// interruptEvery is the interval between two attempts to interrupt a read: whoever reads
// may just have set a deadline of its own.
const interruptEvery = 5 * time.Millisecond

// Body is the body of a request that a proxy passes on, also while the answer arrives.
//
// Before net/http sends the head of an answer over HTTP/1, it reads up to 256 KiB of the
// rest of the body and discards them, and whoever the body is passed on to misses them.
// After Answering it does not. Over HTTP/2 it leaves the body alone, as does Body.
//
// The http.Request that the server made must keep its Body, because net/http looks there
// how far it was read. Close does nothing: the server closes that one.
type Body struct {
	from    io.Reader
	control *http.ResponseController // nil: it is not HTTP/1, or there is no body

	reading sync.Mutex  // is held during a read
	ended   atomic.Bool // nothing is left to read
	begun   atomic.Bool // the answer has begun before the end
	left    atomic.Bool // the handler returns
}

// NewBody returns the body of a request that w answers. The handler calls Leave before it
// returns.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	b := &Body{from: r.Body}
	if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
		b.control = http.NewResponseController(w)
	}
	return b
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.left.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.from.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer.
func (*Body) Close() error { return nil }

// Answering is called before the head of the final answer is sent. If the body has not
// ended, its reads go on, and the connection closes after the answer: what comes then may
// be the rest of this body and not the next request, and net/http tells these apart only
// where it has read the rest before.
func (b *Body) Answering(head http.Header) {
	if b.control == nil || b.ended.Load() {
		return
	}
	_ = b.control.EnableFullDuplex() // a test's recorder has no connection
	b.begun.Store(true)
	head.Set("Connection", "close")
}

// Leave ends the reads of a body whose answer began before its end. A transport may still
// be in one; net/http would interrupt it, but would then wait for the rest without a
// limit.
func (b *Body) Leave() {
	if !b.begun.Load() {
		return
	}
	b.left.Store(true)
	for !b.reading.TryLock() {
		if b.control.SetReadDeadline(time.Unix(1, 0)) != nil {
			return // it has no connection any more
		}
		<-time.After(interruptEvery)
	}
	b.reading.Unlock()
	_ = b.control.SetReadDeadline(time.Now().Add(lingerTime))
}
