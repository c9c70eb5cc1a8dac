// Package stall limits how long a client may read nothing of an answer that may
// itself take hours. It disconnects a client that stalls, which ends the work for
// it. It also lets the body of a request go on while its answer has begun.
package stall

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// Limit is how long a client may read nothing.
var Limit = timescale.Limit(time.Minute)

// Writer is a response whose writes fail if the client reads nothing for a while.
// Between writes it sets no deadline, because HTTP/2 would reset a stream that is
// only idle. It is safe for concurrent use, because a proxy flushes from a goroutine
// of its own.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration

	mu       sync.Mutex
	hijacked bool
}

// New limits how long a client of w may read nothing.
func New(w http.ResponseWriter, limit time.Duration) *Writer {
	return &Writer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
}

// Unwrap gives http.ResponseController access to the underlying writer.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.begin()
	defer w.end()
	return w.ResponseWriter.Write(p)
}

// WriteHeader implements http.ResponseWriter. A status below 200 is sent at once.
func (w *Writer) WriteHeader(status int) {
	w.begin()
	defer w.end()
	w.ResponseWriter.WriteHeader(status)
}

// FlushError is called by http.ResponseController.
func (w *Writer) FlushError() error {
	w.begin()
	defer w.end()
	return w.control.Flush()
}

// Complete flushes a complete response, which may consist of a head only. The
// deadline stays set for what the server itself sends afterwards.
func (w *Writer) Complete() {
	w.begin()
	defer w.mu.Unlock()
	if !w.hijacked {
		_ = w.control.Flush() // an error ends the connection
	}
}

func (w *Writer) begin() {
	w.mu.Lock()
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // a test's recorder has no deadlines
}

func (w *Writer) end() {
	_ = w.control.SetWriteDeadline(time.Time{})
	w.mu.Unlock()
}

// Hijack implements http.Hijacker, for requests that are upgraded.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, rw, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.hijacked = true
	conn := &Conn{Conn: raw, limit: w.limit}
	return conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(conn)), nil
}

// Conn is an upgraded connection.
type Conn struct {
	net.Conn
	limit time.Duration
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// CloseWrite ends the writing side; reading continues.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
