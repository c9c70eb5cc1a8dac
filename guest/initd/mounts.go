package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	options                string
}

// mounts are what programs expect beside /dev, /proc, /sys and /run, which the
// initramfs already mounted. /tmp stays on the disk: RAM is the scarcer of the two.
var mounts = []mountPoint{
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "nsdelegate"},
}

// directories are those that a minimal image may lack.
var directories = []struct {
	path string
	mode os.FileMode
}{
	{"/tmp", os.ModeSticky | 0o777},
	{"/var/tmp", os.ModeSticky | 0o777},
	{"/run/lock", os.ModeSticky | 0o777},
	{"/run/sshd", 0o755}, // sshd refuses to start without it
	{"/var/log/berth", 0o755},
}

var deviceLinks = map[string]string{
	"/dev/fd":     "/proc/self/fd",
	"/dev/stdin":  "/proc/self/fd/0",
	"/dev/stdout": "/proc/self/fd/1",
	"/dev/stderr": "/proc/self/fd/2",
	"/dev/ptmx":   "pts/ptmx",
}

// settings are kernel parameters whose defaults suit a desktop of the nineties.
var settings = map[string]string{
	"fs/inotify/max_user_instances":       "1024",
	"fs/inotify/max_user_watches":         "262144",
	"net/ipv4/ping_group_range":           "0 2147483647",
	"net/ipv4/ip_unprivileged_port_start": "0",
	"vm/compaction_proactiveness":         "0", // it wakes twice a second for nothing
	"vm/max_map_count":                    "262144",
}

// prepare mounts and makes all of the above. It goes on after a failure, so
// that a guest with one odd mount can still be reached, and returns them all.
func prepare() error {
	var failed error
	note := func(err error) { failed = errors.Join(failed, err) }
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			note(err)
			continue
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			note(fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err))
		}
	}
	for link, target := range deviceLinks {
		if old, err := os.Readlink(link); err == nil && old == target {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			note(err)
		}
		if err := os.Symlink(target, link); err != nil {
			note(err)
		}
	}
	for _, d := range directories {
		if err := os.MkdirAll(d.path, 0o755); err != nil {
			note(err)
			continue
		}
		// Unchanged modes are not set again: each would be copied up to the overlay.
		if st, err := os.Stat(d.path); err == nil && st.Mode()&(os.ModePerm|os.ModeSticky) != d.mode {
			note(os.Chmod(d.path, d.mode))
		}
	}
	for name, value := range settings {
		err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			note(err)
		}
	}
	note(setLimits())
	return failed
}

// setLimits raises what every later process inherits: the hard limit on open
// files (the kernel's own default, 4,096, is too low for servers).
func setLimits() error {
	limit := unix.Rlimit{Cur: 1024, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit on open files: %w", err)
	}
	return nil
}
