package webhook

import (
	"net/netip"
	"strings"
)

// special lists the global unicast addresses that belong to nobody on the public internet,
// or that lead through it to private addresses (RFC 6890 and the registries that it set
// up). What a NAT64 or a tunnel does with an address cannot be known here.
var special = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"240.0.0.0/4",
	"2001::/23",     // IETF protocols, with Teredo
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4
	"3fff::/20",     // documentation
)

// globalIPv6 contains all global addresses that are given out. The unspecified, mapped,
// NAT64, unique local, link-local, site-local and multicast addresses are outside it.
var globalIPv6 = netip.MustParsePrefix("2000::/3")

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// Public reports whether an address belongs to the public internet.
func Public(a netip.Addr) bool {
	a = a.Unmap() // a socket that connects to a mapped address connects to the IPv4 one
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Zone() != "" || a.Is6() && !globalIPv6.Contains(a) {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// PrivateName reports whether a host name cannot belong to the public internet. Other
// names may still be private; that depends on their address when they are dialled.
func PrivateName(host string) bool { return internalName(host) || numberName(host) }

// internalName reports whether a host name can only belong to a private network. Other
// names may too, so their address is checked before each attempt.
func internalName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !strings.Contains(host, ".") {
		return true
	}
	for _, zone := range []string{".localhost", ".local", ".internal", ".home.arpa"} {
		if strings.HasSuffix(host, zone) {
			return true
		}
	}
	return false
}

// numberName reports whether a host name is a number that some resolvers take for an
// IPv4 address, such as 127.1 or 0x7f000001.
func numberName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last != "" && (strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"))
}
