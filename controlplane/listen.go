package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// listen opens a port. If the port is taken, the error names the process that has
// it, if the system shows it.
func listen(ctx context.Context, setting, address string) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	_, port, _ := net.SplitHostPort(address)
	holder := "another process"
	if n, perr := strconv.Atoi(port); perr == nil {
		if who := portHolder(n); who != "" {
			holder = who
		}
	}
	return nil, fmt.Errorf("%s: port %s of %s is taken by %s", setting, port, address, holder)
}

// portHolder names the process that listens on a TCP port, or "".
func portHolder(port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(raw), "\n") {
			// The fields are sl, local_address, rem_address, st, …; inode is the
			// tenth. See proc(5).
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" { // TCP_LISTEN
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // only those that this process may read
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}
