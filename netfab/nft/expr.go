package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The building blocks of a rule. Each is what the nft command writes for the
// text in its comment; a rule is their concatenation.

// reg is the register that every block loads into and compares from.
const reg = unix.NFT_REG_1

// portReg has a port beside an address in reg.
const portReg = unix.NFT_REG_2

// statusDNAT is IPS_DST_NAT of the kernel's nf_conntrack_common.h: the
// destination of this connection was translated.
const statusDNAT = 1 << 5

// tcpOptionMSS is the kind of the maximum segment size option (RFC 9293, 3.2).
const tcpOptionMSS = 2

func cmp(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg, Data: data}
}

func ifname(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg}, cmp(op, data)}
}

// iif: iifname "name"
func iif(name string) []expr.Any { return ifname(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded(name)) }

// oif: oifname "name"
func oif(name string) []expr.Any { return ifname(expr.MetaKeyOIFNAME, expr.CmpOpEq, padded(name)) }

// iifPrefix: iifname "prefix*"
func iifPrefix(prefix string) []expr.Any {
	return ifname(expr.MetaKeyIIFNAME, expr.CmpOpEq, []byte(prefix))
}

// oifPrefix: oifname "prefix*"
func oifPrefix(prefix string) []expr.Any {
	return ifname(expr.MetaKeyOIFNAME, expr.CmpOpEq, []byte(prefix))
}

// notOIFPrefix: oifname != "prefix*"
func notOIFPrefix(prefix string) []expr.Any {
	return ifname(expr.MetaKeyOIFNAME, expr.CmpOpNeq, []byte(prefix))
}

// padded is an interface name as the kernel compares it, zeros to the end.
func padded(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// ipv4: meta nfproto ipv4
func ipv4() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, cmp(expr.CmpOpEq, []byte{unix.NFPROTO_IPV4})}
}

// notIPv4: meta nfproto != ipv4
func notIPv4() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, cmp(expr.CmpOpNeq, []byte{unix.NFPROTO_IPV4})}
}

// Offsets of the addresses in an IPv4 header.
const (
	srcOffset = 12
	dstOffset = 16
)

func loadAddr(offset uint32) []expr.Any {
	return append(ipv4(), &expr.Payload{
		DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4,
	})
}

// srcNot: ip saddr != addr
func srcNot(a netip.Addr) []expr.Any {
	return append(loadAddr(srcOffset), cmp(expr.CmpOpNeq, a.AsSlice()))
}

// src: ip saddr addr
func src(a netip.Addr) []expr.Any {
	return append(loadAddr(srcOffset), cmp(expr.CmpOpEq, a.AsSlice()))
}

// dst: ip daddr addr
func dst(a netip.Addr) []expr.Any {
	return append(loadAddr(dstOffset), cmp(expr.CmpOpEq, a.AsSlice()))
}

// dstNot: ip daddr != addr
func dstNot(a netip.Addr) []expr.Any {
	return append(loadAddr(dstOffset), cmp(expr.CmpOpNeq, a.AsSlice()))
}

func inPrefix(offset uint32, op expr.CmpOp, p netip.Prefix) []expr.Any {
	p = p.Masked()
	return append(loadAddr(offset),
		&expr.Bitwise{
			SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, 4),
		},
		cmp(op, p.Addr().AsSlice()))
}

// srcIn: ip saddr prefix
func srcIn(p netip.Prefix) []expr.Any { return inPrefix(srcOffset, expr.CmpOpEq, p) }

// srcNotIn: ip saddr != prefix
func srcNotIn(p netip.Prefix) []expr.Any { return inPrefix(srcOffset, expr.CmpOpNeq, p) }

// dstIn: ip daddr prefix
func dstIn(p netip.Prefix) []expr.Any { return inPrefix(dstOffset, expr.CmpOpEq, p) }

// dstInSet: ip daddr @name
func dstInSet(name string) []expr.Any {
	return append(loadAddr(dstOffset), &expr.Lookup{SourceRegister: reg, SetName: name})
}

// srcMACNot: ether saddr != mac
func srcMACNot(mac net.HardwareAddr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		cmp(expr.CmpOpNeq, mac),
	}
}

