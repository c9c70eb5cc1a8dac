package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Limits of request bodies. The content of most creates is stored in the replicated log,
// which must stay small. That of a sandbox has 1 MiB of environment, of which JSON may
// need six bytes for one; an exec may contain the command's input.
const (
	maxJSONBody   = 1 << 20
	maxCreateBody = 8 << 20
	maxExecBody   = 8 << 20
)

const (
	// bodyTimeout is how long a JSON body may take to arrive.
	bodyTimeout = 30 * time.Second
	// stallTimeout is how long a stream may make no progress, in either direction.
	stallTimeout = time.Minute
	// answerTimeout is how long a client may take to read an answer.
	answerTimeout = 5 * time.Minute
	// maxDrain is how much of a refused body is read and discarded, so that a client
	// that reads only after it has sent everything sees the refusal and not a reset.
	maxDrain = 32 << 20
)

// Input that may be in memory for long, while a command runs or does not read, or a
// sandbox starts, counts against a budget if it is larger than freeInput bytes. inputCopies is the
// number of its copies in memory: as received, as decoded, and as sent to the host.
const (
	freeInput   = 64 << 10
	inputCopies = 3
)

// admitBody waits for memory for a body with input before any of it is read. It
// leaves a body that exceeds limit to readBody.
func (a *API) admitBody(c *gin.Context, limit int64) (release func(), err error) {
	n := c.Request.ContentLength
	if n < 0 {
		n = limit
	}
	if n <= freeInput || n > limit {
		return func() {}, nil
	}
	release, err = a.cfg.Inputs.AdmitInput(c.Request.Context(), callerOf(c), inputCopies*n)
	setReadDeadline(c, time.Now().Add(bodyTimeout))
	if err != nil && c.Request.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, c.Request.Body, maxDrain)
	}
	return release, err
}

// awaitBody limits how long a body may take to arrive, even if no handler reads it,
// because over HTTP/1 net/http reads the rest of a body before it sends the answer.
// readBody removes the limit once it has read the whole body. HTTP/2 does not wait for
// the rest, and there a deadline that passes while nobody reads ends the body for good.
func awaitBody(c *gin.Context) {
	if c.Request.ProtoMajor == 1 && c.Request.ContentLength != 0 {
		setReadDeadline(c, time.Now().Add(bodyTimeout))
	}
}

// setReadDeadline sets the deadline of the connection, and over HTTP/2 of the stream. A
// test's recorder has none; a server's connection always has.
func setReadDeadline(c *gin.Context, at time.Time) {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(at)
}

// readBody reads the whole body, which may have limit bytes.
func readBody(c *gin.Context, limit int64) ([]byte, error) {
	r := c.Request
	if r.ContentLength != 0 {
		setReadDeadline(c, time.Now().Add(bodyTimeout))
	}
	var body []byte
	if r.ContentLength <= limit {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, limit+1)); err != nil {
			return nil, bodyError(err, "invalid json")
		}
	}
	if r.ContentLength > limit || int64(len(body)) > limit {
		// A client that waits for "100 Continue" has sent nothing yet.
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, r.Body, maxDrain)
		}
		return nil, tooLarge(limit)
	}
	setReadDeadline(c, time.Time{}) // the exec may now run for an hour
	return body, nil
}

func tooLarge(limit int64) error {
	return &apierror.Error{Code: apierror.ETooLarge, Message: "request body too large", Detail: fmt.Sprintf("at most %d bytes", limit)}
}

// bodyError is the error for a body that ended early or stalled.
func bodyError(err error, message string) error {
	var timeout net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || (errors.As(err, &timeout) && timeout.Timeout()) {
		return &apierror.Error{Code: codeTimeout, Message: "request timeout", Detail: "the body did not arrive in time", Err: err}
	}
	return &apierror.Error{Code: apierror.EInvalid, Message: message, Detail: "the body ended early", Err: err}
}

// pauseBody lifts the limit of a body that nobody reads for now. Over HTTP/1 it stays, for
// the rest that net/http reads by itself.
func pauseBody(c *gin.Context) {
	if c.Request.ProtoMajor != 1 {
		setReadDeadline(c, time.Time{})
	}
}

// stream is a body that may be long. Its size and the duration of a stall are
// limited, but not its total duration.
type stream struct {
	from  io.Reader
	limit int64
	read  atomic.Int64
	begun atomic.Bool

	// A transport may still read after its round trip, even after the handler has
	// returned, when the context belongs to another request.
	mu  sync.Mutex
	c   *gin.Context // nil once the handler has returned
	why error
}

// newStream returns the body of a request. The handler calls leave before it returns.
func newStream(c *gin.Context, limit int64) *stream {
	return &stream{c: c, from: c.Request.Body, limit: limit}
}

// leave takes the request from the stream.
func (s *stream) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c = nil
}

// failure returns the error of the body, if it failed.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

func (s *stream) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = err
	return err
}

// await limits how long the next piece may take to arrive.
func (s *stream) await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		setReadDeadline(s.c, time.Now().Add(stallTimeout))
	}
}

// arrived lifts the limit of a piece, or of the whole body.
func (s *stream) arrived(whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.c == nil:
	case whole:
		setReadDeadline(s.c, time.Time{})
	default:
		pauseBody(s.c)
	}
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	s.begun.Store(true)
	if s.read.Load() > s.limit {
		return 0, s.fail(tooLarge(s.limit))
	}
	s.await()
	n, err := s.from.Read(p)
	ended := errors.Is(err, io.EOF)
	s.arrived(ended)
	total := s.read.Add(int64(n))
	switch {
	case total > s.limit: // also where this was the last of it
		return 0, s.fail(tooLarge(s.limit))
	case err != nil && !ended:
		err = s.fail(bodyError(err, "incomplete body"))
	}
	return n, err
}
