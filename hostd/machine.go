package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/vmm"
)

// machine is what the kernel and the file systems hold for boxes.
type machine struct {
	paths  box.Paths
	engine box.Engine
	groups marked
	slots  *slots // nil for purge
}

// Traces lists every box of which something is there.
func (m *machine) Traces(context.Context) ([]string, error) {
	seen := map[string]bool{}
	var out []string
	add := func(name string) {
		if hostapi.ValidID(name) && !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	for _, dir := range []string{m.paths.Run, m.paths.Boxes()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list sandboxes' directories: %w", err)
		}
		for _, e := range entries {
			add(e.Name())
		}
	}
	names, err := m.groups.List()
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	for _, name := range names {
		add(name)
	}
	return out, nil
}

// KillVMM kills the VMM of a runtime directory, if there is one.
func (m *machine) KillVMM(ctx context.Context, id string) (bool, error) {
	p, err := m.engine.Adopt(ctx, m.paths.VMM(id))
	if errors.Is(err, vmm.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, nil //nolint:nilerr // an unreadable identity: RemoveCgroup kills what is left
	}
	return true, p.Kill(ctx)
}

// RemoveCgroup kills what is left in a box's cgroup, and removes it.
func (m *machine) RemoveCgroup(ctx context.Context, id string) error { return m.groups.Remove(ctx, id) }

// RemoveFiles removes a box's directories.
func (m *machine) RemoveFiles(id string) error { return m.paths.Remove(id) }

// HoldSlot keeps the pool from a slot that a box has.
func (m *machine) HoldSlot(n int) { m.slots.hold(n) }
