package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

// inNetwork runs fn in a network namespace of its own, on a thread of its own
// that ends with it, with two addresses on a device that stand for this machine
// and another.
func inNetwork(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	tier.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is not used again
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		for _, a := range []string{"10.9.9.1/24", "10.9.9.2/24", "fd00::1/64", "fd00::2/64"} {
			if err == nil {
				addr, _ := netlink.ParseAddr(a)
				addr.Flags = unix.IFA_F_NODAD
				err = netlink.AddrAdd(lo, addr)
			}
			if err == nil {
				err = untilLocal(t.Context(), a)
			}
		}
		if err != nil {
			t.Error(err)
			return
		}
		fn(t)
	}()
	<-done
}

// untilLocal waits until the kernel delivers packets for the address here: it
// adds the route of one of IPv6 a moment after the address.
func untilLocal(ctx context.Context, prefix string) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		routes, err := netlink.RouteGet(netip.MustParsePrefix(prefix).Addr().AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not local: %v, %w", prefix, routes, err)
		}
	}
}

// connect makes a connection between two addresses of the namespace, whose client
// is bound to a device, if that is not "".
func connect(t *testing.T, from, to, device string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(to, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if device != "" {
			_ = c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) })
		}
		return err
	}}
	if client, err = d.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestConnectionsToOtherMachinesAreCut(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		out, _ := connect(t, "10.9.9.1", "10.9.9.2", "")
		out6, _ := connect(t, "fd00::1", "fd00::2", "")
		bound, _ := connect(t, "10.9.9.1", "10.9.9.2", "lo")
		inside, insideServer := connect(t, "127.0.0.1", "127.0.0.1", "")
		same, sameServer := connect(t, "10.9.9.1", "10.9.9.1", "")
		kept, keptServer := connect(t, "10.9.9.2", "10.9.9.1", "")
		l, err := net.Listen("tcp", "10.9.9.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		keep := keptServer.LocalAddr().(*net.TCPAddr).AddrPort()

		// Both ends of a connection are in this kernel here: two of each that goes
		// out, and the end of kept whose peer is not keep.
		if n, err := CountConnections(keep); err != nil || n != 7 {
			t.Errorf("counted %d, %v", n, err)
		}
		n, err := cutConnections(keep)
		if errors.Is(err, errNoDiag) {
			t.Logf("this kernel cannot destroy sockets: %v", err)
			return
		}
		if err != nil || n == 0 {
			t.Fatalf("cut %d, %v", n, err)
		}
		for name, c := range map[string]net.Conn{"to the outside": out, "by IPv6": out6, "of a device": bound} {
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("a connection %s: %v", name, err)
			}
		}
		for name, pair := range map[string][2]net.Conn{"on loopback": {inside, insideServer}, "to the machine itself": {same, sameServer}} {
			if _, err := pair[0].Write([]byte("x")); err != nil {
				t.Errorf("connection %s: %v", name, err)
			}
			if _, err := pair[1].Read(make([]byte, 1)); err != nil {
				t.Errorf("connection %s: %v", name, err)
			}
		}
		_ = kept
		go func() { l.Accept() }()
		again, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Errorf("a listener was cut: %v", err)
		} else {
			again.Close()
		}
		if n, err := CountConnections(netip.AddrPort{}); err != nil || n > 1 {
			t.Errorf("%d are left, %v", n, err)
		}
	})
}
