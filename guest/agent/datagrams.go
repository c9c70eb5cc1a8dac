package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// The identity after a restore is the one request that somebody always waits
// for. In a guest that was restored a moment ago under software emulation each
// line of code is translated when it first runs, so what counts is how many
// different ones run. A datagram takes half the kernel's code of a connection,
// and a blocking read a fraction of what Go's poller runs before it wakes a
// goroutine. The two calls are made as the kernel has them: the functions of
// syscall and x/sys/unix allocate an address for each datagram.

type datagrams struct {
	fd     int
	peer   netip.Addr // the only address served; the zero value: any
	log    *slog.Logger
	closed atomic.Bool
	awake  bool // see stayAwake

	buf     [guestapi.MaxIdentityDatagram + 1]byte // one more, to know a longer one
	control [64]byte
	from    unix.RawSockaddrInet4
	vector  unix.Iovec
	header  unix.Msghdr
	// answer is the last one, with the id of its call in front: a datagram that
	// came again is answered again.
	answer []byte
}

// take gives the guest an identity and appends the answer to b. stayAwake is what
// the identity asks for.
type take func(b, raw []byte, received time.Time, remote netip.AddrPort) (status int, answer []byte, stayAwake bool)

// listenDatagrams opens the agent's socket for datagrams.
func listenDatagrams(addr netip.AddrPort, peer netip.Addr, log *slog.Logger) (*datagrams, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		// What is never fragmented needs no number, which the kernel would draw at
		// random.
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}),
	)
	if err == nil && peer.IsValid() {
		// A socket that is connected remembers its routes, which are looked for in
		// a thousand instructions otherwise.
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: peer.As4()})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for datagrams on %s: %w", addr, err)
	}
	return &datagrams{fd: fd, peer: peer, log: log, answer: make([]byte, 0, 1<<10)}, nil
}

// run answers until close. It has a thread of its own, which takes precedence
// over all others of the guest: each that runs in between, and Go's runtime
// wakes two or three of its own, adds its code to what is waited for. What the
// thread starts is as any other. Should it ever wait for another thread without
// sleeping, the kernel lets that one run within a second.
func (d *datagrams) run(own take) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the precedence ends with the thread
		first := unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}
		if err := unix.SchedSetAttr(0, &first, 0); err != nil {
			d.log.Warn("the identity has no precedence", "error", err)
		}
		ended <- d.serve(own)
	}()
	err := <-ended
	_ = unix.Close(d.fd)
	return err
}

func (d *datagrams) serve(own take) error {
	for {
		n, err := d.receive()
		if d.closed.Load() {
			return nil
		}
		if err != nil {
			// The second: an answer met nobody any more.
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNREFUSED) {
				continue
			}
			return fmt.Errorf("read datagram: %w", err)
		}
		if d.from.Family != unix.AF_INET || n < guestapi.CallIDSize || n == len(d.buf) {
			continue
		}
		remote := netip.AddrPortFrom(netip.AddrFrom4(d.from.Addr), ntohs(d.from.Port))
		if d.peer.IsValid() && remote.Addr() != d.peer {
			continue
		}
		awake := d.reply(d.buf[:n], arrival(d.control[:d.header.Controllen]), remote, own)
		d.send()
		d.stayAwake(awake)
	}
}

// send sends the answer. It fits into an empty send buffer; a caller that is gone
// has no use for it.
func (d *datagrams) send() {
	var to *unix.RawSockaddrInet4 // that of the connected socket
	if !d.peer.IsValid() {
		to = &d.from
	}
	for range 3 {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(d.fd), uintptr(unsafe.Pointer(unsafe.SliceData(d.answer))),
			uintptr(len(d.answer)), 0, uintptr(unsafe.Pointer(to)), unix.SizeofSockaddrInet4)
		switch errno {
		case unix.ECONNREFUSED: // of an answer before
		case unix.EMSGSIZE: // a refusal with a hook's output
			_ = unix.SetsockoptInt(d.fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
		default:
			return
		}
	}
}

// receive waits for a datagram.
func (d *datagrams) receive() (int, error) {
	d.vector.Base = &d.buf[0]
	d.vector.SetLen(len(d.buf))
	d.header.Name, d.header.Namelen = (*byte)(unsafe.Pointer(&d.from)), unix.SizeofSockaddrInet4
	d.header.Iov, d.header.Iovlen = &d.vector, 1
	d.header.Control = &d.control[0]
	d.header.SetControllen(len(d.control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(d.fd), uintptr(unsafe.Pointer(&d.header)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// awakeTime is how long a guest that was told to stays awake, of its own time: from
// the answer until it is paused, and from its restore until its identity comes.
const awakeTime = 2 * time.Second

// stayAwake has the calls of receive from now on ask the network device again and
// again, in the kernel, before they sleep, or has them not. A guest that is
// restored there has no interrupt to take, no idle to come out of, no thread to
// wake and to switch to. A kernel that cannot do it leaves it as it is.
func (d *datagrams) stayAwake(yes bool) {
	if d.awake == yes {
		return
	}
	d.awake = yes
	var most int
	if yes {
		most = int(awakeTime / time.Microsecond)
	}
	if err := unix.SetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, most); err != nil {
		d.log.Warn("the next identity is not waited for awake", "error", err)
	}
}

// ntohs is a port from a socket address.
func ntohs(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

// reply makes d.answer the answer to a datagram, and reports whether that asks to
// stay awake.
func (d *datagrams) reply(msg []byte, received time.Time, remote netip.AddrPort, own take) (awake bool) {
	const head = guestapi.CallIDSize + 2
	call := msg[:guestapi.CallIDSize]
	if len(d.answer) >= head && string(d.answer[:guestapi.CallIDSize]) == string(call) {
		return d.awake
	}
	b := append(d.answer[:0], call...)
	b = append(b, 0, 0)
	status, b, awake := own(b, msg[guestapi.CallIDSize:], received, remote)
	binary.BigEndian.PutUint16(b[guestapi.CallIDSize:], uint16(status))
	d.answer = b
	return awake
}

// arrival is when a datagram came, by the kernel's word. The difference from now
// is what it took to wake the agent: tens of milliseconds where the guest's code
// is translated on its way, and all of them would be missing on the clock.
func arrival(control []byte) time.Time {
	now := time.Now()
	const head = unix.SizeofCmsghdr
	if len(control) < head+16 || binary.NativeEndian.Uint32(control[8:]) != unix.SOL_SOCKET ||
		binary.NativeEndian.Uint32(control[12:]) != unix.SO_TIMESTAMPNS {
		return now
	}
	came := int64(binary.NativeEndian.Uint64(control[head:]))*1e9 + int64(binary.NativeEndian.Uint64(control[head+8:]))
	// More than that, and the clock was set since.
	if ago := now.UnixNano() - came; ago > 0 && ago < int64(time.Second) {
		return now.Add(-time.Duration(ago))
	}
	return now
}

// close makes run return.
func (d *datagrams) close() {
	if !d.closed.Swap(true) {
		_ = unix.Shutdown(d.fd, unix.SHUT_RDWR) // wakes the read, though it says ENOTCONN
	}
}
