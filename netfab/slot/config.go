package slot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/netfab/nft"
)

// What every guest sees, the same in every slot: a restored guest needs no
// new address.
const (
	// TapName is the guest's link in its namespace.
	TapName = "tap0"
	// uplinkName is the namespace's end of the veth pair.
	uplinkName = "up0"
	// slotTable is the nftables table in every namespace.
	slotTable = "berth"
	// linkBits is the prefix length of the link between guest and gateway.
	linkBits = 30
)

// Addresses of the link between a guest and its namespace.
var (
	GuestAddr   = netip.MustParseAddr("198.18.0.2")
	GatewayAddr = netip.MustParseAddr("198.18.0.1")
	GuestMAC    = net.HardwareAddr{0x52, 0x54, 0x00, 0xbe, 0x47, 0x02}
	TapMAC      = net.HardwareAddr{0x52, 0x54, 0x00, 0xbe, 0x47, 0x01}
)

// Defaults of Config.
const (
	DefaultBaseUID        = 600000
	LeastBaseUID          = 1000
	DefaultNetNSDir       = "/run/netns"
	DefaultStateDir       = "/run/berth/netfab"
	DefaultMaxConnections = 8192
	// maxMTU is the MTU in the guests' images; a host may have less.
	maxMTU = 1500
	minMTU = 576
)

// DefaultDenied are the prefixes no guest may reach unless Config says
// otherwise: private and shared address space (RFC 1918, 6598, 4193),
// benchmarking (RFC 2544, which holds the guests' own link) and protocol
// assignments (RFC 6890).
var DefaultDenied = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
	"198.18.0.0/15", "192.0.0.0/24", "fc00::/7",
)

// neverReached are closed whatever Config allows: this network, loopback,
// link local with the cloud's metadata service, multicast and reserved.
var neverReached = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")

func prefixes(texts ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		ps[i] = netip.MustParsePrefix(t)
	}
	return ps
}

// Config says how a host's slots are made. Host and CIDR are required, the
// zero value of everything else means its default.
type Config struct {
	// Host is the short id of this host, 1 to 8 characters of a-z and 0-9. It
	// is in the name of everything that is made, so that several hosts can
	// live on one machine.
	Host string
	// CIDR is the IPv4 prefix that the slots' own addresses come from, two a
	// slot. No other network of the machine may overlap it.
	CIDR netip.Prefix
	// Count is how many slots there may be; by default all that fit in CIDR.
	Count int
	// BaseUID is the owner of slot 0's tap; slot n belongs to BaseUID+n. Two
	// hosts on one machine should not share a range.
	BaseUID int

	// Resolvers are the upstream DNS servers. Empty: those of the host's
	// resolv.conf, read again whenever it changes.
	Resolvers []netip.Addr
	// FallbackResolvers are used where the host's configuration names no
	// server that another machine could ask.
	FallbackResolvers []netip.Addr
	// Uplinks are the links towards the internet. Empty: those of the default
	// routes.
	Uplinks []string

	// ControlPlane is never reachable from a guest, whatever AllowedCIDRs says.
	ControlPlane []netip.Prefix
	// FindControlPlane, if not nil, is asked by Keep for what it is now.
	FindControlPlane func(context.Context) []netip.Prefix
	// DeniedCIDRs replaces DefaultDenied; use an empty, non-nil slice to deny
	// nothing more than what is never reachable.
	DeniedCIDRs []netip.Prefix
	// AllowedCIDRs are exceptions to DeniedCIDRs.
	AllowedCIDRs []netip.Prefix

	// Databases is how guests reach the PostgreSQL routers; by default they do not,
	// where their addresses are not open to them anyway.
	Databases Databases

	// MTU of the guests' links; by default that of the uplink, at most 1500.
	MTU int
	// MaxConnections bounds the connections one guest may have open.
	MaxConnections int
	// EgressBits and IngressBits limit what a guest may send to and receive
	// from outside, in bits a second; 0 is no limit. What the host exchanges
	// with the guest does not count.
	EgressBits, IngressBits uint64

	// NetNSDir is where the namespaces are mounted.
	NetNSDir string
	// StateDir holds the record of what was changed on the machine itself. It
	// is shared by all hosts of a machine and does not outlive a boot.
	StateDir string
}

var validHost = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// maxSlots keeps a link's name within the kernel's 15 characters.
const maxSlots = 100000

