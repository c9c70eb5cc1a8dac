package slot

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

// shapeDelay is how long a packet may wait for its turn before it is dropped,
// in seconds.
const shapeDelay = 0.05

// minRate is the lowest limit, in bits a second: a full packet takes 0.2 s.
const minRate = 64_000

// minBurst lets a few full packets through at once, and aggregated ones.
const minBurst = 64 << 10

// shape limits what leaves by link to bits a second; 0 takes a limit away.
func shape(link netlink.Link, bits uint64) error {
	name := link.Attrs().Name
	if bits == 0 {
		return unshape(link)
	}
	rate := bits / 8
	// 10 ms of traffic at once, since the kernel's timer is not finer than 4.
	burst := max(uint64(minBurst), rate/100)
	qdisc := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate:   rate,
		Buffer: netlink.Xmittime(rate, uint32(min(burst, math.MaxUint32))),
		Limit:  uint32(min(float64(rate)*shapeDelay+float64(burst), math.MaxUint32)),
	}
	if err := netlink.QdiscReplace(qdisc); err != nil {
		return fmt.Errorf("limit %s to %d bit/s: %w", name, bits, err)
	}
	return nil
}

func unshape(link netlink.Link) error {
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(link) })
	if err != nil {
		return fmt.Errorf("list limits of %s: %w", link.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		if _, ok := q.(*netlink.Tbf); ok {
			if err := netlink.QdiscDel(q); err != nil {
				return fmt.Errorf("remove limit of %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}
