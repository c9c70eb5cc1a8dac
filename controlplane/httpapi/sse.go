package httpapi

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/core"
)

// pingEvery is the interval of pings on a quiet stream: proxies close idle
// connections.
const pingEvery = 15 * time.Second

// events is an answer of server-sent events. Each event is flushed at once. If the
// client does not read one in time, the stream ends, so that a stalled client delays
// only its own source.
type events struct {
	c    *gin.Context
	out  *http.ResponseController
	mu   sync.Mutex // guards the connection: pings come from another goroutine
	err  error      // of the first failed write
	stop chan struct{}
	done sync.WaitGroup
}

// beginEvents sends the header of a stream of events. The caller calls end.
func beginEvents(c *gin.Context) *events {
	e := &events{c: c, out: http.NewResponseController(c.Writer), stop: make(chan struct{})}
	c.Header("Content-Type", "text/event-stream; charset=utf-8")
	c.Header("X-Accel-Buffering", "no") // otherwise nginx buffers events
	c.Status(http.StatusOK)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deadline()
	c.Writer.WriteHeaderNow()
	e.err = e.out.Flush()
	e.done.Go(e.ping)
	return e
}

// end stops the pings. Nothing may be sent after it.
func (e *events) end() {
	close(e.stop)
	e.done.Wait()
}

func (e *events) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
			if e.mu.TryLock() { // otherwise an event is being sent
				_ = e.writeLocked([]byte(": ping\n\n")) // the next event returns the error
				e.mu.Unlock()
			}
		}
	}
}

// send sends one event. The id may be empty.
func (e *events) send(name, id string, data any) error {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("data: ")
	b.Write(core.Marshal(data))
	b.WriteByte('\n') // after marshal's own
	return e.write(b.Bytes())
}

func (e *events) write(p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writeLocked(p)
}

func (e *events) writeLocked(p []byte) error {
	if e.err != nil {
		return e.err
	}
	e.deadline()
	if _, e.err = e.c.Writer.Write(p); e.err == nil {
		e.err = e.out.Flush()
	}
	return e.err
}

func (e *events) deadline() { _ = e.out.SetWriteDeadline(time.Now().Add(stallTimeout)) }
