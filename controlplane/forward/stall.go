package forward

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/stall"
)

// patientWriter is the client's side of a forwarded answer.
type patientWriter struct{ *stall.Writer }

func patient(w http.ResponseWriter, limit time.Duration) patientWriter {
	return patientWriter{stall.New(w, limit)}
}

// Hijack implements http.Hijacker.
func (w patientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.Writer.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return endingConn{conn}, rw, nil
}

// endingConn is an upgraded connection. If one side of a WebSocket ends, the other
// has nothing more to say, so Read reports the end as an error: the proxy then
// closes both sides instead of waiting for the other half. For the same reason it
// has no CloseWrite.
type endingConn struct{ net.Conn }

var errEnded = errors.New("the client has closed the connection")

// Read implements io.Reader.
func (c endingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errEnded
	}
	return n, err
}
