package slot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Where the host's resolver configuration is. The second file holds the
// servers behind systemd-resolved's stub, which listens on loopback only.
var (
	resolvConf        = "/etc/resolv.conf"
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
)

// errNoResolver: neither the host nor the configuration names a DNS server that
// guests' queries could be sent to.
var errNoResolver = errors.New("no usable upstream DNS server")

// maxResolvers is what the C library uses of a longer list (MAXNS).
const maxResolvers = 3

// resolvers returns the servers that guests' DNS queries are sent to. Where none is
// named now, it is those that were the last, or none: then the queries are refused,
// and guests have all else.
func (f *Fabric) resolvers() ([]netip.Addr, error) {
	found, err := f.cfg.resolvers()
	missing := errors.Is(err, errNoResolver)
	if err != nil && !missing {
		return nil, err
	}
	f.mu.Lock()
	if !missing {
		f.upstream = found
	}
	upstream, told := f.upstream, f.unresolved
	f.unresolved = missing
	f.mu.Unlock()
	if missing && !told {
		f.log.Warn("host names no DNS server for guests: their questions go to the last known, or are refused until it does", "known", upstream, "error", err)
	}
	return upstream, nil
}

// resolvers returns the servers that are named now.
func (c Config) resolvers() ([]netip.Addr, error) {
	if len(c.Resolvers) > 0 {
		return firstResolvers(c.Resolvers), nil
	}
	listed, err := readNameservers(resolvConf)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(listed, netip.Addr.IsLoopback) {
		behind, err := readNameservers(systemdResolvConf)
		if err != nil {
			return nil, err
		}
		listed = append(behind, listed...)
	}
	if usable := firstResolvers(listed); len(usable) > 0 {
		return usable, nil
	}
	if len(c.FallbackResolvers) > 0 {
		return firstResolvers(c.FallbackResolvers), nil
	}
	return nil, fmt.Errorf("%s names only loopback or IPv6 servers, and none is configured: %w", resolvConf, errNoResolver)
}

// firstResolvers returns the first few usable addresses, each once.
func firstResolvers(all []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if UsableResolver(a) && !slices.Contains(out, a) && len(out) < maxResolvers {
			out = append(out, a)
		}
	}
	return out
}

// UsableResolver says whether another machine, which a guest is, could ask
// the server.
func UsableResolver(a netip.Addr) bool {
	return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast()
}

func readNameservers(path string) ([]netip.Addr, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the host's resolver configuration: %w", err)
	}
	return parseNameservers(data), nil
}

// parseNameservers returns the addresses of the nameserver lines
// (resolv.conf(5)); what it does not understand it passes over, as the C
// library does.
func parseNameservers(data []byte) []netip.Addr {
	var out []netip.Addr
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
