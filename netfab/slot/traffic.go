package slot

import (
	"context"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Traffic is what has passed a slot's tap since the slot was made, in bytes of whole
// Ethernet frames. Of the guest's point of view: what it received and sent.
type Traffic struct{ Received, Sent int64 }

// Traffic reads the kernel's counters of slot n. A slot that is made again begins at
// zero.
func (f *Fabric) Traffic(ctx context.Context, n int) (Traffic, error) {
	if err := f.check(n); err != nil {
		return Traffic{}, err
	}
	unlock, err := f.slots.lock(ctx, n) // not while it is removed, or made anew
	if err != nil {
		return Traffic{}, err
	}
	defer unlock()
	var t Traffic
	err = ns.WithNetNSPath(f.nsPath(n), func(ns.NetNS) error {
		link, err := findLink(TapName)
		if err != nil || link == nil || link.Attrs().Statistics == nil {
			return err
		}
		s := link.Attrs().Statistics // the host receives what the guest sends
		t = Traffic{Received: int64(s.TxBytes), Sent: int64(s.RxBytes)}
		return nil
	})
	if err != nil {
		return Traffic{}, fmt.Errorf("read traffic of slot %d: %w", n, err)
	}
	return t, nil
}
