package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// store is where buildah keeps images while one is built.
type store struct {
	dir     string // of User's
	root    string // where the image's files are to be: User's too, and not below dir
	driver  string
	mounted bool
}

// openStore makes both directories in dir, which is root's.
//
// Layers are cheap with overlayfs alone: without, each is a copy of all below it. The
// guest's own root is an overlay, on which there can be no other, so the store is put
// beside it on the disk that it writes to.
func openStore(dir string, uid, gid int) (*store, error) {
	s := &store{dir: filepath.Join(dir, "store"), root: filepath.Join(dir, "root"), driver: "overlay"}
	_ = unix.Unmount(s.dir, unix.MNT_DETACH) // of a build that was cut off; mostly there is none
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	for path, mode := range map[string]os.FileMode{dir: 0o711, s.dir: 0o700, s.root: 0o755} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, mode); err != nil {
			return nil, err
		}
	}
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return nil, err
	}
	if on.Type == unix.OVERLAYFS_SUPER_MAGIC {
		if err := mountDisk(filepath.Join(dir, "disk"), s.dir); err != nil {
			s.driver = "vfs" // slower, and no failure
		} else {
			s.mounted = true
		}
	}
	for _, path := range []string{s.dir, s.root, filepath.Join(s.dir, "tmp"), filepath.Join(s.dir, "run")} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, errors.Join(err, s.close())
		}
		if err := os.Lchown(path, uid, gid); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// options are buildah's.
func (s *store) options() []string {
	return []string{"--root", filepath.Join(s.dir, "images"), "--runroot", filepath.Join(s.dir, "run"), "--storage-driver", s.driver}
}

// close deletes what buildah has kept, but not the image's files.
func (s *store) close() error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
	}
	if s.mounted {
		err = errors.Join(err, unix.Unmount(s.dir, unix.MNT_DETACH))
	}
	return err
}

// images is the store's directory on the guest's disk, beside those of the overlay.
const images = "images"

// mountDisk mounts a directory of the disk that the guest's root writes to. The disk
// itself is mounted only as long as that takes, at a directory that is root's.
func mountDisk(disk, to string) error {
	device, err := device()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(disk, 0o700); err != nil {
		return err
	}
	// The kernel has it mounted already, as ext4, and gives the same file system again.
	if err := unix.Mount(device, disk, "ext4", unix.MS_NOATIME|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	if _, err := os.Stat(filepath.Join(disk, "upper")); err != nil {
		return fmt.Errorf("%s is not the disk of the root: %w", device, err)
	}
	from := filepath.Join(disk, images)
	if err := os.RemoveAll(from); err != nil { // of a build that was cut off
		return err
	}
	if err := os.Mkdir(from, 0o700); err != nil {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

// device is the disk that the guest's root writes to: the one after those that are only
// read, whose number is on the kernel's command line (guest/boot).
func device() (string, error) {
	raw, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return "", err
	}
	lower := 1
	for word := range strings.FieldsSeq(string(raw)) {
		if value, ok := strings.CutPrefix(word, "berth.lower="); ok {
			if lower, err = strconv.Atoi(value); err != nil || lower < 1 || lower > 25 {
				return "", fmt.Errorf("berth.lower=%.20q", value)
			}
		}
	}
	return "/dev/vd" + string(rune('a'+lower)), nil
}
