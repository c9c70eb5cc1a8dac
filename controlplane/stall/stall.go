// Package stall bounds how long a client may take nothing of an answer that may
// itself last for hours: one that stands still is cut off, and with it what is
// done for it.
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

// Limit is how long a client may take nothing.
var Limit = timescale.Limit(time.Minute)

// Writer is an answer whose writes end when the client takes nothing for a while.
// Between them there is no deadline: HTTP/2 would reset a stream that is only
// quiet. A proxy flushes from a goroutine of its own, so that it may be used by
// several at once.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration

	mu       sync.Mutex
	hijacked bool
}

// New returns w with a limit.
func New(w http.ResponseWriter, limit time.Duration) *Writer {
	return &Writer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
}

// Unwrap lets http.ResponseController find what the writer itself can do.
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

// FlushError is what http.ResponseController flushes with.
func (w *Writer) FlushError() error {
	w.begin()
	defer w.end()
	return w.control.Flush()
}

// Complete sends what is held of an answer to which nothing will be added, be it
// the head alone. The limit stays for what the server itself sends after it.
func (w *Writer) Complete() {
	w.begin()
	defer w.mu.Unlock()
	if !w.hijacked {
		_ = w.control.Flush() // an error ends the connection
	}
}

func (w *Writer) begin() {
	w.mu.Lock()
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // a recorder in a test has none
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

// CloseWrite says that nothing more will be written; reading goes on.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
