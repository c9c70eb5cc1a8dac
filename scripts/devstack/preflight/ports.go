package preflight

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Port is a loopback port on which a stack listens.
type Port struct {
	Number int
	Use    string // what it is for
}

// CheckPorts refuses if a port is taken, and names the process that has it.
func CheckPorts(ports []Port) error {
	for _, p := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)))
		if err == nil {
			l.Close()
			continue
		}
		who := portOwner(p.Number)
		switch {
		case who == "":
			who = "another process"
		case strings.HasPrefix(who, "controlplane ("), strings.HasPrefix(who, "hostd ("):
			return Refusef("port %d, needed for %s, is taken by the Berth of another clone, %s, and a machine can have one: stop it with make down there", p.Number, p.Use, who)
		}
		return Refusef("port %d, needed for %s, is taken by %s; end that process, or choose other ports with BERTH_PORT_BASE=<first port>", p.Number, p.Use, who)
	}
	return nil
}

// CheckAddress refuses what is no IPv4 address of this machine.
func CheckAddress(s string) error {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() || a.IsUnspecified() {
		return Refusef("BERTH_DEV_ADDRESS is %q: want one IPv4 address of this machine", s)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(s, "0"))
	if err != nil {
		return Refusef("BERTH_DEV_ADDRESS is %s, which is no address of this machine (ip -4 addr shows them): %v", s, err)
	}
	return l.Close()
}

// DefaultPortBase is the first of a stack's ports.
const DefaultPortBase = 7500

// PortBase returns BERTH_PORT_BASE or the default.
func PortBase() (int, error) {
	s := os.Getenv("BERTH_PORT_BASE")
	if s == "" {
		return DefaultPortBase, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535-30 {
		return 0, Refusef("BERTH_PORT_BASE is %q: want a port number up to %d", s, 65535-30)
	}
	return n, nil
}

// Offsets of a stack's ports from its first one.
const (
	apiOffset    = 1
	routerOffset = 6
	peerOffset   = 11
	domainOffset = 16
	hostOffset   = 21
)

// APIPort is a replica's port for users.
func APIPort(base, i int) int { return base + apiOffset + i }

// RouterPort is a replica's port for clients of databases.
func RouterPort(base, i int) int { return base + routerOffset + i }

// DomainPort is a replica's port for domains of apps, by TLS.
func DomainPort(base, i int) int { return base + domainOffset + i }

// PeerPort is a replica's port for other replicas and hosts.
func PeerPort(base, i int) int { return base + peerOffset + i }

// HostPort is a host's port for replicas.
func HostPort(base, i int) int { return base + hostOffset + i }

// Ports lists every port of a stack.
func Ports(base, replicas, hosts int) []Port {
	var out []Port
	for i := range replicas {
		id := "r" + strconv.Itoa(i+1)
		out = append(out, Port{APIPort(base, i), "the public API of replica " + id}, Port{RouterPort(base, i), "the PostgreSQL router of replica " + id}, Port{DomainPort(base, i), "the domains of apps of replica " + id}, Port{PeerPort(base, i), "the peer port of replica " + id})
	}
	for i := range hosts {
		out = append(out, Port{HostPort(base, i), "the API of host h" + strconv.Itoa(i+1)})
	}
	return out
}

// portOwner returns the process that listens on a TCP port as "name (pid n)", or
// "" if it is unknown.
func portOwner(port int) string {
	inodes := make(map[string]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listeningInodes(table, port, inodes)
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "pid " + pid
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
	}
	return ""
}

// listeningInodes adds the socket inodes that listen on port in one of the
// kernel's tables. The fields are: sl, local, remote, state, queues, timer,
// retransmits, uid, timeout, inode.
func listeningInodes(table string, port int, into map[string]bool) {
	const stateListen = "0A"
	f, err := os.Open(table)
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		_, hex, ok := strings.Cut(fields[1], ":")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
			into[fields[9]] = true
		}
	}
}
