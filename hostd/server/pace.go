package server

import (
	"net/http"
	"time"
)

// stallTime is how long a caller may take nothing of an answer. Replicas give
// their own clients half of it.
const stallTime = 2 * time.Minute

// pacedWriter is an answer that may last for hours, but whose caller is cut off
// when it reads nothing for a while.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

func newPacedWriter(w http.ResponseWriter, stall time.Duration) *pacedWriter {
	return &pacedWriter{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
}

// Unwrap lets http.ResponseController find what the writer itself can do.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *pacedWriter) Write(p []byte) (int, error) {
	w.allow()
	return w.ResponseWriter.Write(p)
}

// allow sets the deadline of what is written next; a connection that was upgraded
// has none, nor has a recorder in a test.
func (w *pacedWriter) allow() { _ = w.control.SetWriteDeadline(time.Now().Add(w.stall)) }

// done leaves the time that what is still buffered takes. The next request on the
// connection begins with it, and sets its own.
func (w *pacedWriter) done() { w.allow() }
