package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// v1 is the older interface: one hierarchy a controller, or one for several. Hosts
// in production have version 2. But machines without systemd, such as microVMs in
// which tests run, mount cpu, memory and pids under version 1, and a controller is
// in one version only. Limits must hold there as well, above all that daemons come
// before guests (boxesCPUs): without it busy guests cost replicas their leadership
// and tests their time limits.
type v1 struct {
	base string
	// dirOf is the mount of each controller, with symbolic links resolved: cpu
	// and cpuacct are often one.
	dirOf map[string]string
	dirs  []string // each of them once
}

var controllersV1 = []string{"cpu", "cpuacct", "memory", "pids"}

func openV1(cfg Config) (*v1, error) {
	h := &v1{base: cfg.Base, dirOf: make(map[string]string)}
	if h.base == "" {
		h.base = defaultBase
	}
	for _, c := range controllersV1 {
		dir, err := filepath.EvalSymlinks(filepath.Join(cfg.Mount, c))
		if err != nil {
			return nil, fmt.Errorf("controller %s of cgroup version 1: %w", c, err)
		}
		h.dirOf[c] = dir
		if !slices.Contains(h.dirs, dir) {
			h.dirs = append(h.dirs, dir)
		}
	}
	return h, nil
}

func (h *v1) unified() bool { return false }

func (h *v1) roots() []string {
	out := make([]string, len(h.dirs))
	for i, dir := range h.dirs {
		out[i] = filepath.Join(dir, h.base)
	}
	return out
}

func (h *v1) prepare(host string) error {
	for _, root := range h.roots() {
		if err := os.MkdirAll(filepath.Join(root, host), 0o755); err != nil {
			return err
		}
	}
	return write(filepath.Join(h.dirOf["cpu"], h.base), "cpu.shares", sharesV1(boxesCPUs))
}

// sharesV1 is the value of cpu.shares: 1024 by default, at most 2^18.
func sharesV1(cpus float64) string { return weight(cpus, 1024, 1<<18) }

// dir picks the controller's directory out of a group's.
func (h *v1) dir(dirs []string, controller string) string {
	return dirs[slices.Index(h.dirs, h.dirOf[controller])]
}

func (h *v1) limit(dirs []string, l Limits) error {
	cpu, memory, pids := h.dir(dirs, "cpu"), h.dir(dirs, "memory"), h.dir(dirs, "pids")
	quota, burst := int64(-1), int64(0)
	if l.CPUs > 0 {
		quota = l.quota().Microseconds()
		burst = quota
	}
	// The kernel refuses a burst above the quota, so it is cleared first.
	return errors.Join(
		write(cpu, "cpu.shares", sharesV1(l.CPUs)),
		writeIfThere(cpu, "cpu.cfs_burst_us", "0"),
		write(cpu, "cpu.cfs_period_us", strconv.FormatInt(cpuPeriod.Microseconds(), 10)),
		write(cpu, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)),
		writeIfThere(cpu, "cpu.cfs_burst_us", strconv.FormatInt(burst, 10)),
		write(memory, "memory.limit_in_bytes", limited(l.MemoryBytes, "-1")),
		write(pids, "pids.max", limited(l.PIDs, "max")),
	)
}

func limited(n int64, unlimited string) string {
	if n == 0 {
		return unlimited
	}
	return strconv.FormatInt(n, 10)
}

func (h *v1) stats(dirs []string) (s Stats, err error) {
	if s.MemoryBytes, err = readInt(h.dir(dirs, "memory"), "memory.usage_in_bytes"); err != nil {
		return s, err
	}
	if s.OOMKills, err = readField(h.dir(dirs, "memory"), "memory.oom_control", "oom_kill"); err != nil {
		return s, err
	}
	if s.PIDs, err = readInt(h.dir(dirs, "pids"), "pids.current"); err != nil {
		return s, err
	}
	s.CPU, err = h.cpu(dirs)
	return s, err
}

func (h *v1) cpu(dirs []string) (time.Duration, error) {
	ns, err := readInt(h.dir(dirs, "cpuacct"), "cpuacct.usage")
	return time.Duration(ns), err
}

// kill has no one call for it.
func (h *v1) kill(dirs []string) error { return killEach(dirs, h.dir(dirs, "pids")) }

// killEach sends SIGKILL to the processes that are in the directories now, one by
// one. Meanwhile the group may start nothing more: limiter is the directory with
// the limit of processes.
func killEach(dirs []string, limiter string) error {
	if err := write(limiter, "pids.max", "0"); err != nil && !gone(err) {
		return err
	}
	pids, err := (&Group{dirs: dirs}).PIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		// Between the list and here, a pid may have come to mean a process of
		// someone else: the descriptor holds on to one, and it is killed only
		// if that one is in the group.
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		err = func() error {
			defer unix.Close(fd)
			now, err := (&Group{dirs: dirs}).PIDs()
			if err != nil || !slices.Contains(now, pid) {
				return err
			}
			return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}()
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}
