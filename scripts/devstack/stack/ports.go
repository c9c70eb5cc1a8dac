package stack

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ports lists every port of the stack with what it is for.
func (o Options) ports() map[int]string {
	m := make(map[int]string)
	for i := range o.Replicas {
		m[o.apiPort(i)] = "the public API of replica " + o.replicaID(i)
		m[o.peerPort(i)] = "the peer port of replica " + o.replicaID(i)
	}
	for i := range o.Hosts {
		m[o.hostPort(i)] = "the API of host " + o.hostID(i)
	}
	return m
}

// checkPorts refuses when a port is taken, and says by whom.
func (o Options) checkPorts() error {
	if o.Machines {
		return nil // their addresses are new, and nobody else's
	}
	for base := range 30 {
		port := o.PortBase + base
		use, ours := o.ports()[port]
		if !ours {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err == nil {
			l.Close()
			continue
		}
		who := portOwner(port)
		if who == "" {
			who = "another process"
		}
		return refusef("port %d, wanted for %s, is taken by %s; end that, or choose other ports with BERTH_PORT_BASE=<first port>", port, use, who)
	}
	return nil
}

// portOwner names the process that listens on a TCP port as "name (pid n)", or
// returns "" when the kernel does not tell.
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
