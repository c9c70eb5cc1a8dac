package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/ports"
)

// cutStates are the TCP states with a peer, as a bit mask by state number: all
// but CLOSE (7), LISTEN (10) and TIME_WAIT (6), which no longer needs its peer.
const cutStates = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// errNoDiag says that the kernel cannot list or destroy sockets.
var errNoDiag = errors.New("the kernel cannot destroy sockets (CONFIG_INET_DIAG_DESTROY)")

// cutConnections aborts every TCP connection to another machine except keep, so
// that programs of a restored guest get an error at once instead of waiting for a
// peer that does not know them. Connections inside the guest were
// captured with both their ends and go on.
func cutConnections(keep netip.AddrPort) (int, error) {
	cut, err := destroyConnections(keep)
	if errors.Is(err, errNoDiag) {
		// Without open connections nothing had to be aborted.
		open, countErr := CountConnections(keep)
		if countErr == nil && open == 0 {
			return 0, nil
		}
		err = fmt.Errorf("%d open connections: %w", open, err)
	}
	return cut, err
}

// CountConnections counts what Identity.ResetTCP would abort, but for the
// agent's own: the host knows of those. It asks /proc, which a kernel without
// socket diagnosis has, too.
func CountConnections(keep netip.AddrPort) (count int, err error) {
	err = ports.TCP(func(s ports.Socket) bool {
		if hasPeer(s.State) && crosses(s.Local, s.Remote) && s.Remote != keep && s.Local.Port() != guestapi.Port {
			count++
		}
		return true
	})
	return count, err
}

func hasPeer(state uint8) bool { return cutStates&(1<<state) != 0 }

// crosses says whether a connection leaves the guest.
func crosses(local, remote netip.AddrPort) bool {
	return remote.IsValid() && !remote.Addr().IsLoopback() && !remote.Addr().IsUnspecified() && local.Addr() != remote.Addr()
}

func destroyConnections(keep netip.AddrPort) (int, error) {
	cut := 0
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagTCP(family)
		if errors.Is(err, unix.ENOENT) {
			return cut, errNoDiag
		}
		if err != nil {
			return cut, fmt.Errorf("list connections: %w", err)
		}
		for _, s := range sockets {
			local, remote := addrPort(s.ID.Source, s.ID.SourcePort), addrPort(s.ID.Destination, s.ID.DestinationPort)
			if !hasPeer(s.State) || !crosses(local, remote) || remote == keep {
				continue
			}
			switch err := destroy(s); {
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

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}

// destroy is netlink.SocketDestroy for connections of IPv6, too, and for those
// that are bound to a device.
func destroy(s *netlink.Socket) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.AddData(destroyRequest{s})
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}

// destroyRequest is inet_diag_req_v2 of linux/inet_diag.h.
type destroyRequest struct{ *netlink.Socket }

func (destroyRequest) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r destroyRequest) Serialize() []byte {
	source, destination := r.ID.Source.To16(), r.ID.Destination.To16()
	if r.Family == unix.AF_INET {
		source, destination = r.ID.Source.To4(), r.ID.Destination.To4()
	}
	b := make([]byte, 0, r.Len())
	b = append(b, r.Family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, cutStates)
	b = binary.BigEndian.AppendUint16(b, r.ID.SourcePort)
	b = binary.BigEndian.AppendUint16(b, r.ID.DestinationPort)
	b = append(append(b, source...), make([]byte, 16-len(source))...)
	b = append(append(b, destination...), make([]byte, 16-len(destination))...)
	b = binary.NativeEndian.AppendUint32(b, r.ID.Interface)
	b = binary.NativeEndian.AppendUint32(b, r.ID.Cookie[0])
	return binary.NativeEndian.AppendUint32(b, r.ID.Cookie[1])
}
