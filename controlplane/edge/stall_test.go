package edge

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// pipes are unbuffered connections: a write waits until it is read.
type pipes struct {
	conns chan net.Conn
	quit  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.quit:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.quit) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// pipe sends a request whose response only the test reads. closed is closed when the
// edge gives the connection up.
func (r *rig) pipe(t *testing.T, request string) (conn net.Conn, closed <-chan struct{}) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), quit: make(chan struct{})}
	gone := make(chan struct{})
	front := httptest.NewUnstartedServer(r.edge)
	front.Listener.Close()
	front.Listener = p
	front.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(gone)
		}
	}
	front.Start()
	t.Cleanup(front.Close)
	conn, server := net.Pipe()
	t.Cleanup(func() { conn.Close() })
	p.conns <- server
	if _, err := io.WriteString(conn, request+" / HTTP/1.1\r\nHost: "+hostOf(8000)+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn, gone
}

// No part of a response waits for ever for a client that does not read.
func TestAHeadThatNobodyTakesIsGivenUp(t *testing.T) {
	for _, c := range []struct{ name, method, answer string }{
		{"no body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"no body, to a POST", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"to a HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"},
		{"a short body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"a body to come", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"},
		{"a body of any length to come", "GET", "HTTP/1.1 200 OK\r\n\r\n"},
		{"events to come", "GET", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 20\r\n\r\n"},
		{"early hints", "GET", "HTTP/1.1 103 Early Hints\r\n\r\n"},
		{"early hints, to a POST", "POST", "HTTP/1.1 103 Early Hints\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.Stall = 50 * time.Millisecond })
			r.raw(t, "8000", func(_ *http.Request, _ int, conn net.Conn) bool {
				_, err := io.WriteString(conn, c.answer)
				return err == nil
			})
			_, closed := r.pipe(t, c.method)
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Fatal("it waits still")
			}
		})
	}
}

// A request counts as open until its whole response has been read.
func TestAHeadThatNobodyTakesCounts(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(_ *http.Request, _ int, conn net.Conn) bool {
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return err == nil
	})
	conn, _ := r.pipe(t, "GET")
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.edge.mu.Lock()
	defer r.edge.mu.Unlock()
	if n := r.edge.count[box]; n != 1 {
		t.Errorf("%d requests count", n)
	}
}
