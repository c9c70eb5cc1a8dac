package forward

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// patientWriter is the client's side of a forwarded answer, which may last for
// hours but not stand still: a client that takes nothing for a while is cut
// off, and with it what the leader does for it.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

func patient(w http.ResponseWriter, stall time.Duration) *patientWriter {
	return &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
}

// Unwrap lets http.ResponseController find what the writer itself can do.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall)) // a recorder in a test has none
	return w.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker, for requests that are upgraded.
func (w *patientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	p := &patientConn{Conn: conn, stall: w.stall}
	return p, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(p)), nil
}

// patientConn is an upgraded connection. When one side of a WebSocket has ended
// the other has nothing more to say, so the end of either is an error: the
// proxy then closes both at once instead of waiting for the other half. For the
// same reason it has no CloseWrite.
type patientConn struct {
	net.Conn
	stall time.Duration
}

var errEnded = errors.New("the client has closed the connection")

// Read implements io.Reader.
func (c *patientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errEnded
	}
	return n, err
}

// Write implements io.Writer.
func (c *patientConn) Write(p []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
