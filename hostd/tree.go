package hostd

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/cgroup"
)

// Where a daemon has the cgroups of its boxes depends on who has started it: in what
// systemd delegates to its unit, or below the root. A guard, a purge and the next daemon
// may have been started by somebody else, so it is kept in the runtime directory, which
// lasts as long as cgroups do.
func treeRecord(runDir string) string { return filepath.Join(runDir, "cgroup") }

// treeConfig is where the groups of a host are.
func treeConfig(runDir, hostID string) cgroup.Config {
	last, err := os.ReadFile(treeRecord(runDir))
	if err != nil {
		last = nil // it is where it would be made
	}
	return cgroup.Config{Host: hostID, Last: string(last)}
}

// keepTree remembers where they are; empty if there is one place only.
func keepTree(runDir, root string) error {
	path := treeRecord(runDir)
	if root == "" {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if last, err := os.ReadFile(path); err == nil && string(last) == root {
		return nil
	}
	return atomicfile.Swap(path, []byte(root), 0o600)
}

// openTree opens the cgroups of the daemon's boxes. A runtime directory that is full
// keeps no daemon from them.
func openTree(cfg Config, log *slog.Logger) (*cgroup.Tree, error) {
	tree, err := cgroup.Open(treeConfig(cfg.RunDir, cfg.HostID), log)
	if err != nil {
		return nil, err
	}
	if err := keepTree(cfg.RunDir, tree.Root()); err != nil {
		log.Warn("where the cgroups are cannot be kept, a purge from elsewhere may not find them", "directory", tree.Root(), "error", err)
	}
	return tree, nil
}
