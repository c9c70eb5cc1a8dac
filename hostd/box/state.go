package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/vmm"
)

// A saved state is a directory with the files of vm.snapshot, written by the
// VMM and then taken away from it: whatever reads it later, reads what is root's.

// memoryOf is the RAM of a saved state.
func memoryOf(dir string) string { return filepath.Join(dir, vmm.FileMemory) }

// makeStateDir makes an empty directory that a slot's VMM writes to.
func makeStateDir(dir string, slot Slot) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Chown(dir, slot.UID, slot.GID); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return nil
}

// seal takes a directory that a VMM wrote away from its user: what is in it can
// be handed to VMMs, and nobody writes. Of the names, only those stay. With sync,
// the files are on disk when it returns.
func (h *Host) seal(dir string, sync bool, names ...string) error {
	if err := h.sealDir(dir, sync, names); err != nil {
		return fmt.Errorf("seal %s: %w", dir, err)
	}
	return nil
}

func (h *Host) sealDir(dir string, sync bool, names []string) error {
	if err := vmm.Reclaim(dir, names...); err != nil {
		return err
	}
	if err := h.engine.Detach(dir); err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		// Again: Detach makes files anew.
		if err := os.Chmod(path, 0o644); errors.Is(err, os.ErrNotExist) {
			continue // RAM that is a file of its own
		} else if err != nil {
			return err
		}
		if sync {
			if err := atomicfile.Sync(path); err != nil {
				return err
			}
		}
	}
	if sync {
		return atomicfile.Sync(dir)
	}
	return nil
}

// openToVMMs lets VMMs that are handed the files of a saved state read them, where
// an earlier daemon let one group do so.
func openToVMMs(dir string) error {
	for _, name := range []string{vmm.FileConfig, vmm.FileState, vmm.FileMemory} {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// hasState says whether a directory holds a saved state. It appears under its
// name as a whole.
func hasState(dir string) bool {
	for _, name := range []string{vmm.FileConfig, vmm.FileState} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || !st.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// room refuses what would not leave the headroom free.
func (h *Host) room(need int64) error {
	return h.MakeRoom(func() (missing int64, err error) {
		free, err := h.diskFree(h.paths.Data)
		if err != nil {
			return 0, fmt.Errorf("look for free disk space: %w", err)
		}
		headroom := int64(h.cfg.DiskHeadroomMB) << 20
		if missing = headroom + need - free; missing > 0 {
			err = fmt.Errorf("%w: %d MB are free under %s, up to %d are needed and %d must stay free",
				hosterr.ErrNoDisk, free>>20, h.paths.Data, need>>20, headroom>>20)
		}
		return missing, err
	})
}

// allocated is what a file takes on disk, 0 where there is none.
func allocated(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
