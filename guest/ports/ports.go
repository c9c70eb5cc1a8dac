// Package ports finds what in the guest listens for connections.
package ports

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Bounds on what a tenant can have the agent hold or look at.
const (
	maxSockets     = 10_000  // listening ones
	maxDescriptors = 500_000 // looked at for their owners
	maxComm        = 64      // of a process's name, in bytes
)

// tables are the kernel's lists of sockets, below the proc directory.
var tables = []struct {
	file, protocol string
	state          string // of a socket that waits for anybody
}{
	{"net/tcp", "tcp", "0A"}, {"net/tcp6", "tcp", "0A"}, {"net/udp", "udp", "07"}, {"net/udp6", "udp", "07"},
}

// Listening lists what listens, by port, and which process it is; not what
// listens at own, which is guestd itself. proc is /proc.
func Listening(proc string, own netip.AddrPort) ([]guestapi.ListeningPort, error) {
	byInode := map[uint64]guestapi.ListeningPort{}
	for _, t := range tables {
		f, err := os.Open(filepath.Join(proc, t.file))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		err = parse(f, t.state, func(s socket) bool {
			if s.local != own {
				byInode[s.inode] = guestapi.ListeningPort{Port: int(s.local.Port()), Protocol: t.protocol, Address: s.local.Addr().String()}
			}
			return len(byInode) < maxSockets
		})
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("list sockets: %s: %w", t.file, err)
		}
	}
	nameOwners(proc, byInode)
	list := make([]guestapi.ListeningPort, 0, len(byInode))
	for _, p := range byInode {
		list = append(list, p)
	}
	slices.SortFunc(list, compare)
	// One of those that share a port is enough: they are workers of one server.
	return slices.CompactFunc(list, func(a, b guestapi.ListeningPort) bool {
		return a.Port == b.Port && a.Protocol == b.Protocol && a.Address == b.Address
	}), nil
}

// compare has a process that is known before one that is not.
func compare(a, b guestapi.ListeningPort) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address),
		cmp.Compare(uint(a.PID-1), uint(b.PID-1)))
}

// socket is one line of a table.
type socket struct {
	local netip.AddrPort
	inode uint64
}

// parse visits the sockets in that state that are bound to a port and connected
// to none, for as long as visit returns true. Lines that make no sense, as the
// heading, are passed over.
func parse(table io.Reader, state string, visit func(socket) bool) error {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local rem st queues timer retransmits uid timeout inode …
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != state {
			continue
		}
		local, ok1 := parseAddr(f[1])
		remote, ok2 := parseAddr(f[2])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if !ok1 || !ok2 || err != nil || local.Port() == 0 || remote.Port() != 0 {
			continue
		}
		if !visit(socket{local, inode}) {
			return nil
		}
	}
	return lines.Err()
}

// parseAddr reads "0100007F:1F90": the address as 32-bit words of this machine's
// byte order, the port as a number.
func parseAddr(text string) (netip.AddrPort, bool) {
	words, portText, ok := strings.Cut(text, ":")
	if !ok || len(portText) != 4 || (len(words) != 8 && len(words) != 32) {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, 0, 16)
	for ; len(words) > 0; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		raw = append(raw, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok
}

// nameOwners finds the processes that have the sockets. Of several, as of a
// server and its workers, it is the one of the lowest number.
func nameOwners(proc string, byInode map[uint64]guestapi.ListeningPort) {
	processes, err := os.ReadDir(proc)
	if err != nil || len(byInode) == 0 {
		return
	}
	var pids []int
	for _, p := range processes {
		if pid, err := strconv.Atoi(p.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	left, looked := len(byInode), 0
	for _, pid := range pids {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		fds, err := os.Open(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it ended
		}
		names, _ := fds.Readdirnames(maxDescriptors - looked)
		_ = fds.Close()
		looked += len(names)
		for _, name := range names {
			to, err := os.Readlink(filepath.Join(dir, "fd", name))
			if err != nil {
				continue
			}
			inode, ok := socketInode(to)
			if p, known := byInode[inode]; ok && known && p.PID == 0 {
				p.PID, p.Process = pid, comm(dir)
				byInode[inode] = p
				left--
			}
		}
		if left == 0 || looked >= maxDescriptors {
			return
		}
	}
}

// socketInode reads "socket:[12345]".
func socketInode(link string) (uint64, bool) {
	text, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	text, ok = strings.CutSuffix(text, "]")
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(text, 10, 64)
	return inode, err == nil
}

func comm(dir string) string {
	f, err := os.Open(filepath.Join(dir, "comm"))
	if err != nil {
		return ""
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, maxComm))
	return strings.ToValidUTF8(strings.TrimSuffix(string(raw), "\n"), "\uFFFD")
}
