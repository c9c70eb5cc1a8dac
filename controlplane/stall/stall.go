// Package stall bounds how long a client may take nothing of an answer that may
// itself last for hours: one that stands still is cut off, and with it what is
// done for it.
package stall

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// Limit is how long a client may take nothing.
var Limit = timescale.Limit(time.Minute)

// Writer is an answer whose writes end when the client takes nothing for a while.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

// New returns w with a limit.
func New(w http.ResponseWriter, limit time.Duration) *Writer {
	return &Writer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
}

// Unwrap lets http.ResponseController find what the writer itself can do.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // a recorder in a test has none
	return w.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker, for requests that are upgraded.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	raw, rw, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
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
