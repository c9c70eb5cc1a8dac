package hostd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/guard"
	"github.com/berth-cloud/berth/hostd/lease"
	"github.com/berth-cloud/berth/vmm"
)

// Guard is the process beside the daemon of a host that ends exclusive boxes where
// the daemon cannot, until ctx ends.
func Guard(ctx context.Context, runDir, hostID string) error {
	boot, err := machineBoot()
	if err != nil {
		return err
	}
	tree, err := cgroup.Open(treeConfig(runDir, hostID), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	paths := box.Paths{Run: runDir}
	return guard.Run(ctx, guard.Config{
		Lock: guardLock(hostID), Marks: guard.Marks(paths.Guard()), Lease: lease.Observe(paths.Lease(), boot, nil), Groups: watched{tree},
	})
}

// guardLock is what a host's guard holds: the guard of a daemon that has another runtime
// directory now is found by it.
func guardLock(hostID string) string { return filepath.Join("/run/berth-guard", hostID) }

// watched are the boxes' groups as the guard sees them.
type watched struct{ tree *cgroup.Tree }

func (w watched) Busy(id string) (bool, error) {
	g, err := w.tree.Group(id)
	if errors.Is(err, cgroup.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pids, err := g.PIDs()
	return len(pids) > 0, err
}

func (w watched) Kill(ctx context.Context, id string) error {
	g, err := w.tree.Group(id)
	if err != nil {
		return err
	}
	return g.KillNow(ctx)
}

// marked are the boxes' cgroups, of which the guard knows the exclusive ones.
type marked struct {
	cgroups
	marks guard.Marks
}

func (m marked) Create(ctx context.Context, id string, l box.Limits) (vmm.Cgroup, func(), error) {
	if l.Exclusive {
		if err := m.marks.Set(id); err != nil {
			return vmm.Cgroup{}, nil, err
		}
	}
	return m.cgroups.Create(ctx, id, l)
}

func (m marked) Remove(ctx context.Context, id string) error {
	if err := m.cgroups.Remove(ctx, id); err != nil {
		return err
	}
	return m.marks.Clear(id)
}

// keeper runs the guard; nil without one.
func (d *Daemon) keeper() *guard.Keeper {
	if d.cfg.Guard == "" {
		return nil
	}
	return &guard.Keeper{Command: []string{d.cfg.Guard, "guard", d.cfg.RunDir, d.cfg.HostID}, Log: d.log}
}

// exclusiveBoxes are those that an earlier daemon may have started.
func (d *Daemon) exclusiveBoxes() []string {
	var ids []string
	for _, rec := range d.ledger.Boxes() {
		if rec.Exclusive {
			ids = append(ids, rec.ID)
		}
	}
	return ids
}

// openGuard makes what daemon and guard share.
func (d *Daemon) openGuard() error {
	d.marks = guard.Marks(d.cfg.paths().Guard())
	return errors.Join(os.MkdirAll(string(d.marks), 0o700), d.marks.Keep(d.exclusiveBoxes()))
}
