package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// sse writes server-sent events, each flushed at once. A caller that does not
// read makes the writer wait.
type sse struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	started bool
	err     error // of the first write that failed
}

func newSSE(w http.ResponseWriter) *sse { return &sse{w: w} }

// begin sends the head of the answer, so that the caller knows that it is heard.
func (s *sse) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		_ = s.write(": hello\n\n")
	}
}

func (s *sse) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// message sends one event. JSON has no line ends, so its data is one line.
func (s *sse) message(id, event string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	var b bytes.Buffer
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("event: " + event + "\ndata: ")
	b.Write(raw)
	b.WriteString("\n\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(b.String())
}

func (s *sse) write(text string) error {
	if s.err != nil {
		return s.err
	}
	if !s.started {
		s.started = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	if _, s.err = s.w.Write([]byte(text)); s.err == nil {
		s.err = http.NewResponseController(s.w).Flush()
	}
	return s.err
}

// keepAlive says every so often that the stream is still there, until stop is
// called.
func (s *sse) keepAlive() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(hostapi.HeartbeatInterval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				s.mu.Lock()
				if s.started {
					_ = s.write(": still here\n\n")
				}
				s.mu.Unlock()
			}
		}
	}()
	return func() { close(quit); <-ended }
}
