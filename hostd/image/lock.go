package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
)

// lockPoll is the interval of attempts to take a lock: the kernel's own wait cannot
// be ended by a context.
const lockPoll = 100 * time.Millisecond

// lock takes a lock that all users of the directory share. The returned function
// releases it; so does the end of the process.
func (s *Store) lock(ctx context.Context, name string) (func(), error) {
	f, err := os.OpenFile(s.path(locksDir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("template store: %w", err)
	}
	for {
		ok, err := tryLock(f)
		if ok {
			return func() { f.Close() }, nil
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("template store: lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

const sweepLock = "sweep"

// lockName is the file in each entry of tmp that its owner keeps locked.
const lockName = ".lock"

// workDir creates a directory for unfinished work. The returned function removes it.
func (s *Store) workDir(ctx context.Context) (string, func(), error) {
	// Keep sweep away, which would remove a directory that is not locked yet.
	unlock, err := s.lock(ctx, sweepLock)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(s.path(tmpDir), "")
	if err != nil {
		return "", nil, fmt.Errorf("template store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		_, err = tryLock(f)
	}
	if err != nil {
		f.Close()
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("template store: %w", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		f.Close()
	}, nil
}

// sweep removes the work of daemons that have ended, after it has ended their VMs.
func (s *Store) sweep(ctx context.Context) error {
	unlock, err := s.lock(ctx, sweepLock)
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(s.path(tmpDir))
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		dir := s.path(tmpDir, e.Name())
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue // removed meanwhile
		}
		if ok, _ := tryLock(f); ok {
			s.log.Info("unfinished build removed", "dir", dir)
			failed = errors.Join(failed, killLeft(ctx, filepath.Join(dir, vmDir)), os.RemoveAll(dir))
		}
		f.Close()
	}
	return failed
}

// killLeft ends a VMM that outlived the daemon that started it.
func killLeft(ctx context.Context, dir string) error {
	p, err := vmm.Adopt(ctx, dir)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	return p.Kill(ctx)
}
