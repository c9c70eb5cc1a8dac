package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Constants and layouts of linux/sock_diag.h, linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21
	sizeofDiagReq    = 56 // inet_diag_req_v2
	sizeofDiagMsg    = 72 // inet_diag_msg
	sizeofSockID     = 48 // inet_diag_sockid
	reqSockIDOffset  = 8
	msgSockIDOffset  = 4
)

// cutStates are the TCP states with a peer, as a bit mask by state number: all
// but CLOSE (7), LISTEN (10) and TIME_WAIT (6), which needs no peer any more.
const cutStates = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// errNoDiag says that the kernel cannot list or destroy sockets.
var errNoDiag = errors.New("the kernel cannot destroy sockets (CONFIG_INET_DIAG_DESTROY)")

// cutConnections aborts every TCP connection to another machine except keep, so
// that programs of a restored guest see an error at once where they would wait
// for a peer that does not know them. Connections inside the guest were
// captured with both their ends and go on.
func cutConnections(keep netip.AddrPort) (int, error) {
	cut, err := destroyConnections(keep)
	if errors.Is(err, errNoDiag) {
		// Nothing to cut is as good as having cut it.
		open, countErr := CountConnections(keep)
		if countErr == nil && open == 0 {
			return 0, nil
		}
		err = fmt.Errorf("%d open connections: %w", open, err)
	}
	return cut, err
}

type sockID [sizeofSockID]byte

func (id *sockID) local(family byte) netip.AddrPort  { return id.addr(family, 0, 4) }
func (id *sockID) remote(family byte) netip.AddrPort { return id.addr(family, 2, 20) }

func (id *sockID) addr(family byte, port, addr int) netip.AddrPort {
	ip := netip.AddrFrom4([4]byte(id[addr : addr+4]))
	if family == unix.AF_INET6 {
		ip = netip.AddrFrom16([16]byte(id[addr : addr+16])).Unmap()
	}
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(id[port:]))
}

// crosses says whether a connection leaves the guest.
func crosses(local, remote netip.AddrPort) bool {
	return remote.IsValid() && !remote.Addr().IsLoopback() && !remote.Addr().IsUnspecified() && local.Addr() != remote.Addr()
}

func destroyConnections(keep netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoDiag, err)
	}
	defer unix.Close(fd)
	cut := 0
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		ids, err := listConnections(fd, family)
		if err != nil {
			return cut, err
		}
		for _, id := range ids {
			remote := id.remote(family)
			if !crosses(id.local(family), remote) || remote == keep {
				continue
			}
			switch err := destroy(fd, family, id); {
			case err == nil:
				cut++
			case errors.Is(err, unix.ENOENT): // it ended meanwhile
			case errors.Is(err, unix.EOPNOTSUPP):
				return cut, errNoDiag
			default:
				return cut, fmt.Errorf("abort the connection to %s: %w", remote, err)
			}
		}
	}
	return cut, nil
}

func diagRequest(kind, flags uint16, family byte, id sockID) []byte {
	req := make([]byte, unix.SizeofNlMsghdr+sizeofDiagReq)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], kind)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|flags)
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], cutStates)
	copy(body[reqSockIDOffset:], id[:])
	return req
}

func listConnections(fd int, family byte) ([]sockID, error) {
	if err := send(fd, diagRequest(sockDiagByFamily, unix.NLM_F_DUMP, family, sockID{})); err != nil {
		return nil, err
	}
	var ids []sockID
	for {
		done, err := receive(fd, func(kind uint16, body []byte) error {
			if kind == sockDiagByFamily && len(body) >= sizeofDiagMsg {
				ids = append(ids, sockID(body[msgSockIDOffset:]))
			}
			return nil
		})
		if errors.Is(err, unix.ENOENT) {
			return nil, errNoDiag
		}
		if done || err != nil {
			return ids, err
		}
	}
}

func destroy(fd int, family byte, id sockID) error {
	if err := send(fd, diagRequest(sockDestroy, unix.NLM_F_ACK, family, id)); err != nil {
		return err
	}
	_, err := receive(fd, func(uint16, []byte) error { return nil })
	return err
}

func send(fd int, msg []byte) error {
	return unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive reads one datagram of netlink messages. done means the last of a dump
// or an acknowledgement was in it.
func receive(fd int, each func(kind uint16, body []byte) error) (done bool, err error) {
	buf := make([]byte, 32<<10)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return false, fmt.Errorf("read socket list: %w", err)
	}
	for buf = buf[:n]; len(buf) >= unix.SizeofNlMsghdr; {
		size := int(binary.NativeEndian.Uint32(buf))
		kind := binary.NativeEndian.Uint16(buf[4:])
		if size < unix.SizeofNlMsghdr || size > len(buf) {
			return false, errors.New("malformed netlink message")
		}
		body := buf[unix.SizeofNlMsghdr:size]
		switch kind {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("malformed netlink error")
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		}
		if err := each(kind, body); err != nil {
			return false, err
		}
		buf = buf[min((size+3)&^3, len(buf)):]
	}
	return false, nil
}

// CountConnections counts, from /proc, what Identity.ResetTCP would abort, but
// for the agent's own: the host knows of those.
func CountConnections(keep netip.AddrPort) (int, error) {
	count := 0
	for _, path := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(raw)) {
			local, remote, state, ok := parseProcTCP(line)
			if ok && cutStates&(1<<state) != 0 && crosses(local, remote) && remote != keep && local.Port() != guestapi.Port {
				count++
			}
		}
	}
	return count, nil
}

// parseProcTCP reads "sl local remote state …", the addresses in hexadecimal
// with each 32-bit word in the machine's order.
func parseProcTCP(line string) (local, remote netip.AddrPort, state uint, ok bool) {
	f := strings.Fields(line)
	if len(f) < 4 {
		return
	}
	local, ok1 := parseProcAddr(f[1])
	remote, ok2 := parseProcAddr(f[2])
	_, err := fmt.Sscanf(f[3], "%X", &state)
	return local, remote, state, ok1 && ok2 && err == nil && state < 32
}

func parseProcAddr(s string) (netip.AddrPort, bool) {
	host, portText, ok := strings.Cut(s, ":")
	var port uint16
	if _, err := fmt.Sscanf(portText, "%X", &port); !ok || err != nil || (len(host) != 8 && len(host) != 32) {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, 0, 16)
	for i := 0; i < len(host); i += 8 {
		var word uint32
		if _, err := fmt.Sscanf(host[i:i+8], "%X", &word); err != nil {
			return netip.AddrPort{}, false
		}
		raw = binary.NativeEndian.AppendUint32(raw, word)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), port), true
}
