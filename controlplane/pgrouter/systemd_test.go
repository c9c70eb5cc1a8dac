package pgrouter

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/pgedge"
)

// What counts is that the port's owner answers: that the kernel takes the connection is
// not enough.
func TestProgressIsAnAnswerAtThePort(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(net.Conn)
		good   bool
	}{
		"yes to TLS":        {func(c net.Conn) { _, _ = c.Write([]byte("S")) }, true},
		"an error":          {func(c net.Conn) { _, _ = c.Write([]byte("E\x00\x00\x00\x05\x00")) }, true},
		"closed for others": {func(c net.Conn) { c.Close() }, true},
		"nothing":           {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &parts{Server: &Server{port: l}}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := p.progress(ctx); err != nil {
				t.Errorf("while it waits for a replica: %v", err)
			}
			p.router.Store(&pgedge.Router{})
			if c.answer != nil {
				var long context.CancelFunc
				ctx, long = context.WithTimeout(t.Context(), 20*time.Second)
				defer long()
				done := make(chan struct{})
				go func() {
					defer close(done)
					conn, err := l.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = conn.Read(make([]byte, len(sslRequest)))
					c.answer(conn)
				}()
				defer func() { <-done }()
			}
			if err := p.progress(ctx); (err == nil) != c.good {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestDialable(t *testing.T) {
	for listen, want := range map[string]string{"127.0.0.1:5432": "127.0.0.1:5432", "0.0.0.0:5432": "127.0.0.1:5432", "[::]:5432": "[::1]:5432"} {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listen))
		if got := (&parts{Server: &Server{port: listensAt{addr: at}}}).dialable(); got != want {
			t.Errorf("%s: %s", listen, got)
		}
	}
}

// listensAt is a listener with an address that this machine need not have.
type listensAt struct {
	net.Listener
	addr net.Addr
}

func (l listensAt) Addr() net.Addr { return l.addr }
