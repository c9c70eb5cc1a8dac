package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestOneConnectionTooManyIsClosed(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := newListener(inner, 2)
	accepted := make(chan net.Conn, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	t.Cleanup(func() { inner.Close(); <-ended })
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the third read %d, %v", n, err)
	}
	must(t, first.Close())
	_ = first.Close() // gives back one place, and not two
	dial()
	third := <-accepted
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one too many read %d, %v", n, err)
	}
	must(t, second.Close())
	must(t, third.Close())
}

// watchedGuests tells when the answer of a guest is given up.
type watchedGuests struct {
	Guests
	closed chan struct{}
}

type watchedBody struct {
	io.ReadCloser
	closed chan struct{}
}

func (g *watchedGuests) Relay(ctx context.Context, id string, r guestio.GuestRequest) (*http.Response, error) {
	resp, err := g.Guests.Relay(ctx, id, r)
	if err == nil {
		resp.Body = watchedBody{resp.Body, g.closed}
	}
	return resp, err
}

func (b watchedBody) Close() error {
	close(b.closed)
	return b.ReadCloser.Close()
}

// A caller that takes nothing of an answer keeps neither the request nor the use
// of the slot for ever.
func TestACallerWhoTakesNothingIsCutOff(t *testing.T) {
	watched := &watchedGuests{closed: make(chan struct{})}
	l := goLive(t, func(c *Config) {
		watched.Guests, c.Guests = c.Guests, watched
		c.Stall = 200 * time.Millisecond
	})
	path := filepath.Join(t.TempDir(), "large")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, 1<<30))
	resp, err := l.FS(t.Context(), http.MethodGet, id, hostapi.FSFile, at(path), nil, nil)
	must(t, err)
	defer resp.Body.Close()
	<-watched.closed
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("all of it came, %d bytes", n)
	}
}
