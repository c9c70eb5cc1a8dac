package guestclient_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// A guest that takes an identity while the host asks again cuts the connection
// that asks; or it closes one whose request was too long in coming.
func TestConnectionThatTheIdentityCuts(t *testing.T) {
	for name, test := range map[string]struct {
		cuts   int32 // connections that end without an answer
		closed bool  // not reset
		want   int32 // connections made
		fails  bool
	}{
		"once":           {cuts: 1, want: 2},
		"thrice":         {cuts: 3, want: 4},
		"always":         {cuts: 99, want: 8, fails: true},
		"closed, thrice": {cuts: 3, closed: true, want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			var made atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if made.Add(1) > test.cuts {
					_, _ = w.Write([]byte(`{"generation":99}`))
					return
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				if !test.closed {
					_ = conn.(*net.TCPConn).SetLinger(0)
				}
				conn.Close()
			}))
			defer server.Close()
			c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
			})
			done, err := c.Identity(t.Context(), guestapi.Identity{Generation: 5})
			if made.Load() != test.want {
				t.Errorf("%d connections, want %d", made.Load(), test.want)
			}
			if test.fails != errors.Is(err, syscall.ECONNRESET) || !test.fails && (err != nil || done.Generation != 99) {
				t.Errorf("got %+v, %v", done, err)
			}
		})
	}
}
