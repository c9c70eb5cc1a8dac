package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/guard"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Purge removes everything that a host has for sandboxes: VMs, cgroups, slots,
// network rules, disks and captures. Its templates, its certificate and what its ledger
// knows of terms and deleted generations stay. It refuses while the host's
// daemon runs; a host that has nothing is no error.
func Purge(ctx context.Context, cfg Config, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("purge removes VMs and network namespaces: run it as root")
	}
	l, err := openForPurge(cfg, log)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close()
	}
	lock, err := lockPurge(cfg)
	if err != nil {
		return err
	}
	defer lock.Close() // of a nil file is an error, and no harm
	fabric, err := newFabric(ctx, cfg, newReplicas(nil, log), log)
	if err != nil {
		return err
	}
	defer fabric.Close()
	tree, err := cgroup.Open(treeConfig(cfg.RunDir, cfg.HostID), log)
	if err != nil {
		return err
	}
	marks := guard.Marks(cfg.paths().Guard())
	m := &machine{paths: cfg.paths(), engine: &engine{}, groups: marked{cgroups{tree}, marks}}
	if err := errors.Join(m.removeAll(ctx), removeBuildGroups(ctx, m.groups.cgroups), guard.Dismiss(ctx, guardLock(cfg.HostID), marks)); err != nil {
		return errors.Join(err, tree.Close())
	}
	// After the VMs: a namespace whose tap is open does not go away.
	err = errors.Join(fabric.Purge(ctx), tree.Close(), os.RemoveAll(cfg.RunDir), os.RemoveAll(cfg.paths().Overlays()), os.RemoveAll(cfg.paths().Captures()), os.RemoveAll(cfg.paths().Kept()))
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if l == nil {
		return nil
	}
	for _, rec := range l.Boxes() {
		if err := l.Bury(rec.ID, rec.Generation, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// openForPurge takes the ledger's lock, which a running daemon holds. A ledger
// that cannot be read does not stand in the way: it is moved aside.
func openForPurge(cfg Config, log *slog.Logger) (*ledger.Ledger, error) {
	path := cfg.paths().Ledger()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	l, err := ledger.Open(path, cfg.HostID)
	switch {
	case errors.Is(err, ledger.ErrInUse):
		return nil, fmt.Errorf("the host's daemon is running: stop it first, then purge: %w", err)
	case errors.Is(err, ledger.ErrCorrupt):
		log.Warn("the ledger cannot be read and is moved aside", "to", path+".corrupt", "error", err)
		return nil, os.Rename(path, path+".corrupt")
	}
	return l, err
}

// removeAll kills and removes everything that is there for boxes.
func (m *machine) removeAll(ctx context.Context) error {
	ids, err := m.Traces(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(16)
	for _, id := range ids {
		group.Go(func() error {
			_, err := m.KillVMM(ctx, id)
			if err == nil {
				err = m.RemoveCgroup(ctx, id)
			}
			if err == nil {
				err = m.RemoveFiles(id)
			}
			return err
		})
	}
	return group.Wait()
}
