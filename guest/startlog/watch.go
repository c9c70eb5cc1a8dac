package startlog

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookAnyway is how often the log is looked at without a sign of a change:
	// the tenant may have put another directory in the place of the watched one.
	lookAnyway = time.Second
	// lookOften is the same where the kernel has no watch left to give.
	lookOften = 200 * time.Millisecond
)

// watch waits for changes of a file that is written and renamed.
type watch struct {
	events *os.File // nil: the kernel tells of none
}

func newWatch(path string) *watch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &watch{}
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return &watch{}
	}
	return &watch{events: os.NewFile(uintptr(fd), "inotify")}
}

func (w *watch) close() {
	if w.events != nil {
		_ = w.events.Close()
	}
}

// wait returns when something may have changed, or with the context's error.
func (w *watch) wait(ctx context.Context) error {
	if w.events == nil {
		select {
		case <-ctx.Done():
		case <-time.After(lookOften):
		}
		return ctx.Err()
	}
	_ = w.events.SetReadDeadline(time.Now().Add(lookAnyway))
	defer context.AfterFunc(ctx, func() { _ = w.events.SetReadDeadline(time.Unix(1, 0)) })()
	if err := ctx.Err(); err != nil {
		return err
	}
	var buf [4 << 10]byte
	_, _ = w.events.Read(buf[:])
	return ctx.Err()
}
