package slot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// Waits for an answer before a new attempt is made beside the context. The
// kernel repeats a lost SYN only after a second, and drops what it sends to a
// tap until it has noticed, a moment later, that the VMM opened it: right
// after a restore, a second is most of what a caller waits for.
const (
	firstAttempt = 250 * time.Millisecond
	lastAttempt  = 4 * time.Second
)

// Dial connects to a TCP port of the guest in slot n. Only the socket is made
// inside the namespace; the wait for the connection holds no thread, so
// hundreds of dials may wait at once. It ends with ctx, with an error for
// which errors.Is(err, ctx.Err()) holds.
func (f *Fabric) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	if err := f.check(n); err != nil {
		return nil, err
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("dial port %d of slot %d: port out of range", port, n)
	}
	for wait := firstAttempt; ; wait = min(2*wait, lastAttempt) {
		attempt, cancel := context.WithTimeout(ctx, wait)
		conn, err := f.dial(attempt, n, port)
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("dial port %d of slot %d: %w", port, n, err)
		}
	}
}

func (f *Fabric) dial(ctx context.Context, n, port int) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fd := -1
	// Do brings the thread back or, where it cannot, gives it up.
	err := ns.WithNetNSPath(f.nsPath(n), func(ns.NetNS) error {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	// A descriptor that does not block is registered with the runtime's poller.
	file := os.NewFile(uintptr(fd), "guest")
	defer file.Close() // net.FileConn duplicates it
	if err := connect(ctx, file, netip.AddrPortFrom(GuestAddr, uint16(port))); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true)
	}
	return conn, nil
}

// connect connects the socket and waits for the outcome or the end of ctx.
func connect(ctx context.Context, file *os.File, to netip.AddrPort) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := file.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() {
		_ = file.SetWriteDeadline(time.Unix(1, 0)) // in the past: wakes the wait
	})
	defer stop()

	started := false
	var outcome error
	err = raw.Write(func(fd uintptr) (done bool) {
		if !started {
			started = true
			outcome = unix.Connect(int(fd), &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
			if errors.Is(outcome, unix.EINPROGRESS) || errors.Is(outcome, unix.EINTR) {
				return false
			}
			return true
		}
		// The poller may wake us for a state from before the connect, so the
		// socket itself is asked.
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			outcome = err
			return true
		}
		if code != 0 {
			outcome = unix.Errno(code)
			return true
		}
		if _, err := unix.Getpeername(int(fd)); err != nil {
			return false
		}
		outcome = nil
		return true
	})
	if ctx.Err() != nil && (err != nil || outcome != nil) {
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The poller's clock was a moment ahead of the context's.
		return context.DeadlineExceeded
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("connect", outcome)
}
