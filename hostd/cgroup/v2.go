package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// v2 is the unified hierarchy.
type v2 struct {
	// top is the highest group that is ours to hand controllers down from:
	// the mount, or what systemd delegated.
	top  string
	base string // below top, or empty
}

var controllersV2 = []string{"cpu", "memory", "pids"}

// Replaced by the tests.
var (
	selfCgroup = "/proc/self/cgroup"
	delegated  = hasDelegateMark
)

func openV2(cfg Config, log *slog.Logger) (*v2, error) {
	h := &v2{top: cfg.Mount, base: defaultBase}
	switch root, err := delegatedRoot(cfg.Mount); {
	case cfg.Base != "":
		h.base = cfg.Base
	case cfg.Last != "" && exists(filepath.Join(cfg.Last, cfg.Host)):
		// Who has started this process does not matter to the boxes.
		if cfg.Last != h.roots()[0] {
			h.top, h.base = cfg.Last, "" // was delegated
		}
	case err != nil:
		return nil, err
	case root != "":
		h.top, h.base = root, ""
	default:
		log.Info("no cgroup was delegated to this daemon in a way that outlives its restart: groups are made below the root",
			"base", filepath.Join(h.top, h.base))
	}
	have, err := os.ReadFile(filepath.Join(h.top, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	for _, c := range controllersV2 {
		if !slices.Contains(strings.Fields(string(have)), c) {
			return nil, fmt.Errorf("controller %s is not available in %s, which has: %s", c, h.top, strings.TrimSpace(string(have)))
		}
	}
	return h, nil
}

// delegatedRoot returns the group that systemd delegated to the daemon
// (Delegate=yes), or nothing.
//
// A group that hands controllers to its children may not hold processes
// itself, and systemd starts the daemon in the very group it delegates, unless
// DelegateSubgroup= names one below it (systemd 254). Without that, a daemon
// that came back while its VMs live on could not be started there. So only a
// group above the daemon's own counts.
func delegatedRoot(mount string) (string, error) {
	_, own, err := cgroups.ParseCgroupFileUnified(selfCgroup)
	if err != nil {
		return "", fmt.Errorf("find the daemon's own cgroup: %w", err)
	}
	for dir := filepath.Dir(filepath.Join("/", own)); dir != "/"; dir = filepath.Dir(dir) {
		if path := filepath.Join(mount, dir); delegated(path) {
			return path, nil
		}
	}
	return "", nil
}

// hasDelegateMark looks for the attribute that systemd gives to what it
// delegates.
func hasDelegateMark(dir string) bool {
	var value [8]byte
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		if n, err := unix.Getxattr(dir, name, value[:]); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

func (h *v2) unified() bool { return true }

func (h *v2) roots() []string { return []string{filepath.Join(h.top, h.base)} }

// prepare makes the host's group and hands the controllers down to its
// children, from the top.
func (h *v2) prepare(host string) error {
	dir := h.top
	below := strings.Split(filepath.Join(h.base, host), "/")
	for _, name := range below {
		if err := handDown(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, name)
		if err := makeDir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := handDown(dir); err != nil {
		return err
	}
	// The highest group that holds boxes alone, beside that of the daemon or, where
	// nothing was delegated, beside those of everything else.
	return write(filepath.Join(h.top, below[0]), "cpu.weight", weightV2(boxesCPUs))
}

// weightV2 is the value of cpu.weight: 100 by default, 1 to 10,000.
func weightV2(cpus float64) string { return weight(cpus, 100, 10_000) }

// handDown gives the children of dir the controllers they lack.
func handDown(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	var add []string
	for _, c := range controllersV2 {
		if !slices.Contains(strings.Fields(string(has)), c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	if err := write(dir, "cgroup.subtree_control", strings.Join(add, " ")); err != nil {
		return fmt.Errorf("enable controllers: %w", err)
	}
	return nil
}

func (h *v2) limit(dirs []string, l Limits) error {
	dir := dirs[0]
	period := strconv.FormatInt(cpuPeriod.Microseconds(), 10)
	quota, burst := "max", "0"
	if l.CPUs > 0 {
		quota = strconv.FormatInt(l.quota().Microseconds(), 10)
		burst = quota
	}
	return errors.Join(
		// The kernel refuses a burst above the quota, so it is cleared first.
		// Kernels before 5.14 have none.
		writeIfThere(dir, "cpu.max.burst", "0"),
		write(dir, "cpu.weight", weightV2(l.CPUs)),
		write(dir, "cpu.max", quota+" "+period),
		writeIfThere(dir, "cpu.max.burst", burst),
		write(dir, "memory.max", limited(l.MemoryBytes, "max")),
		// A VM of several processes ends as a whole, not by losing one.
		writeIfThere(dir, "memory.oom.group", "1"),
		write(dir, "pids.max", limited(l.PIDs, "max")),
	)
}

func (h *v2) stats(dirs []string) (s Stats, err error) {
	dir := dirs[0]
	if s.MemoryBytes, err = readInt(dir, "memory.current"); err != nil {
		return s, err
	}
	if s.OOMKills, err = readField(dir, "memory.events", "oom_kill"); err != nil {
		return s, err
	}
	if s.PIDs, err = readInt(dir, "pids.current"); err != nil {
		return s, err
	}
	s.CPU, err = h.cpu(dirs)
	return s, err
}

func (h *v2) cpu(dirs []string) (time.Duration, error) {
	usec, err := readField(dirs[0], "cpu.stat", "usage_usec")
	return time.Duration(usec) * time.Microsecond, err
}

// kill kills the group in one call; kernels before 5.14 take the long way.
func (h *v2) kill(dirs []string) error {
	err := write(dirs[0], "cgroup.kill", "1")
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return killEach(dirs, dirs[0])
}
