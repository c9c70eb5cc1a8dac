package vmm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/timescale"
)

// releaseTimeout bounds the wait for the last files of a dead VMM to close.
var releaseTimeout = timescale.Limit(5 * time.Second)

// openPidfd returns a descriptor of a process that the runtime's poller can wait
// on, so that waiting for many VMMs does not cost a thread each.
func openPidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open pidfd of process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", pid)), nil
}

// waitPidfd returns when the process has ended, or the descriptor was closed.
func waitPidfd(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return err != nil || n > 0
		}
	})
}

// awaitLock waits until no process holds the lock that a VMM keeps on a file beside
// its socket (acquire_api_socket_lock in vmm/src/api/http/mod.rs: an open file
// description lock on the whole file). The file itself may stay behind.
func awaitLock(ctx context.Context, path string) error {
	f, err := openPlain(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	delay := 200 * time.Microsecond
	for {
		held, err := locked(f)
		if err != nil || !held {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is locked: %w", path, ctx.Err())
		case <-time.After(delay):
		}
		delay = min(2*delay, 10*time.Millisecond)
	}
}

func locked(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("query lock of %s: %w", f.Name(), err)
	}
	return lk.Type != unix.F_UNLCK, nil
}
