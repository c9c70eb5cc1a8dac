package hostd

import (
	"context"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/vmm"
)

const (
	// engineCPUs is CPU time for the engine's own threads (disk and network),
	// beside the guest's.
	engineCPUs = 0.5
	// maxPIDs bounds the engine's processes and threads.
	maxPIDs = 512
)

// cgroups are the boxes' control groups.
type cgroups struct{ tree *cgroup.Tree }

func (c cgroups) Create(ctx context.Context, id string, l box.Limits) (vmm.Cgroup, func(), error) {
	g, err := c.tree.Ensure(ctx, id, cgroup.Limits{
		CPUs:        float64(l.CPUs) + engineCPUs,
		MemoryBytes: cgroup.MemoryLimit(int64(l.MemoryMB)<<20, int64(l.OverheadMB)<<20),
		PIDs:        maxPIDs,
	})
	if err != nil {
		return vmm.Cgroup{}, nil, err
	}
	entry, err := g.Entry()
	if err != nil {
		return vmm.Cgroup{}, nil, err
	}
	return vmm.Cgroup{V2: entry.V2, V1: entry.V1}, func() { entry.Close() }, nil
}

func (c cgroups) Remove(ctx context.Context, id string) error { return c.tree.Remove(ctx, id) }

func (c cgroups) List() ([]string, error) { return c.tree.List() }
