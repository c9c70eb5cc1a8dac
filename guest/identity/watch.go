package identity

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// watch tells whether a name came, went or changed in the directories that an
// identity looks into: for its links, and for hooks. Asking is a fraction of the
// looking, which walks a path through the kernel for the first time in a guest
// that was restored a moment ago.
type watch struct {
	fd   int // of inotify; -1: everything may have changed
	dirs []string
	buf  [4 << 10]byte
}

func newWatch(root string) *watch {
	w := &watch{fd: -1}
	for _, dir := range []string{etcDir, sshDir, filepath.Dir(guestapi.HookDir), guestapi.HookDir} {
		w.dirs = append(w.dirs, root+dir)
	}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		w.fd = fd
		w.again()
	}
	return w
}

// again watches all directories that are there; one that comes later changes the
// one that it is in. One event a directory is enough, and all that a tenant can
// make pile up.
func (w *watch) again() {
	const names = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	for _, dir := range w.dirs {
		_, err := unix.InotifyAddWatch(w.fd, dir, names|unix.IN_ONLYDIR|unix.IN_ONESHOT)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			_ = unix.Close(w.fd)
			w.fd = -1
			return
		}
	}
}

// changed reports whether anything did since it was last asked. What happens
// from then on is told the next time.
func (w *watch) changed() bool {
	if w.fd < 0 {
		return true
	}
	n, err := unix.Read(w.fd, w.buf[:])
	if err == unix.EAGAIN {
		return false
	}
	for err == nil && n > 0 {
		n, err = unix.Read(w.fd, w.buf[:])
	}
	w.again()
	return true
}
