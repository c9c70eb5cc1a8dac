package hostd

import (
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// stalledDisk is how long the disk may be at work on the ledger on a host that is ready;
// creates are refused from then on.
var stalledDisk = timescale.Limit(5 * time.Second)

// notReady says what keeps this host from taking boxes, for /readyz.
func (d *Daemon) notReady() string {
	return missing(d.draining.Load(), d.boxes.Ready(), d.boxes.DiskStalled(), d.lease.Over())
}

func missing(draining, adopted bool, stalled time.Duration, alone bool) string {
	switch {
	case draining:
		return "draining: the daemon stops"
	case !adopted:
		return "boxes: those of an earlier daemon are being adopted"
	case stalled > stalledDisk:
		return "disk: it does not answer"
	case alone:
		return "control_plane: no leader has answered a heartbeat for most of a lease"
	}
	return ""
}
