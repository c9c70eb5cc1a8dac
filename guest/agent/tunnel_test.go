package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// serveOn has serve answer the connections to an address of loopback until the test ends.
func serveOn(t *testing.T, addr string, serve func(*net.TCPConn)) int {
	t.Helper()
	lis, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.TCPConn))
			conn.Close()
		}
	}()
	t.Cleanup(func() { lis.Close(); <-ended })
	return lis.Addr().(*net.TCPAddr).Port
}

// connect connects to a port of the agent's loopback. The end of the test waits for the
// end of all tunnels.
func (w *world) connect(t *testing.T, port int) *guestclient.Tunnel {
	t.Helper()
	conn, err := w.client.Connect(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); w.noTunnels(t) })
	return conn
}

func (w *world) noTunnels(t *testing.T) {
	t.Helper()
	await(t, "the end of all tunnels", func() bool {
		w.server.tunnels.mu.Lock()
		defer w.server.tunnels.mu.Unlock()
		return len(w.server.tunnels.open) == 0
	})
}

func noise(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(out)
	return out
}

func TestServersOnLoopbackAreReached(t *testing.T) {
	w := start(t)
	sent := noise(4 << 20)
	for _, addr := range guestapi.Loopback {
		t.Run(addr, func(t *testing.T) {
			port := serveOn(t, addr, func(c *net.TCPConn) {
				raw, _ := io.ReadAll(c) // ends with the host's half
				_, _ = c.Write(raw)
			})
			conn := w.connect(t, port)
			if _, err := conn.Write(sent); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	t.Run("the server says its all first", func(t *testing.T) {
		heard := make(chan int64, 1)
		conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
			n, _ := io.Copy(io.Discard, c)
			heard <- n
		}))
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		if _, err := conn.Write(sent[:1000]); err != nil {
			t.Error(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Error(err)
		}
		if n := <-heard; n != 1000 {
			t.Errorf("the server heard %d bytes, want 1000", n)
		}
	})
	t.Run("a server that takes no more has said why", func(t *testing.T) {
		why := sent[:512<<10] // the host's buffers do not hold it, those of the agent do
		ended := make(chan struct{})
		conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
			defer close(ended)
			_, _ = io.ReadFull(c, make([]byte, 1))
			_, _ = c.Write(why)
			// The kernel forgets what it has not sent yet when more comes after the close.
			await(t, "the agent to have it", func() bool { return unsent(t, c) == 0 })
			_ = c.Close()
		}))
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		<-ended
		if _, err := conn.Write(sent); err != nil {
			t.Errorf("what nobody takes is not dropped: %v", err)
		}
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, why) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
	})
}

// unsent is how many bytes the other end of a connection has not acknowledged.
func unsent(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return 0
	}
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Error(err)
	}
	return n
}

// An end that is not in order is none for the other side.
func TestAResetPassesATunnel(t *testing.T) {
	w := start(t)
	t.Run("of the server", func(t *testing.T) {
		conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.SetLinger(0)
		}))
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read = %v, want a reset", err)
		}
	})
	t.Run("of the host, while the server reads nothing", func(t *testing.T) {
		accepted, ended := make(chan struct{}), make(chan error, 1)
		read := make(chan struct{})
		conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
			close(accepted)
			<-read
			_, err := io.Copy(io.Discard, c)
			ended <- err
		}))
		<-accepted
		// Until no buffer on the way takes more.
		_ = conn.SetWriteDeadline(time.Now().Add(time.Minute))
		full := make(chan struct{})
		go func() {
			defer close(full)
			for buf := make([]byte, 1<<20); ; {
				_ = conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		}()
		<-full
		conn.Reset()
		w.noTunnels(t)
		close(read)
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server read %v, want a reset", err)
		}
	})
	t.Run("of the host, which has ended its half, while the server says nothing", func(t *testing.T) {
		heard, free := make(chan struct{}), make(chan struct{})
		conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, c)
			close(heard)
			<-free
		}))
		defer close(free)
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		<-heard
		conn.Reset()
		w.noTunnels(t)
	})
}

func TestConnectsThatAreRefused(t *testing.T) {
	w := start(t)
	own := w.server.Addr().(*net.TCPAddr).Port
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := lis.Addr().(*net.TCPAddr).Port
	lis.Close()
	for name, c := range map[string]struct{ port, status int }{
		"nothing listens": {closed, 502}, "the agent's own": {own, 502}, "0": {0, 400}, "none": {-1, 400}, "too large": {65536, 400},
	} {
		var refusal *guestclient.Error
		if _, err := w.client.Connect(t.Context(), c.port); !errors.As(err, &refusal) || refusal.Status != c.status {
			t.Errorf("%s: %v, want %d", name, err, c.status)
		}
	}
	resp, err := http.Post("http://"+w.addr+guestapi.PathConnect+"?port=80", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("without an upgrade: %s", resp.Status)
	}
	w.noTunnels(t)
}

func TestTunnelsAreBounded(t *testing.T) {
	w := start(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close() // which resets those that nobody accepted
	port := lis.Addr().(*net.TCPAddr).Port
	for range maxTunnels {
		w.connect(t, port)
	}
	var refusal *guestclient.Error
	if _, err := w.client.Connect(t.Context(), port); !errors.As(err, &refusal) || refusal.Body.Code != guestapi.CodeLimit {
		t.Errorf("one more: %v, want %s", err, guestapi.CodeLimit)
	}
	if _, err := w.client.Health(t.Context()); err != nil {
		t.Errorf("other requests: %v", err)
	}
}

// The host's ends are of the guest that a restored one was captured from. After a pause
// they are its own.
func TestANewIdentityEndsTunnels(t *testing.T) {
	w := start(t)
	ended := make(chan error, 1)
	conn := w.connect(t, serveOn(t, "127.0.0.1", func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		ended <- err
	}))
	echoes := func() error {
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
	resumed := testIdentity(1)
	resumed.Resumed = true
	for _, id := range []guestapi.Identity{resumed, testIdentity(1)} { // the second is the same once more
		if _, err := w.client.Identity(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := echoes(); err != nil {
			t.Fatalf("after it was resumed: %v", err)
		}
	}
	restored := testIdentity(2)
	restored.Entropy[0] = 1
	if _, err := w.client.Identity(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	w.noTunnels(t)
	if err := echoes(); err == nil {
		t.Error("the tunnel goes on in a restored guest")
	}
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server read %v, want a reset", err)
	}
}

func TestATunnelIsForThePeerAlone(t *testing.T) {
	accepted := make(chan struct{}, 1)
	port := serveOn(t, "127.0.0.1", func(*net.TCPConn) { accepted <- struct{}{} })
	w := start(t, func(c *Config) { c.Peer = netip.MustParseAddr("127.0.0.2") })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := w.client.Connect(ctx, port); err == nil {
		t.Error("somebody else was connected")
	}
	select {
	case <-accepted:
		t.Error("the server was reached")
	default:
	}
}
