package nft

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// addrRange is a range of IPv4 addresses, both ends included.
type addrRange struct{ first, last uint32 }

func (r addrRange) String() string { return fmt.Sprintf("%08x-%08x", r.first, r.last) }

// mergeRanges turns prefixes into sorted ranges without overlaps: the kernel
// refuses an interval set whose members overlap. IPv6 prefixes are left out,
// since no IPv6 packet of a guest passes at all.
func mergeRanges(prefixes []netip.Prefix) []addrRange {
	var rs []addrRange
	for _, p := range prefixes {
		if !p.IsValid() || !p.Addr().Unmap().Is4() {
			continue
		}
		bits := p.Bits()
		if p.Addr().Is4In6() {
			bits = max(bits-96, 0)
		}
		a := p.Addr().Unmap().As4()
		size := uint32(math.MaxUint32)
		if bits > 0 {
			size = 1<<(32-bits) - 1
		}
		first := binary.BigEndian.Uint32(a[:]) &^ size
		rs = append(rs, addrRange{first, first + size})
	}
	slices.SortFunc(rs, func(a, b addrRange) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		}
		return 0
	})
	var merged []addrRange
	for _, r := range rs {
		if n := len(merged); n > 0 && (merged[n-1].last == math.MaxUint32 || r.first <= merged[n-1].last+1) {
			merged[n-1].last = max(merged[n-1].last, r.last)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// elements encodes the ranges as the kernel wants them: a start, and an end
// that is the first address after the range. A range that reaches the last
// address has no end element.
func (s set) elements() []nftables.SetElement {
	var out []nftables.SetElement
	for _, r := range s.ranges {
		out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.first)})
		if r.last != math.MaxUint32 {
			out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.last+1), IntervalEnd: true})
		}
	}
	return out
}
