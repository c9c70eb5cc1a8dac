package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// runEtc holds the files of the identity. It is on a tmpfs: a guest that was
// restored a moment ago writes there in a fraction of the time that its disk
// would take, and neither a full disk nor the template's image has a part in it.
const runEtc = guestapi.RunDir + "/etc"

// linked are the files that are links into runEtc, with what stands in them
// until the first identity. Paths begin at the files' root.
var linked = []struct{ path, name, initial string }{
	{"/etc/hostname", "hostname", "localhost\n"},
	{"/etc/hosts", "hosts", defaultHosts},
	{"/etc/machine-id", "machine-id", ""},
	{"/etc/resolv.conf", "resolv.conf", "nameserver " + guestapi.GatewayAddr + "\n"},
}

// files are the open files of runEtc, by name. Overwriting a file that is open
// and has its page is the shortest way through the kernel.
type files struct {
	root   string // "" in a guest
	dir    string // of the files
	opened []*file
}

type file struct {
	name   string
	fd     int
	size   int64
	linked bool // its path was the link to it when that was last looked at
}

// prepareFiles makes the links, once for a root file system, and the files, once
// for a boot. What /etc/hosts of the image says is kept.
func prepareFiles(root string) (*files, error) {
	f := &files{root: root, dir: root + runEtc + "/"}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, err
	}
	for _, l := range linked {
		content := []byte(l.initial)
		if !f.isLinked(l.path, l.name) {
			if old, err := os.ReadFile(root + l.path); err == nil && l.name == "hosts" && len(bytes.TrimSpace(old)) > 0 {
				content = old
			}
			if err := link(root+l.path, f.dir+l.name); err != nil {
				return nil, err
			}
		}
		opened, err := f.open(l.name, 0o644)
		if err == nil && opened.size == 0 {
			err = opened.set(content)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// open returns the file of that name, which it makes if it must.
func (f *files) open(name string, mode uint32) (*file, error) {
	for _, opened := range f.opened {
		if opened.name == name {
			return opened, nil
		}
	}
	path := f.dir + name
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	opened := &file{name: name, fd: fd, size: size}
	f.opened = append(f.opened, opened)
	return opened, nil
}

// set replaces the content. It is one write of less than a page for all but an
// /etc/hosts that the tenant made long; a reader never finds the file empty.
func (f *file) set(data []byte) error {
	n, err := unix.Pwrite(f.fd, data, 0)
	if err == nil && n < len(data) {
		err = unix.ENOSPC
	}
	if err != nil {
		return err
	}
	if int64(n) < f.size {
		err = unix.Ftruncate(f.fd, int64(n))
	}
	f.size = int64(n)
	return err
}

// link makes path a link to target, in the place of whatever it is.
func link(path, target string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := tempName(path)
	_ = os.Remove(temp)
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// isLinked says whether a path is still the link to the file of that name.
func (f *files) isLinked(path, name string) bool {
	var buf [256]byte
	n, err := unix.Readlink(f.root+path, buf[:])
	return err == nil && string(buf[:n]) == f.dir+name
}

// WriteFile puts data in a file so that a reader sees the old content or the
// new. A file that already is as asked is left alone: writing it would copy it
// into the overlay, and a guest whose disk is full must still wake. On a full
// disk a file is overwritten in place, which needs no room.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if same(path, data, mode) {
		return nil
	}
	err := replace(path, data, mode)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if overwrite(path, data, mode) == nil {
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

func overwrite(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	return f.Chmod(mode)
}
