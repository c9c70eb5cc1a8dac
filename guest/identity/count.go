package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
)

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
