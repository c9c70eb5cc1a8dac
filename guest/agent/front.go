package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The front accepts every connection and answers the one request itself that
// somebody always waits for: the identity after a restore. In a guest that was
// restored a moment ago under software emulation each line of code is
// translated when it first runs, so what counts is how many different ones run.
// A blocking accept and read run half as many as Go's poller does before it
// wakes a goroutine; every other request is handed on to net/http.

const (
	// frontRead is the most that is read before a connection is handed on.
	frontRead = 64 << 10
	backlog   = 128
	// deferAccept has the kernel hold a connection back until its first bytes
	// came, for up to so many seconds: one wake instead of two.
	deferAccept = 1
)

type front struct {
	fd   int
	peer netip.Addr // the only address served; the zero value: any
	log  *slog.Logger

	conns  chan net.Conn // to net/http
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
	buf    [frontRead]byte
}

// answer handles a request of which n bytes are in buf. It may read more; it
// returns how many are there then, and whether the request was its own and is
// answered.
type answer func(fd int, remote netip.AddrPort, buf []byte, n int) (int, bool)

// listen opens the agent's socket.
func listen(addr netip.AddrPort, peer netip.Addr, log *slog.Logger) (*front, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	f := &front{fd: fd, peer: peer, log: log, conns: make(chan net.Conn), closed: make(chan struct{})}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, deferAccept),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}),
		unix.Listen(fd, backlog),
	)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	f.addr = net.TCPAddrFromAddrPort(addrPort(bound))
	return f, nil
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	if sa, ok := sa.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// run accepts until Close.
func (f *front) run(own answer) error {
	for {
		fd, sa, err := unix.Accept4(f.fd, unix.SOCK_CLOEXEC)
		if err != nil {
			select {
			case <-f.closed:
				return nil
			default:
			}
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		f.serve(fd, addrPort(sa), own)
	}
}

func (f *front) serve(fd int, remote netip.AddrPort, own answer) {
	if f.peer.IsValid() && remote.Addr() != f.peer {
		_ = unix.Close(fd)
		return
	}
	// What is there, now: a caller that connected and says nothing must not keep
	// the others waiting.
	n, _, err := unix.Recvfrom(fd, f.buf[:], unix.MSG_DONTWAIT)
	if err == nil && n > 0 {
		var done bool
		if n, done = own(fd, remote, f.buf[:], n); done {
			_ = unix.Close(fd)
			return
		}
	}
	f.handOn(fd, f.buf[:max(n, 0)])
}

// handOn gives a connection, with what was read of it, to net/http.
func (f *front) handOn(fd int, read []byte) {
	file := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		f.log.Error("connection not served", "error", err)
		return
	}
	if len(read) > 0 {
		conn = &replayed{TCPConn: conn.(*net.TCPConn), read: append([]byte(nil), read...)}
	}
	select {
	case f.conns <- conn:
	case <-f.closed:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (f *front) Accept() (net.Conn, error) {
	select {
	case conn := <-f.conns:
		return conn, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (f *front) Addr() net.Addr { return f.addr }

// Close implements net.Listener.
func (f *front) Close() error {
	f.once.Do(func() {
		close(f.closed)
		_ = unix.Shutdown(f.fd, unix.SHUT_RDWR) // wakes accept
	})
	return nil
}

// replayed is a connection whose first bytes were read already. It stays a
// *net.TCPConn for whoever needs the socket.
type replayed struct {
	*net.TCPConn
	read []byte
}

func (c *replayed) Read(b []byte) (int, error) {
	if len(c.read) == 0 {
		return c.TCPConn.Read(b)
	}
	n := copy(b, c.read)
	c.read = c.read[n:]
	return n, nil
}

// WriteTo is hidden: it would pass by what was read.
func (c *replayed) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}
