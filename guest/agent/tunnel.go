package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

const (
	// maxTunnels bounds the connections to loopback. Each takes two descriptors, of
	// which the agent may have 4,096, and two buffers.
	maxTunnels   = 256
	tunnelBuffer = 16 << 10 // of each direction, in bytes
	// connectTime is how long a server may take to accept a connection.
	connectTime = 10 * time.Second
)

// tunnels are the connections that the host has to servers on loopback.
type tunnels struct {
	mu   sync.Mutex
	open map[*context.CancelFunc]struct{} // each cuts one; nil until the first
}

func (t *tunnels) enter(cut *context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= maxTunnels {
		return false
	}
	if t.open == nil {
		t.open = map[*context.CancelFunc]struct{}{}
	}
	t.open[cut] = struct{}{}
	return true
}

func (t *tunnels) leave(cut *context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, cut)
}

// cut ends them all.
func (t *tunnels) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for cut := range t.open {
		(*cut)()
	}
}

// connect connects the host to a server that listens on loopback alone, where the
// guest's own address does not reach it.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		fail(w, http.StatusBadRequest, errors.New("port: want 1 to 65535"))
		return
	}
	if r.Header.Get("Upgrade") != guestapi.UpgradeBytes {
		w.Header().Set("Upgrade", guestapi.UpgradeBytes)
		fail(w, http.StatusUpgradeRequired, fmt.Errorf("connect needs Upgrade: %s", guestapi.UpgradeBytes))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if !s.tunnels.enter(&cancel) {
		reply(w, http.StatusServiceUnavailable, guestapi.Error{Error: fmt.Sprintf("%d connections to loopback are open", maxTunnels), Code: guestapi.CodeLimit})
		return
	}
	defer s.tunnels.leave(&cancel)
	server, err := s.dialLoopback(ctx, int(port))
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	defer server.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{}) // the server's own, for the header
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + guestapi.UpgradeBytes + "\r\n\r\n")); err != nil {
		return
	}
	// First what net/http has read ahead, then the connection itself: the request's
	// context, and so the tunnel, would end with the host's half.
	ahead, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	t := &tunnel{host: conn, in: io.MultiReader(bytes.NewReader(ahead), conn), server: server}
	defer context.AfterFunc(ctx, t.reset)()
	t.run()
}

// dialLoopback connects to the first address of loopback on which something listens.
func (s *Server) dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	if own, ok := s.Addr().(*net.TCPAddr); ok && port == own.Port {
		return nil, errors.New("the port is the agent's")
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var refused error
	for _, addr := range guestapi.Loopback {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err == nil {
			return conn, nil
		}
		refused = errors.Join(refused, err)
	}
	return nil, refused
}

// tunnel joins the host with a server on loopback. An end in order of one direction is
// passed on and the other goes on; any other end resets both sides, so that neither
// takes a part for the whole.
type tunnel struct {
	host   net.Conn
	in     io.Reader // what the host sends, some of which was read already
	server net.Conn
}

func (t *tunnel) run() {
	said := make(chan struct{}) // closed: the server has said everything
	var up sync.WaitGroup
	up.Go(func() {
		t.up()
		t.watch(said)
	})
	if _, err := copyHeld(t.host, t.server); err != nil || closeWrite(t.host) != nil {
		t.reset()
	}
	close(said)
	up.Wait()
}

// watch looks for the host once nobody reads from it: nothing else tells that it is gone
// while the server says nothing, which may be for ever.
func (t *tunnel) watch(said <-chan struct{}) {
	check := time.NewTicker(peerCheck)
	defer check.Stop()
	for {
		select {
		case <-said:
			return
		case <-check.C:
			if wasReset(t.host) {
				t.reset()
				return
			}
		}
	}
}

// up passes on what the host sends. A server that takes no more may have said why, and
// that must reach the host: the rest is dropped for a while.
func (t *tunnel) up() {
	to := &patientWriter{conn: t.server, peer: t.host}
	_, err := copyHeld(to, t.in)
	switch {
	case err == nil:
		_ = closeWrite(t.server)
	case to.err != nil && !errors.Is(to.err, errPeerGone):
		_ = t.host.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = copyHeld(io.Discard, t.in)
	default:
		t.reset()
	}
}

// reset ends both sides at once.
func (t *tunnel) reset() {
	for _, conn := range []net.Conn{t.host, t.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}

// patientWriter waits for as long as the conn takes nothing, and looks meanwhile whether
// the peer is still there, which nobody reads from.
type patientWriter struct {
	conn, peer net.Conn
	err        error // of the last Write
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (n int, err error) {
	for {
		_ = w.conn.SetWriteDeadline(time.Now().Add(peerCheck))
		var written int
		written, w.err = w.conn.Write(p[n:])
		n += written
		if !errors.Is(w.err, os.ErrDeadlineExceeded) {
			return n, w.err
		}
		if wasReset(w.peer) {
			w.err = errPeerGone
			return n, w.err
		}
	}
}

// wasReset reports whether the peer has reset the connection. One that has only closed
// its half still reads.
func wasReset(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var found bool
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
			found = fds[0].Revents&unix.POLLERR != 0
		}
	})
	return found || err != nil
}

func closeWrite(conn net.Conn) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

var tunnelBuffers = sync.Pool{New: func() any { return new([tunnelBuffer]byte) }}

// copyHeld copies by a buffer of the agent. The kernel's splice would hold up to a
// megabyte and two descriptors more for each direction.
func copyHeld(to io.Writer, from io.Reader) (int64, error) {
	buf := tunnelBuffers.Get().(*[tunnelBuffer]byte)
	defer tunnelBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
}
