package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Priorities of our base chains. The filters run before those of other
// tables (0), so that what we refuse is answered quickly whatever they do. The
// translations run before those of container engines (-100 and 100): the
// first translation of a connection wins, and a published port 53 of a
// container must not take a guest's DNS queries.
const (
	priorityRaw    = -300
	priorityDNAT   = -110
	priorityFilter = -10
	prioritySNAT   = 90
)

// dnsPort is the one port of the gateway that answers a guest.
const dnsPort = 53

// Policy says which addresses guests may open connections to. Never comes before
// Allowed and Allowed before Denied; what is in none of them is open.
// Prefixes may overlap; IPv6 ones are ignored, since a guest has no IPv6.
type Policy struct {
	Never, Allowed, Denied []netip.Prefix
}

// Names of the policy's sets.
const (
	setNever   = "never"
	setAllowed = "allowed"
	setDenied  = "denied"
)

// addPolicy appends the policy to c: everything in it ends in a verdict.
func (r *Ruleset) addPolicy(c *chain, p Policy) {
	add := func(name string, prefixes []netip.Prefix, verdict chainVerdict) {
		ranges := mergeRanges(prefixes)
		if len(ranges) == 0 {
			return
		}
		r.sets = append(r.sets, set{name: name, ranges: ranges})
		if verdict == pass {
			c.add(dstInSet(name), accept())
		} else {
			c.add(dstInSet(name), jump(chainRefuse))
		}
	}
	add(setNever, p.Never, refuse)
	add(setAllowed, p.Allowed, pass)
	add(setDenied, p.Denied, refuse)
	c.add(accept())
}

type chainVerdict bool

const (
	pass   chainVerdict = true
	refuse chainVerdict = false
)

// chainRefuse answers a guest at once instead of letting it run into its own
// timeout. TCP gets a reset, because the kernel limits the ICMP errors it
// sends to one destination to about one a second.
const chainRefuse = "refuse"

func (r *Ruleset) addRefuse() {
	c := r.chain(chainRefuse)
	c.add(proto(unix.IPPROTO_TCP), resetTCP())
	c.add(prohibit())
}

// Databases is how guests reach the PostgreSQL routers. The zero value is that they
// do not.
type Databases struct {
	// Routers are open to guests, whatever the policy says: these ports of these
	// IPv4 addresses and no others.
	Routers []netip.AddrPort
	// Port of a guest's gateway leads to a router in turn; 0: none does.
	Port uint16
	// Serving are those of the Routers that connections to the gateway are led to.
	// It is of the host alone: a slot sends them all to its host.
	Serving []netip.AddrPort
	// Domain is what follows a database's id in its name. A slot leaves a guest's
	// questions for such names to who listens in its namespace; empty: none.
	Domain string
	// MaxConnections bounds what one guest may have open to routers; 0 does not.
	MaxConnections uint32
}

// HostRules is what the host's own table is made from.
type HostRules struct {
	Table      string       // name of the table
	LinkPrefix string       // begins the names of this host's veth links, and of no others
	SlotCIDR   netip.Prefix // holds the addresses of all slots
	Resolvers  []netip.Addr // upstream DNS servers, IPv4
	Policy     Policy
	Databases  Databases
	// MaxConnections bounds what one slot can take of the connection tracking
	// table; 0 does not.
	MaxConnections uint32
}

// Ruleset builds the host's table: it translates the slots' addresses on the
// way out and DNS queries to the upstream servers, keeps guests away from the
// host's own services and lets nothing into a slot but answers.
func (h HostRules) Ruleset() *Ruleset {
	r := &Ruleset{Table: h.Table, family: nftables.TableFamilyINet}
	var resolvers []netip.Prefix
	for _, a := range h.Resolvers {
		resolvers = append(resolvers, netip.PrefixFrom(a, a.BitLen()))
	}
	const setResolvers = "resolvers"
	if len(resolvers) > 0 {
		r.sets = append(r.sets, set{name: setResolvers, ranges: mergeRanges(resolvers)})
	}

	dns := r.base("dns", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, priorityDNAT, nftables.ChainPolicyAccept)
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for i, a := range h.Resolvers {
			match := [][]expr.Any{iifPrefix(h.LinkPrefix), dstIn(h.SlotCIDR), dport(p, dnsPort)}
			// Queries take turns, so that a guest's retry meets another server.
			if left := len(h.Resolvers) - i; left > 1 {
				match = append(match, everyNth(uint32(left)))
			}
			dns.add(append(match, dnat(a))...)
		}
	}
	if h.Databases.Port > 0 {
		for i, a := range h.Databases.Serving {
			match := [][]expr.Any{iifPrefix(h.LinkPrefix), dstIn(h.SlotCIDR), dport(unix.IPPROTO_TCP, h.Databases.Port)}
			if left := len(h.Databases.Serving) - i; left > 1 {
				match = append(match, everyNth(uint32(left)))
			}
			dns.add(append(match, dnatTo(a))...)
		}
	}

	out := r.base("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, prioritySNAT, nftables.ChainPolicyAccept)
	out.add(srcIn(h.SlotCIDR), notOIFPrefix(h.LinkPrefix), masquerade())

	forward := r.base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, priorityFilter, nftables.ChainPolicyAccept)
	forward.add(iifPrefix(h.LinkPrefix), jump("from_guest"))
	forward.add(oifPrefix(h.LinkPrefix), jump("to_guest"))

	input := r.base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, priorityFilter, nftables.ChainPolicyAccept)
	input.add(iifPrefix(h.LinkPrefix), jump("to_host"))

	from := r.chain("from_guest")
	from.add(notIPv4(), drop())
	from.add(srcNotIn(h.SlotCIDR), drop())
	from.add(answers(), accept())
	from.add(invalid(), drop())
	host := r.chain("to_host")
	host.add(notIPv4(), drop())
	host.add(srcNotIn(h.SlotCIDR), drop())
	host.add(answers(), accept())
	const (
		setConnections = "connections"
		maxSetBits     = 18 // the kernel makes a hash table of the set's size at once
	)
	if h.MaxConnections > 0 {
		r.sets = append(r.sets, set{name: setConnections, size: 1 << min(32-h.SlotCIDR.Bits(), maxSetBits)})
	}
	for _, c := range []*chain{from, host} {
		// By source on the host as well: a guest that broke out into its VMM is
		// behind the slot's own rules.
		if h.MaxConnections > 0 {
			c.add(fresh(), moreThanOf(setConnections, h.MaxConnections), jump(chainRefuse))
		}
		for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			if len(resolvers) > 0 {
				c.add(translated(), dstInSet(setResolvers), dport(p, dnsPort), accept())
			}
		}
		for _, a := range h.Databases.Routers {
			c.add(to(a), accept())
		}
	}
	host.add(jump(chainRefuse))
	// A port that a container engine publishes on the host is a service of the
	// host, though its packets are forwarded.
	from.add(translated(), jump(chainRefuse))
	from.add(oifPrefix(h.LinkPrefix), jump(chainRefuse))
	r.addPolicy(from, h.Policy)

	to := r.chain("to_guest")
	to.add(answers(), accept())
	to.add(drop())

	r.addRefuse()
	return r
}

