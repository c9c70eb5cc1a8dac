package identity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const defaultHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

const (
	hosts    = "hosts"
	maxHosts = 1 << 20 // bytes
)

// ownAddress has the guest's own name in /etc/hosts, as Debian's installer has it.
const ownAddress = "127.0.1.1"

// readHosts reads a file that the workload may have written or replaced. It does
// not block, even on a pipe.
func (g *Guest) readHosts() (string, error) {
	path := g.root + etcDir + hosts
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxHosts+1))
	if err != nil {
		return "", err
	}
	if len(raw) > maxHosts {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxHosts)
	}
	return string(raw), nil
}

// withoutOwn is the workload's part of /etc/hosts.
func withoutOwn(old string) string {
	var b strings.Builder
	for line := range strings.Lines(old) {
		line = strings.TrimSuffix(line, "\n")
		rest, own := strings.CutPrefix(line, ownAddress)
		if own && (rest == "" || rest[0] == '\t' || rest[0] == ' ') {
			continue
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
