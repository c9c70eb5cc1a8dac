package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// pingEvery is how often a quiet stream says that it is still there: proxies
// cut connections on which nothing passes.
const pingEvery = 15 * time.Second

// events is an answer of server-sent events. Each is flushed at once, and one
// that the client does not take in time ends the stream, so that a client that
// stalls holds up nobody but what it listens to.
type events struct {
	c    *gin.Context
	out  *http.ResponseController
	mu   sync.Mutex // of the connection: pings come from another goroutine
	err  error      // of the first write that failed
	stop chan struct{}
	done sync.WaitGroup
}

// beginEvents sends the header of a stream of events. The caller ends it.
func beginEvents(c *gin.Context) *events {
	e := &events{c: c, out: http.NewResponseController(c.Writer), stop: make(chan struct{})}
	c.Header("Content-Type", "text/event-stream; charset=utf-8")
	c.Header("X-Accel-Buffering", "no") // nginx would collect events before it passes them on
	c.Status(http.StatusOK)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deadline()
	c.Writer.WriteHeaderNow()
	e.err = e.out.Flush()
	e.done.Go(e.ping)
	return e
}

// end stops the pings. Nothing is sent any more.
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
			if e.mu.TryLock() { // else an event is on its way
				_ = e.writeLocked([]byte(": ping\n\n")) // what sends the next event finds out
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
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(data); err != nil {
		panic(err) // one of our own types cannot be written
	}
	b.WriteByte('\n') // after the encoder's own
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