// SlotRules is what the table in a slot's namespace is made from.
type SlotRules struct {
	Table     string
	Tap       string // the guest's link
	Uplink    string // the namespace's end of the veth pair
	GuestMAC  net.HardwareAddr
	GuestAddr netip.Addr
	Gateway   netip.Addr // the tap's own address, the guest's name server
	NSAddr    netip.Addr // the slot's address, which the host sees
	HostAddr  netip.Addr // the host's end of the veth pair
	Policy    Policy
	Databases Databases
	// MaxConnections bounds what one guest can take of the host's connection
	// tracking table, which all slots share.
	MaxConnections uint32
}

// Ruleset builds a slot's table: one guest with one address behind the
// slot's address, with nothing of the namespace itself open to it but DNS.
// The policy stands here as well as on the host, so that a host whose rules
// someone flushed still refuses what it can.
func (s SlotRules) Ruleset() *Ruleset {
	r := &Ruleset{Table: s.Table, family: nftables.TableFamilyINet}

	spoof := r.base("antispoof", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, priorityRaw, nftables.ChainPolicyAccept)
	spoof.add(notIPv4(), drop())
	spoof.add(iif(s.Tap), srcMACNot(s.GuestMAC), drop())
	spoof.add(iif(s.Tap), srcNot(s.GuestAddr), drop())
	spoof.add(iif(s.Uplink), dstNot(s.NSAddr), drop())
	s.Databases.leaveNames(r, spoof, s)

	dns := r.base("dns", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, priorityDNAT, nftables.ChainPolicyAccept)
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		dns.add(iif(s.Tap), dst(s.Gateway), dport(p, dnsPort), dnat(s.HostAddr))
	}
	if s.Databases.Port > 0 {
		dns.add(iif(s.Tap), dst(s.Gateway), dport(unix.IPPROTO_TCP, s.Databases.Port), dnat(s.HostAddr))
	}

	out := r.base("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, prioritySNAT, nftables.ChainPolicyAccept)
	out.add(oif(s.Uplink), src(s.GuestAddr), snat(s.NSAddr))

	forward := r.base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, priorityFilter, nftables.ChainPolicyDrop)
	forward.add(clampMSS())
	forward.add(answers(), accept())
	forward.add(invalid(), drop())
	forward.add(iif(s.Tap), oif(s.Uplink), jump("from_guest"))

	input := r.base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, priorityFilter, nftables.ChainPolicyDrop)
	input.add(iif("lo"), accept())
	input.add(answers(), accept())
	if s.Databases.Domain != "" {
		question := [][]expr.Any{iif(s.Tap), dst(s.Gateway), dport(unix.IPPROTO_UDP, dnsPort), untracked()}
		input.add(append(question, upTo(questionsPerSecond), accept())...)
		input.add(append(question, drop())...)
	}
	input.add(iif(s.Tap), jump(chainRefuse))

	// A VMM needs no socket, so one that its guest took over gets none.
	output := r.base("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityFilter, nftables.ChainPolicyAccept)
	output.add(notRoots(), jump(chainRefuse))

	from := r.chain("from_guest")
	if s.MaxConnections > 0 {
		from.add(fresh(), moreThan(s.MaxConnections), jump(chainRefuse))
	}
	s.Databases.open(r, from, s.HostAddr)
	from.add(translated(), accept())
	r.addPolicy(from, s.Policy)

	r.addRefuse()
	return r
}

// hookARPInput is NF_ARP_IN of the kernel's netfilter_arp.h.
const hookARPInput nftables.ChainHook = 0

// ARP builds the slot's table for ARP, which no other family sees: a guest may send
// only its own address. The kernel enters each sender in the one neighbour table
// that all namespaces of the machine share.
func (s SlotRules) ARP() *Ruleset {
	r := &Ruleset{Table: s.Table, family: nftables.TableFamilyARP}
	hook := hookARPInput
	spoof := r.base("antispoof", nftables.ChainTypeFilter, &hook, priorityFilter, nftables.ChainPolicyAccept)
	spoof.add(iif(s.Tap), arpSenderMACNot(s.GuestMAC), drop())
	spoof.add(iif(s.Tap), arpSenderNot(s.GuestAddr), drop())
	return r
}
