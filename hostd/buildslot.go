package hostd

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/timescale"
)

// groupTime bounds the removal of a build's control group.
var groupTime = timescale.Limit(10 * time.Second)

// buildGroup begins the names of the control groups of builds' guests.
const buildGroup = "build-"

// removeBuildGroups removes those that a killed daemon left. One whose processes
// do not end holds up no start: its slot is in use, and goes to no other guest.
func removeBuildGroups(ctx context.Context, groups cgroups) error {
	names, err := groups.List()
	for _, name := range names {
		if strings.HasPrefix(name, buildGroup) {
			rctx, cancel := context.WithTimeout(ctx, groupTime)
			err = errors.Join(err, groups.Remove(rctx, name))
			cancel()
		}
	}
	return err
}

// slotPool is what a build's guest needs of the host's slots.
type slotPool interface {
	Take(ctx context.Context) (box.Slot, error)
	Return(n int)
	Dial(ctx context.Context, n, port int) (net.Conn, error)
}

// poolLease takes a slot of the running host for a build's guest, and confines
// its VMM as a box's.
func poolLease(s slotPool, groups []int, confine cgroups, overheadMB int) func(context.Context, image.Guest) (image.Lease, error) {
	return func(ctx context.Context, g image.Guest) (image.Lease, error) {
		got, err := s.Take(ctx)
		if err != nil {
			return image.Lease{}, err
		}
		group := buildGroup + strconv.Itoa(got.Number)
		cg, entered, err := confine.Create(ctx, group, box.Limits{CPUs: g.CPU, MemoryMB: g.MemoryMB, OverheadMB: overheadMB})
		if err != nil {
			s.Return(got.Number)
			return image.Lease{}, err
		}
		return image.Lease{
			Cgroup: cg,
			NetNS:  got.NetNSPath, UID: got.UID, GID: got.GID, Groups: groups,
			Dial: func(ctx context.Context, port int) (net.Conn, error) { return s.Dial(ctx, got.Number, port) },
			Release: func() {
				entered()
				rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTime)
				defer cancel()
				// A group that cannot be removed does no harm: the slot's next guest takes it over.
				_ = confine.Remove(rctx, group)
				s.Return(got.Number)
			},
		}, nil
	}
}
