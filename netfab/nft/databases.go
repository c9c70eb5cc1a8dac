package nft

import (
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// open appends to from, the packets of one guest, what lets it reach routers: those
// themselves, and the host's end of its link, to which its gateway's port is
// translated. One guest's share of the routers is bounded here, since they see all
// guests of a host as one address.
func (d Databases) open(r *Ruleset, from *chain, host netip.Addr) {
	if d.Port == 0 && len(d.Routers) == 0 {
		return
	}
	const name = "databases"
	if d.Port > 0 {
		from.add(translated(), to(netip.AddrPortFrom(host, d.Port)), jump(name))
	}
	for _, a := range d.Routers {
		from.add(to(a), jump(name))
	}
	c := r.chain(name)
	if d.MaxConnections > 0 {
		c.add(moreThan(d.MaxConnections), jump(chainRefuse))
	}
	c.add(accept())
}

// leaveNames lets questions for names of databases alone, so that they arrive in the
// namespace, and what is answered there. Every packet is judged by itself: a resolver
// in the guest may ask for other names by the same port at the same time.
func (d Databases) leaveNames(r *Ruleset, spoof *chain, s SlotRules) {
	if d.Domain == "" {
		return
	}
	spoof.add(iif(s.Tap), dst(s.Gateway), dport(unix.IPPROTO_UDP, dnsPort), asksFor(d.Domain), notrack())
	out := r.base("names", nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityRaw, nftables.ChainPolicyAccept)
	out.add(oif(s.Tap), src(s.Gateway), sport(unix.IPPROTO_UDP, dnsPort), notrack())
}

// Where the first question of a DNS message is in a UDP datagram (RFC 1035, 4.1), and
// how long the first label of a database's name is: it is a UUID.
const (
	questionOffset = 8 + 12
	idLength       = 36
)

// questionsPerSecond is how many questions of a guest for names of databases are
// answered: by a program, unlike all others, which the kernel passes on.
const questionsPerSecond = 200

// asksFor matches a DNS message whose first question is for <id>.<domain>, in letters
// of either case: @th,160,8 36 and the rest of the name likewise.
func asksFor(domain string) []expr.Any {
	rule := payload(questionOffset, []byte{idLength}, []byte{0xff})
	var name, mask []byte
	for _, label := range strings.Split(strings.ToUpper(domain), ".") {
		name, mask = append(name, byte(len(label))), append(mask, 0xff)
		for _, b := range []byte(label) {
			m := byte(0xff)
			if b >= 'A' && b <= 'Z' {
				m = 0xdf // without the bit of lower case
			}
			name, mask = append(name, b), append(mask, m)
		}
	}
	name, mask = append(name, 0), append(mask, 0xff)
	// A register has 16 bytes.
	for at := 0; at < len(name); at += 16 {
		end := min(at+16, len(name))
		rule = append(rule, payload(uint32(questionOffset+1+idLength+at), name[at:end], mask[at:end])...)
	}
	return rule
}

// payload matches bytes from the transport header on, under a mask. A packet that ends
// before does not match.
func payload(offset uint32, want, mask []byte) []expr.Any {
	n := uint32(len(want))
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: n, Mask: mask, Xor: make([]byte, n)},
		cmp(expr.CmpOpEq, want),
	}
}
