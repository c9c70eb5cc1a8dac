package hostd

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/stats"
)

// openStats makes what measures boxes. It asks for them only once there are any.
func (d *Daemon) openStats() (err error) {
	d.stats, err = stats.New(stats.Config{
		Boxes: func() []hostapi.Box { return d.boxes.List() },
		Box:   func(id string) (hostapi.Box, error) { return d.boxes.Get(id) },
		Group: func(id string) (stats.Reading, bool, error) { return readGroup(d.tree, id) },
		Traffic: func(ctx context.Context, slot int) (received, sent int64, err error) {
			t, err := d.fabric.Traffic(ctx, slot)
			return t.Received, t.Sent, err
		},
		Disk: func(id string) int64 { return capture.Allocated(d.cfg.paths().Overlay(id)) },
		Dir:  d.cfg.paths().Usage(), Log: d.log,
	})
	if err != nil {
		return fmt.Errorf("open the totals of what boxes use: %w", err)
	}
	return nil
}

func readGroup(tree *cgroup.Tree, id string) (r stats.Reading, there bool, err error) {
	g, err := tree.Group(id)
	if err == nil {
		var s cgroup.Stats
		s, err = g.Stats()
		r = stats.Reading{CPU: s.CPU, MemoryBytes: s.MemoryBytes}
	}
	if errors.Is(err, cgroup.ErrNotFound) {
		return stats.Reading{}, false, nil
	}
	return r, err == nil, err
}

// measured are the boxes' cgroups, which are measured before they go.
type measured struct {
	marked
	stats *stats.Stats
}

func (m measured) Remove(ctx context.Context, id string) error {
	m.stats.Ending(ctx, id)
	return m.marked.Remove(ctx, id)
}
