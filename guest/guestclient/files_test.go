package guestclient_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestclient"
)

// A listing is held whole, and no guest decides how much that is.
func TestAListingWithoutEndIsGivenUp(t *testing.T) {
	const enough = 16 << 20
	sent := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"path":"/etc/ssh","entries":[{}`))
		part, n := []byte(strings.Repeat(",{}", 10_000)), 0
		for n < enough {
			if _, err := w.Write(part); err != nil {
				break
			}
			n += len(part)
		}
		sent <- n
	}))
	defer server.Close()
	c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	if _, err := c.ReadDir(t.Context(), "/etc/ssh"); err == nil || !strings.Contains(err.Error(), "answer over 1048576 bytes") {
		t.Errorf("got %.200v", err)
	}
	if n := <-sent; n >= enough {
		t.Error("it was read to the end")
	}
}

func TestALargeHeadIsGivenUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 2 << 10 {
			w.Header().Add("X", "y") // 6 bytes each
		}
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	if _, err := c.Health(t.Context()); err == nil {
		t.Error("health is taken")
	}
	if _, err := c.Stat(t.Context(), "/"); err == nil {
		t.Error("a file's state is taken")
	}
}

// A connection that was switched to another protocol does not end with the context.
func TestAGuestThatSwitchesProtocolsIsGivenUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		_, _ = conn.Read(make([]byte, 1)) // until the client leaves
	}))
	defer server.Close()
	c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	if _, err := c.ReadDir(t.Context(), "/"); err == nil {
		t.Error("it is taken for a listing")
	}
}