// arpSenderMACNot: arp saddr ether != mac. The kernel has checked the lengths
// of an ARP packet's addresses before any rule sees it.
func arpSenderMACNot(mac net.HardwareAddr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 6},
		cmp(expr.CmpOpNeq, mac),
	}
}

// arpSenderNot: arp saddr ip != addr
func arpSenderNot(a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 14, Len: 4},
		cmp(expr.CmpOpNeq, a.AsSlice()),
	}
}

// proto: meta l4proto p
func proto(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, cmp(expr.CmpOpEq, []byte{p})}
}

// dport: meta l4proto p, th dport port
func dport(p byte, port uint16) []expr.Any { return port16(p, 2, port) }

// sport: meta l4proto p, th sport port
func sport(p byte, port uint16) []expr.Any { return port16(p, 0, port) }

func port16(p byte, offset uint32, port uint16) []expr.Any {
	return append(proto(p),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		cmp(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(port)))
}

// to: ip daddr addr, tcp dport port
func to(a netip.AddrPort) []expr.Any {
	return append(dst(a.Addr()), dport(unix.IPPROTO_TCP, a.Port())...)
}

func ctMask(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: reg, Key: key},
		&expr.Bitwise{
			SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		cmp(expr.CmpOpNeq, make([]byte, 4)),
	}
}

// answers: ct state established,related
func answers() []expr.Any {
	return ctMask(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// invalid: ct state invalid
func invalid() []expr.Any { return ctMask(expr.CtKeySTATE, expr.CtStateBitINVALID) }

// untracked: ct state untracked
func untracked() []expr.Any { return ctMask(expr.CtKeySTATE, expr.CtStateBitUNTRACKED) }

// fresh: ct state new
func fresh() []expr.Any { return ctMask(expr.CtKeySTATE, expr.CtStateBitNEW) }

// translated: ct status dnat
func translated() []expr.Any { return ctMask(expr.CtKeySTATUS, statusDNAT) }

// moreThan: ct count over n
func moreThan(n uint32) []expr.Any {
	return []expr.Any{&expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}}
}

// moreThanOf: add @name { ip saddr ct count over n }
func moreThanOf(name string, n uint32) []expr.Any {
	return append(loadAddr(srcOffset), &expr.Dynset{
		SrcRegKey: reg, SetName: name, Operation: unix.NFT_DYNSET_OP_ADD, Exprs: moreThan(n),
	})
}

// upTo: limit rate n/second burst n packets
func upTo(n uint32) []expr.Any {
	return []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(n), Unit: expr.LimitTimeSecond, Burst: n}}
}

// notRoots: meta skuid != 0. What no process sends does not match.
func notRoots() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: reg}, cmp(expr.CmpOpNeq, make([]byte, 4))}
}

// everyNth: numgen inc mod n == 0
func everyNth(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: reg, Modulus: n, Type: unix.NFT_NG_INCREMENTAL},
		cmp(expr.CmpOpEq, make([]byte, 4)),
	}
}

// clampMSS: tcp flags syn tcp option maxseg size set rt mtu
func clampMSS() []expr.Any {
	return append(proto(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{0x02}, Xor: []byte{0}},
		cmp(expr.CmpOpNeq, []byte{0}),
		&expr.Rt{Register: reg, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{Type: tcpOptionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt, SourceRegister: reg})
}

// notrack: notrack
func notrack() []expr.Any { return []expr.Any{&expr.Notrack{}} }

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// jump: jump chain
func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// resetTCP: reject with tcp reset
func resetTCP() []expr.Any { return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// prohibit: reject with icmpx admin-prohibited
func prohibit() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}

func nat(kind expr.NATType, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: a.AsSlice()},
		&expr.NAT{Type: kind, Family: unix.NFPROTO_IPV4, RegAddrMin: reg},
	}
}

// dnat: dnat ip to addr
func dnat(a netip.Addr) []expr.Any { return nat(expr.NATTypeDestNAT, a) }

// dnatTo: dnat ip to addr:port
func dnatTo(a netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: a.Addr().AsSlice()},
		&expr.Immediate{Register: portReg, Data: binaryutil.BigEndian.PutUint16(a.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg, RegProtoMin: portReg, Specified: true},
	}
}

// snat: snat ip to addr
func snat(a netip.Addr) []expr.Any { return nat(expr.NATTypeSourceNAT, a) }

// masquerade: masquerade
func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }
