package slot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// conntrackMax is the kernel's bound on connections in one namespace. 0 is
// none.
var conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"

const (
	// reservedConnections are the machine's own.
	reservedConnections = 1 << 16
	// connectionBytes is the kernel's memory for one, with NAT.
	connectionBytes = 512
	// connectionMemory is the part of the machine's memory, one in so many, that
	// a table that was raised may take.
	connectionMemory = 16
	// leastConnections is what any guest may have, unless that is more than one part
	// in leastGuests of the table. Most slots have no running guest, and with fewer
	// connections a browser or a package manager fails.
	leastConnections = 512
	leastGuests      = 16
)

// ensureConnections makes room in the host's connection tracking table for all
// that guests may have, and says whether a guest may have another number of
// connections than before. The kernel has the table once rules use it.
func (f *Fabric) ensureConnections() (changed bool, err error) {
	limit, err := readConntrackMax()
	if err != nil {
		return false, err
	}
	// Without the lock: the record is replaced, and this is done every few seconds.
	m, err := readMachine(filepath.Join(f.cfg.StateDir, machineFile))
	if err != nil {
		return false, err
	}
	sum := m.allConnections()
	f.mu.Lock()
	known := limit == f.conntrackMax && sum == f.claimed && f.ready
	before := f.connections
	f.mu.Unlock()
	if known {
		return false, nil
	}
	var each int
	if err := f.withMachine(func(m *machine) error {
		var err error
		if sum, err = m.claimConnections(f.cfg.Host, f.cfg.Count*f.cfg.MaxConnections); err != nil {
			return err
		}
		if limit, err = readConntrackMax(); err != nil {
			return err
		}
		each = share(f.cfg.MaxConnections, sum, limit)
		return nil
	}); err != nil {
		return false, err
	}
	if each != before && each < f.cfg.MaxConnections {
		f.log.Info("the connection tracking table has no room for what all slots may have, so each gets a part of it",
			"nf_conntrack_max", limit, "slots", f.cfg.Count, "connections", each, "wanted", f.cfg.MaxConnections)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conntrackMax, f.claimed, f.connections = limit, sum, each
	return each != before, nil
}

// share is how many connections a guest may have that is configured to have each,
// where the configured numbers of all guests add up to sum and the table holds limit.
func share(each, sum, limit int) int {
	room := max(limit-reservedConnections, limit/2)
	if limit == 0 || room >= sum {
		return each
	}
	part := int(int64(each) * int64(room) / int64(sum))
	return max(part, min(each, leastConnections, room/leastGuests), 1)
}

// claimConnections raises the kernel's bound, never lowers it, to what all
// hosts of the machine want, as far as its memory allows, and returns that.
// Where it cannot be set, as in a network namespace that is not the machine's,
// it stays.
func (m *machine) claimConnections(host string, want int) (sum int, err error) {
	if m.Connections == nil {
		m.Connections = make(map[string]int)
	}
	m.Connections[host] = want
	sum = m.allConnections()
	limit, err := readConntrackMax()
	if err != nil {
		return 0, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	most := int(info.Totalram * uint64(info.Unit) / connectionMemory / connectionBytes)
	target := min(sum, most) + reservedConnections
	if limit == 0 || limit >= target {
		return sum, nil
	}
	err = os.WriteFile(conntrackMax, []byte(strconv.Itoa(target)), 0o644)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return sum, nil
	case err != nil:
		return 0, fmt.Errorf("raise the number of tracked connections: %w", err)
	}
	if m.ConntrackMax == 0 {
		m.ConntrackMax = limit
	}
	m.ConntrackSet = target
	return sum, nil
}

// allConnections is what the guests of all hosts may have open together.
func (m *machine) allConnections() (sum int) {
	for _, n := range m.Connections {
		sum += n
	}
	return sum
}

// releaseConnections puts the kernel's bound back, unless someone else has set
// it since.
func (m *machine) releaseConnections() error {
	if m.ConntrackMax == 0 {
		return nil
	}
	limit, err := readConntrackMax()
	if err != nil || limit != m.ConntrackSet {
		return err
	}
	err = os.WriteFile(conntrackMax, []byte(strconv.Itoa(m.ConntrackMax)), 0o644)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS): // this host has a network namespace of its own, and another has set it
		return nil
	case err != nil:
		return fmt.Errorf("restore the number of tracked connections: %w", err)
	}
	return nil
}

func readConntrackMax() (int, error) {
	data, err := os.ReadFile(conntrackMax)
	if err != nil {
		return 0, fmt.Errorf("read the number of tracked connections: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read the number of tracked connections: %w", err)
	}
	return n, nil
}
