// Package preflight checks a machine before a stack is built or started on it. It
// refuses with one sentence what would fail later with many. It imports little,
// because it is compiled and run before everything else.
package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What a stack requires of its machine.
const (
	// Two hosts, each with one sandbox of 512 MB and its emulator, and a gigabyte for
	// the replicas, the daemons and what else the machine does. The remainder is divided
	// between the hosts, and a database or an app takes 1.2 GB of one.
	needMemoryMB = 3 * 1024
	// The base template takes about 2 GB while it is built, and the size of its
	// root file system and RAM afterwards.
	needDiskMB       = 6 * 1024
	needDiskCachedMB = 3 * 1024 // the headroom below, and half a gigabyte for a sandbox
	// A host refuses a sandbox whose disk (10 GB for base) can never fit next to
	// its headroom of 2 GB.
	needDiskSizeMB = 12 * 1024
)

// Refusal is a sentence for a person that says why the stack does not start.
type Refusal struct{ Sentence string }

// Error implements error.
func (r *Refusal) Error() string { return r.Sentence }

// Refusef returns a Refusal.
func Refusef(format string, args ...any) error {
	return &Refusal{Sentence: fmt.Sprintf(format, args...)}
}

// IsRefusal reports whether err is a Refusal, to be shown without context.
func IsRefusal(err error) bool {
	var r *Refusal
	return errors.As(err, &r)
}

// Machine is what is checked; tests replace it.
type Machine struct {
	goarch       string
	uid          int
	memoryMB     func() (int, error)
	diskMB       func(dir string) (int, error)
	diskSizeMB   func(dir string) (int, error)
	deviceExists func(path string) bool
	env          func(name string) string
}

// This is the machine on which the program runs.
var This = Machine{
	goarch:     runtime.GOARCH,
	uid:        os.Geteuid(),
	memoryMB:   AvailableMemoryMB,
	diskMB:     freeDiskMB,
	diskSizeMB: diskSizeMB,
	deviceExists: func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	},
	env: os.Getenv,
}

// Check refuses a machine that can never run a stack with its caches, disks and
// programs in the given directories. They need not exist yet.
func (m Machine) Check(cache, bin string) error {
	if m.uid != 0 {
		return Refusef("make up needs root (network namespaces, taps, cgroups): run it with sudo")
	}
	if m.goarch != "amd64" {
		return Refusef("Berth's guests are x86-64 and this machine is %s: Berth cannot run here", m.goarch)
	}
	if !m.deviceExists("/dev/net/tun") {
		return Refusef("/dev/net/tun is missing, and guests have no network without it: modprobe tun, or give this container the device")
	}
	return m.checkReach(cache, bin)
}

// CheckRoom refuses a machine that has too little memory or disk for a stack now.
// What runs of an earlier stack takes some of both.
func (m Machine) CheckRoom(cache string) error {
	free, err := m.memoryMB()
	if err != nil {
		return err
	}
	if free < needMemoryMB {
		return Refusef("too little memory: %d MB are available and %d MB are needed (two hosts with a sandbox of 512 MB each)", free, needMemoryMB)
	}
	need := needDiskMB
	// The directories of templates are there from the beginning of the first build.
	if _, err := os.Stat(filepath.Join(cache, "templates", "names", "base.json")); err == nil {
		need = needDiskCachedMB
	}
	disk, err := m.diskMB(existing(cache))
	if err != nil {
		return err
	}
	if disk < need {
		return Refusef("too little disk: %d MB are free below %s and %d MB are needed (kernel, base template, sandboxes' disks)", disk, cache, need)
	}
	size, err := m.diskSizeMB(existing(cache))
	if err != nil {
		return err
	}
	if size < needDiskSizeMB {
		return Refusef("too little disk: the file system of %s has %d MB in all and %d MB are needed (a sandbox's disk may grow to 10 GB)", cache, size, needDiskSizeMB)
	}
	return nil
}

// checkReach refuses paths that VMMs, which run as unprivileged users, could not
// open.
func (m Machine) checkReach(cache, bin string) error {
	for _, dir := range []string{cache, bin} {
		if closed := closedDir(dir); closed != "" {
			return Refusef("VMMs run as users of their own, and may not pass through %s to %s: run scripts/place as root, or chmod o+x %s", closed, dir, closed)
		}
	}
	for name, mode := range map[string]os.FileMode{"BERTH_VMM": 0o001, "BERTH_KERNEL": 0o004} {
		path := m.env(name)
		if path == "" {
			continue
		}
		if name == "BERTH_VMM" && !strings.Contains(path, "/") {
			found, err := exec.LookPath(path)
			if err != nil {
				return Refusef("BERTH_VMM is %q: there is no such program on the PATH", path)
			}
			path = found
		}
		fi, err := os.Stat(path)
		if err != nil {
			return Refusef("%s names %s, which cannot be read: %s", name, path, errors.Unwrap(err))
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if closed := closedDir(filepath.Dir(path)); closed != "" {
			return Refusef("%s names %s, and VMMs, which run as users of their own, may not pass through %s: put it elsewhere, such as in /usr/local/bin", name, path, closed)
		}
		if fi.Mode().Perm()&mode == 0 {
			return Refusef("%s names %s, which VMMs, users of their own, may not open: chmod a+rx %s", name, path, path)
		}
	}
	return nil
}

// closedDir returns the first directory on a path that not every user may enter,
// or "". Directories that do not exist yet count as open.
func closedDir(path string) string {
	for dir := path; ; dir = filepath.Dir(dir) {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() && fi.Mode().Perm()&0o001 == 0 {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// Resolve returns a clone's bin or .berth with the links resolved that
// scripts/place may have made, because VMMs cannot follow them.
func Resolve(root, name string) string {
	dir := filepath.Join(root, name)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// AvailableMemoryMB returns MemAvailable: memory that can be used without
// swapping.
func AvailableMemoryMB() (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kb, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(kb), " kB"))
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %w", err)
			}
			return n / 1024, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

func freeDiskMB(dir string) (int, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int(s.Bavail * uint64(s.Bsize) >> 20), nil
}

// diskSizeMB returns the total size, free and used.
func diskSizeMB(dir string) (int, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("size of %s: %w", dir, err)
	}
	return int((s.Blocks - (s.Bfree - s.Bavail)) * uint64(s.Bsize) >> 20), nil
}
