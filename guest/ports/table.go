package ports

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Socket is one line of the kernel's tables of sockets.
type Socket struct {
	Local, Remote netip.AddrPort
	State         uint8 // as in linux/tcp_states.h
	inode         uint64
	UID           uint32 // of the process that made it
}

// States of sockets without a peer: of TCP, and of UDP.
const (
	stateListen = 10
	stateClose  = 7
)

// TCP visits the TCP sockets of the caller's network, for as long as visit
// returns true.
func TCP(visit func(Socket) bool) error {
	more := true
	for _, path := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		err := readTable(path, func(s Socket) bool {
			more = more && visit(s)
			return more
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Listens reports whether the socket takes connections.
func (s Socket) Listens() bool { return s.State == stateListen }

// readTable visits the sockets of one table. A table that is not there is empty:
// the kernel has no IPv6.
func readTable(path string, visit func(Socket) bool) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = parse(f, visit)
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("list sockets: %w", err)
	}
	return nil
}

// parse passes over lines that make no sense, such as the heading.
func parse(table io.Reader, visit func(Socket) bool) error {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local rem st queues timer retransmits uid timeout inode …
		f := strings.Fields(lines.Text())
		if len(f) < 10 {
			continue
		}
		local, ok1 := parseAddr(f[1])
		remote, ok2 := parseAddr(f[2])
		state, err1 := strconv.ParseUint(f[3], 16, 8)
		inode, err2 := strconv.ParseUint(f[9], 10, 64)
		uid, err3 := strconv.ParseUint(f[7], 10, 32)
		if !ok1 || !ok2 || err1 != nil || err2 != nil || err3 != nil {
			continue
		}
		if !visit(Socket{local, remote, uint8(state), inode, uint32(uid)}) {
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
