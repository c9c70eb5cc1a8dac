package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Run is the guard's process: it takes over from an earlier one, and guards until ctx
// ends, or its host's runtime directory is removed. It closes the standard output and
// error once it has begun.
func Run(ctx context.Context, c Config) error {
	if err := lockMemory(); err != nil { // before it ends one that could
		return fmt.Errorf("guard: %w", err)
	}
	host, err := takeOver(ctx, c.Lock)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	defer host.Close()
	// An earlier Berth's holds no other; and it says that the host is still there.
	lock, err := takeOver(ctx, c.Marks.lock())
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	defer lock.Close()
	if err := beSilent(); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	c.watch(ctx, func() bool { return inPlace(lock) })
	return nil
}

// inPlace reports whether a file is still found at its path. Where that cannot be known
// it is taken for granted.
func inPlace(f *os.File) bool {
	own, err := f.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(f.Name())
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return os.SameFile(own, there)
}

// Dismiss ends the guard of a host that has no daemon any more, if there is one.
func Dismiss(ctx context.Context, lock string, m Marks) error {
	for _, path := range []string{lock, m.lock()} {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		lock, err := takeOver(ctx, path)
		if err != nil {
			return fmt.Errorf("end the guard: %w", err)
		}
		if err := errors.Join(os.Remove(path), lock.Close()); err != nil {
			return fmt.Errorf("end the guard: %w", err)
		}
	}
	return nil
}

// takeOver ends the process that holds a lock, and takes the lock. The kernel knows
// who holds it, and releases it with that process.
func takeOver(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if err := endHolder(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}

// endHolder kills the process that holds a lock. Its number is looked up again once a
// descriptor holds on to the process: until then it may come to mean another.
func endHolder(f *os.File) error {
	pid, err := holder(f)
	if err != nil || pid == 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	if now, err := holder(f); err != nil || now != pid {
		return err
	}
	return ignoreGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// holder returns the process that keeps us from a lock, 0 if none does.
func holder(f *os.File) (int, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("look who holds %s: %w", f.Name(), err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

// beSilent lets go of what a daemon may have given: a write could wait for a disk.
func beSilent() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("close descriptor %d: %w", fd, err)
		}
	}
	return nil
}
