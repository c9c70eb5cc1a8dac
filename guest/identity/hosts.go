package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const defaultHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

const (
	hostsPath = etcDir + "hosts"
	maxHosts  = 1 << 20
)

// newHosts is the new /etc/hosts.
func (g *Guest) newHosts(hostname string) ([]byte, error) {
	opened, err := g.files.open("hosts", 0o644)
	if err != nil {
		return nil, err
	}
	var old []byte
	if g.isLinked(etcDir, opened) {
		old, err = g.readHosts(opened)
	} else if old, err = os.ReadFile(g.files.root + hostsPath); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(old, g.hosts.whole) {
		g.hosts.kept = withoutOwn(old)
	}
	whole := append(g.hosts.whole[:0], g.hosts.kept...)
	whole = append(append(whole, ownAddress...), '\t')
	g.hosts.whole = append(append(whole, hostname...), '\n')
	return g.hosts.whole, nil
}

// readHosts reads what the tenant may have written to.
func (g *Guest) readHosts(opened *file) ([]byte, error) {
	b := g.buf[:]
	n, err := unix.Pread(opened.fd, b, 0)
	if err == nil && n == len(b) {
		b = make([]byte, maxHosts+1)
		n, err = unix.Pread(opened.fd, b, 0)
	}
	if err == nil && n > maxHosts {
		err = unix.EFBIG
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", hostsPath, err)
	}
	opened.size = int64(n)
	return b[:n], nil
}

// ownAddress has the guest's own name in /etc/hosts, as Debian's installer has it.
const ownAddress = "127.0.1.1"

// withoutOwn is the tenant's part of /etc/hosts.
func withoutOwn(old []byte) []byte {
	var b []byte
	for len(old) > 0 {
		line := old
		if i := bytes.IndexByte(old, '\n'); i >= 0 {
			line = old[:i+1]
		}
		old = old[len(line):]
		rest, own := bytes.CutPrefix(line, []byte(ownAddress))
		if own && (len(rest) == 0 || rest[0] == '\t' || rest[0] == ' ' || rest[0] == '\n') {
			continue
		}
		b = append(b, line...)
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}
