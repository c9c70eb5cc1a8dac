package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/proc"
)

func (c *Cloner) chown(path string) error {
	who := c.User
	if who == "" {
		who = c.Runner.User
	}
	if who == "" || os.Getuid() != 0 {
		return nil
	}
	u, err := proc.LookUpUser(who)
	if err != nil {
		return err
	}
	return os.Lchown(path, int(u.UID), int(u.GID))
}

// watchPause is between two looks at the disk.
const watchPause = 250 * time.Millisecond

// watch ends a context when the disk of dir fills by more than a source may have: twice
// its limit, for the packed and the unpacked. The returned function ends it.
func watch(ctx context.Context, dir string, l Limits, stop context.CancelCauseFunc) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	before, beforeFiles := used(dir)
	go func() {
		defer close(done)
		tick := time.NewTicker(watchPause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			now, files := used(dir)
			if now-before > 2*l.bytes() {
				stop(fmt.Errorf("%w: it takes more than %d MB of disk", ErrRefused, 2*l.bytes()>>20))
			}
			if files-beforeFiles > 2*int64(l.files()) {
				stop(fmt.Errorf("%w: it has more than %d files", ErrRefused, l.files()))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// used returns the bytes and files of dir's disk that are in use.
func used(dir string) (size, files int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Files - st.Ffree)
}

// Give gives a tree to a user, and takes what it must not have: bits that make a
// program run as its owner. It counts what it sees against the limits.
func Give(dir, user string, l Limits) error {
	u, err := proc.LookUpUser(user)
	if err != nil {
		return err
	}
	files, size := 0, int64(0)
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files++
		if info.Mode().IsRegular() {
			size += info.Size()
		}
		if err := l.check(files, size/2); err != nil { // a clone has its pack beside its files
			return err
		}
		if os.Getuid() == 0 {
			if err := os.Lchown(path, int(u.UID), int(u.GID)); err != nil {
				return err
			}
		}
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			return nil
		case !mode.IsRegular() && !mode.IsDir():
			return fmt.Errorf("%w: %s is no file", ErrRefused, e.Name())
		case mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
			return os.Chmod(path, mode.Perm())
		}
		return nil
	})
}

// Replace puts a directory in the place of another.
func Replace(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove the former source: %w", err)
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(fmt.Errorf("put the source in its place: %w", err), os.MkdirAll(to, 0o755))
	}
	return os.Chmod(to, 0o755)
}
