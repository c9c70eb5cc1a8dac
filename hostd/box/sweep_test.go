package box

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/vmm"
)

type removals []string

func (r *removals) Create(context.Context, string, Limits) (vmm.Cgroup, func(), error) {
	return vmm.Cgroup{}, nil, errors.New("nothing is made")
}

func (r *removals) Remove(_ context.Context, id string) error {
	*r = append(*r, id)
	return nil
}

// A delete may end between the sweep's look and its turn, and a younger generation
// may be there.
func TestTheSweepLeavesAloneWhatIsGone(t *testing.T) {
	for _, gone := range []bool{false, true} {
		var removed removals
		h := &Host{work: background.New(), cgroups: &removed, paths: Paths{Data: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
		b := &box{host: h, id: "a", gone: make(chan struct{})}
		b.unreleased = true
		if gone {
			close(b.gone)
		}
		b.tryAgain()
		if left := len(removed) == 0; left != gone {
			t.Errorf("gone %v: cgroups %v are removed", gone, removed)
		}
	}
}
