package capture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/vmm"
)

// A saved state is a directory with the files of vm.snapshot. The VMM writes them,
// and then they are taken away from its user: later readers read files of root.

// Memory is the RAM of a saved state.
func Memory(dir string) string { return filepath.Join(dir, vmm.FileMemory) }

// MakeStateDir makes an empty directory that the VMM of a user writes to.
func MakeStateDir(dir string, uid, gid int) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return nil
}

// Seal takes a directory away from the user of the VMM that wrote it: its files
// can then be handed to VMMs, and nobody can write to them. Only the named
// files stay. detach changes the state so that several VMs at once can be
// restored from it. With sync, the files are on disk when Seal returns.
func Seal(dir string, detach func(dir string) error, sync bool, names ...string) error {
	if err := seal(dir, detach, sync, names); err != nil {
		return fmt.Errorf("seal %s: %w", dir, err)
	}
	return nil
}

func seal(dir string, detach func(string) error, sync bool, names []string) error {
	if err := vmm.Reclaim(dir, names...); err != nil {
		return err
	}
	if err := detach(dir); err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		// Again, because Detach replaces files.
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

// OpenToVMMs makes the files of a saved state readable for VMMs that are handed
// them: earlier versions of hostd let one group read them.
func OpenToVMMs(dir string) error {
	for _, name := range []string{vmm.FileConfig, vmm.FileState, vmm.FileMemory} {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// HasState says whether a directory holds a saved state. It appears under its
// name as a whole.
func HasState(dir string) bool {
	for _, name := range []string{vmm.FileConfig, vmm.FileState} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || !st.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// Allocated is what a file takes on disk, 0 where there is none.
func Allocated(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
