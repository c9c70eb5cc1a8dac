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

// Limits of request bodies. What a create carries ends in the replicated log,
// which is kept small; an exec may carry the command's input.
const (
	maxJSONBody    = 1 << 20
	maxExecBody    = 8 << 20
	maxRestoreBody = 1 << 30
)

const (
	// bodyTimeout is how long a JSON body may take to arrive.
	bodyTimeout = 30 * time.Second
	// stallTimeout is how long a stream may stand still, in either direction.
	stallTimeout = time.Minute
	// answerTimeout is how long a client may take to read an answer.
	answerTimeout = 5 * time.Minute
	// maxDrain is how much of a refused body is read and dropped: a client that
	// sends first and reads afterwards then sees the refusal, not a reset.
	maxDrain = 32 << 20
)

// Input that may be held for long, while a command runs or does not read, counts
// against a budget where it is larger than freeInput, in bytes. inputCopies is how
// often it is in memory at most: as it came, as what was read of it, and as what
// the host is sent.
const (
	freeInput   = 64 << 10
	inputCopies = 3
)

// admitBody waits for room for a body with input before any of it is read. A
// larger one than limit is left to readBody.
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

// awaitBody bounds how long a body may take to arrive, also one that no handler
// reads: net/http reads what is left of it before it sends the answer. Whoever
// reads the body whole lifts the bound.
func awaitBody(c *gin.Context) {
	if c.Request.ContentLength != 0 {
		setReadDeadline(c, time.Now().Add(bodyTimeout))
	}
}

// setReadDeadline acts on the connection. A recorder in a test has none; a
// server always has.
func setReadDeadline(c *gin.Context, at time.Time) {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(at)
}

// readBody reads the whole body, of at most limit bytes.
func readBody(c *gin.Context, limit int64) ([]byte, error) {
	r := c.Request
	var body []byte
	if r.ContentLength <= limit {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, limit+1)); err != nil {
			return nil, bodyError(err, "invalid json")
		}
	}
	if r.ContentLength > limit || int64(len(body)) > limit {
		// A client that awaits "100 Continue" has sent nothing yet.
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, r.Body, maxDrain)
		}
		return nil, &apierror.Error{
			Code:    apierror.ETooLarge,
			Message: "request body too large",
			Detail:  fmt.Sprintf("at most %d bytes", limit),
		}
	}
	setReadDeadline(c, time.Time{}) // an exec may now run for an hour
	return body, nil
}

// bodyError is what a body that ended early or stalled is answered with.
func bodyError(err error, message string) error {
	var timeout net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || (errors.As(err, &timeout) && timeout.Timeout()) {
		return &apierror.Error{Code: codeTimeout, Message: "request timeout", Detail: "the body did not arrive in time", Err: err}
	}
	return &apierror.Error{Code: apierror.EInvalid, Message: message, Detail: "the body ended early", Err: err}
}

// stream is a body that may be long: it is bounded in bytes and in how long it
// may stand still, not in how long it takes.
type stream struct {
	c     *gin.Context
	limit int64
	read  atomic.Int64
	begun atomic.Bool

	// A transport may still read when its round trip is over already.
	mu  sync.Mutex
	why error
}

// failure is why the body broke off, if it has.
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

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	s.begun.Store(true)
	if s.read.Load() > s.limit {
		return 0, s.fail(&apierror.Error{
			Code: apierror.ETooLarge, Message: "request body too large", Detail: fmt.Sprintf("at most %d bytes", s.limit),
		})
	}
	setReadDeadline(s.c, time.Now().Add(stallTimeout))
	n, err := s.c.Request.Body.Read(p)
	s.read.Add(int64(n))
	switch {
	case errors.Is(err, io.EOF):
		setReadDeadline(s.c, time.Time{})
	case err != nil:
		err = s.fail(bodyError(err, "incomplete body"))
	}
	return n, err
}
