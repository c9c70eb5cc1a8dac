package hostd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var errHostInUse = errors.New("another hostd is at work for this host")

// lockHost takes the lock of a host on this machine. The ledger's lock does not
// do: cgroups, slots and the runtime directory are named after the host, whatever
// data directory its daemon has. A purge removes the lock with its directory, so
// both are made again for each try.
func lockHost(c Config) (*os.File, error) {
	for {
		if err := os.MkdirAll(c.RunDir, 0o711); err != nil {
			return nil, fmt.Errorf("lock host %s: %w", c.HostID, err)
		}
		lock, err := lockPurge(c)
		if lock != nil || err != nil {
			return lock, err
		}
	}
}

// lockPurge is lockHost for a purge. It returns nil where there is no runtime
// directory: then no daemon of the host runs.
func lockPurge(c Config) (*os.File, error) {
	path := filepath.Join(c.RunDir, "host.lock")
	lock, err := lockFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // nothing to lock is no error
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("%w, its data directory may be another than %s: %w", errHostInUse, c.DataDir, err)
	case err != nil:
		return nil, err
	case !isAt(lock, path): // a purge removed it between our open and our lock
		return nil, lock.Close()
	}
	return lock, nil
}