// withDefaults checks c and fills in what it leaves open.
func (c Config) withDefaults() (Config, error) {
	if !validHost.MatchString(c.Host) {
		return c, fmt.Errorf("host id %q: want 1 to 8 characters of a-z and 0-9", c.Host)
	}
	if !c.CIDR.IsValid() || !c.CIDR.Addr().Is4() || c.CIDR.Bits() > 31 {
		return c, fmt.Errorf("slot cidr %s: want an IPv4 prefix of /31 or shorter", c.CIDR)
	}
	c.CIDR = c.CIDR.Masked()
	if c.CIDR.Contains(GuestAddr) {
		return c, fmt.Errorf("slot cidr %s holds the guests' own address %s", c.CIDR, GuestAddr)
	}
	room := c.room()
	if c.Count == 0 {
		c.Count = room
	}
	if c.Count < 0 || c.Count > room {
		return c, fmt.Errorf("%d slots: slot cidr %s has room for %d", c.Count, c.CIDR, room)
	}
	if c.BaseUID == 0 {
		c.BaseUID = DefaultBaseUID
	}
	if c.BaseUID < LeastBaseUID {
		return c, fmt.Errorf("base uid %d: want %d or more, which no system account has", c.BaseUID, LeastBaseUID)
	}
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return c, fmt.Errorf("mtu %d: want %d to %d", c.MTU, minMTU, maxMTU)
	}
	for _, a := range slices.Concat(c.Resolvers, c.FallbackResolvers) {
		if !UsableResolver(a) {
			return c, fmt.Errorf("resolver %s: want the IPv4 address of another machine or of a service on this one, not loopback", a)
		}
	}
	for _, p := range slices.Concat(c.ControlPlane, c.DeniedCIDRs, c.AllowedCIDRs) {
		if !p.IsValid() {
			return c, errors.New("an address prefix in the lists of the network is not valid")
		}
	}
	if c.DeniedCIDRs == nil {
		c.DeniedCIDRs = DefaultDenied
	}
	for _, bits := range []uint64{c.EgressBits, c.IngressBits} {
		if bits != 0 && bits < minRate {
			return c, fmt.Errorf("limit of %d bit/s: want %d or more", bits, minRate)
		}
	}
	var err error
	if c.Databases, err = c.Databases.withDefaults(); err != nil {
		return c, err
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	if c.MaxConnections < 0 {
		return c, fmt.Errorf("%d connections a guest: want more than none", c.MaxConnections)
	}
	if c.NetNSDir == "" {
		c.NetNSDir = DefaultNetNSDir
	}
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir
	}
	return c, nil
}

// room is how many slots fit in the prefix.
func (c Config) room() int {
	if bits := 31 - c.CIDR.Bits(); bits < 17 {
		return min(maxSlots, 1<<bits)
	}
	return maxSlots
}

func (c Config) policy(controlPlane []netip.Prefix) nft.Policy {
	return nft.Policy{
		Never:   slices.Concat(neverReached, []netip.Prefix{c.CIDR}, controlPlane),
		Allowed: c.AllowedCIDRs,
		Denied:  c.DeniedCIDRs,
	}
}

// hostTablePrefix begins the name of every Berth host's table on a machine.
const hostTablePrefix = "berth_"

func (c Config) hostTable() string { return hostTablePrefix + c.Host }

// nsPrefix and linkPrefix end in a character that a host id cannot have, so
// that no host's prefix begins another's name.
func (c Config) nsPrefix() string   { return "berth-" + c.Host + "-" }
func (c Config) linkPrefix() string { return "b" + c.Host + "-" }

func (c Config) nsName(n int) string   { return c.nsPrefix() + strconv.Itoa(n) }
func (c Config) linkName(n int) string { return c.linkPrefix() + strconv.Itoa(n) }

// number reads a slot's number out of a name with that prefix. Numbers past
// Count are read too: an earlier configuration may have made more.
func number(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || strconv.Itoa(n) != digits {
		return 0, false
	}
	return n, true
}

// hostAddr and nsAddr are the two ends of slot n's /31 (RFC 3021).
func (c Config) hostAddr(n int) netip.Addr { return offset(c.CIDR.Addr(), 2*n) }
func (c Config) nsAddr(n int) netip.Addr   { return offset(c.CIDR.Addr(), 2*n+1) }

func offset(a netip.Addr, by int) netip.Addr {
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(by)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// vethMAC is the fixed hardware address of one end of slot n's veth pair, so
// that neighbour entries can be permanent.
func vethMAC(n int, hostSide bool) net.HardwareAddr {
	side := byte(2)
	if hostSide {
		side = 1
	}
	// 02 is a locally administered unicast address.
	return net.HardwareAddr{0x02, 0xbe, side, byte(n >> 16), byte(n >> 8), byte(n)}
}
