package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteFile puts data in a file so that a reader sees the old content or the
// new. A file that has the content already is not written: that would copy it
// into the overlay, and a guest whose disk is full must still wake. On a full
// disk a file is overwritten in place, which needs no room.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if same(path, data, mode) {
		return nil
	}
	err := replace(path, data, mode)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if _, e := os.Lstat(path); e == nil && overwrite(path, data, mode) == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func same(path string, data []byte, mode os.FileMode) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != mode || st.Size() != int64(len(data)) {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, data)
}

// replace writes beside the file and renames. There is no fsync: the guest's
// files and its RAM are kept or lost together, and a lost machine writes its
// identity anew when it boots.
func replace(path string, data []byte, mode os.FileMode) error {
	temp := tempName(path)
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask, and whoever left the file there
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".berth")
}

// overwrite puts data in the place of a file's content by one write, so that a
// reader never finds the file empty. It does not block, even on a pipe.
func overwrite(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	var st os.FileInfo
	if err == nil {
		st, err = f.Stat()
	}
	// A file that does not change raises no inotify event.
	if err == nil && st.Size() > int64(len(data)) {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && st.Mode().Perm() != mode {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}
