package stall

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// paced is a response writer that records its deadline.
type paced struct {
	*httptest.ResponseRecorder
	t        *testing.T
	deadline time.Time
	sent     int // writes and flushes
}

func (p *paced) SetWriteDeadline(at time.Time) error {
	p.deadline = at
	return nil
}

func (p *paced) bounded() {
	p.t.Helper()
	p.sent++
	if p.deadline.IsZero() {
		p.t.Error("something is sent without a deadline")
	}
}

func (p *paced) Write(b []byte) (int, error) { p.bounded(); return p.ResponseRecorder.Write(b) }

func (p *paced) WriteHeader(status int) { p.bounded(); p.ResponseRecorder.WriteHeader(status) }

func (p *paced) FlushError() error { p.bounded(); return nil }

func (p *paced) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a, _ := net.Pipe()
	return a, bufio.NewReadWriter(bufio.NewReader(a), bufio.NewWriter(a)), nil
}

func TestTheLimitIsOfWhatIsSentOnly(t *testing.T) {
	p := &paced{ResponseRecorder: httptest.NewRecorder(), t: t}
	w := New(p, time.Minute)
	for name, send := range map[string]func(){
		"hints": func() { w.WriteHeader(http.StatusEarlyHints) },
		"bytes": func() { _, _ = w.Write([]byte("x")) },
		"flush": func() { _ = http.NewResponseController(w).Flush() },
	} {
		before := p.sent
		send()
		if p.sent != before+1 {
			t.Errorf("%s: it was not sent", name)
		}
		if !p.deadline.IsZero() {
			t.Errorf("%s: a deadline is left for a stream that may be quiet", name)
		}
	}
	before := p.sent
	w.Complete()
	if p.sent != before+1 || p.deadline.IsZero() {
		t.Error("what the server sends at the end is not bounded")
	}
}

// An upgraded connection is no response any more.
func TestAConnectionThatWasHijackedIsLeftAlone(t *testing.T) {
	p := &paced{ResponseRecorder: httptest.NewRecorder(), t: t}
	w := New(p, time.Minute)
	conn, _, err := w.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if w.Complete(); p.sent != 0 {
		t.Error("it was written to")
	}
}
