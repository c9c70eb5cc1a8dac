// Package ports lists the ports on which the guest listens, and its sockets.
package ports

import (
	"cmp"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Bounds on what a workload can make the agent hold or read.
const (
	maxSockets     = 10_000  // listening ones
	maxDescriptors = 500_000 // looked at for their owners
	maxComm        = 64      // of a process's name, in bytes
)

// tables are the kernel's lists of sockets, below the proc directory.
var tables = []struct {
	file, protocol string
	state          uint8 // of a socket that is connected to none
}{
	{"net/tcp", "tcp", stateListen}, {"net/tcp6", "tcp", stateListen}, {"net/udp", "udp", stateClose}, {"net/udp6", "udp", stateClose},
}

// Listening lists the listening ports and their processes, by port, without own,
// which is guestd's. proc is /proc.
func Listening(proc string, own netip.AddrPort) ([]guestapi.ListeningPort, error) {
	byInode := map[uint64]guestapi.ListeningPort{}
	for _, t := range tables {
		err := readTable(filepath.Join(proc, t.file), func(s Socket) bool {
			if s.State == t.state && s.Local.Port() != 0 && s.Remote.Port() == 0 && s.Local != own {
				byInode[s.inode] = guestapi.ListeningPort{Port: int(s.Local.Port()), Protocol: t.protocol, Address: s.Local.Addr().String()}
			}
			return len(byInode) < maxSockets
		})
		if err != nil {
			return nil, err
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

// compare puts a known process before an unknown one.
func compare(a, b guestapi.ListeningPort) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address),
		cmp.Compare(uint(a.PID-1), uint(b.PID-1)))
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
