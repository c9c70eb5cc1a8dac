// Package cgroup confines what runs for a box: CPU time, memory and the number
// of processes. It knows both versions of the kernel's control groups.
//
// A box's group is <base>/<host>/<box>, in each hierarchy there is. Like a
// network slot it is known by its name, made by Ensure, found again by List,
// and taken away by Remove; nothing about it is remembered elsewhere.
//
// The managers of containerd/cgroups are not used: they set no CPU burst, start
// nothing inside a group, kill by pids that may have come to mean others, and
// bring D-Bus and eBPF with them.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotFound: the box has no group.
var ErrNotFound = errors.New("no such cgroup")

// Limits bound one group. Zero leaves a resource without a limit.
type Limits struct {
	// CPUs is CPU time a second of time, in CPUs. What was left unused may be
	// saved up to one period of 100 ms and used in a burst. It is also the
	// group's weight: where there is less than all want, each gets its part of
	// what it is allowed.
	CPUs float64
	// MemoryBytes bounds memory and the page cache that is charged to the
	// group: see MemoryLimit.
	MemoryBytes int64
	// PIDs bounds processes and threads.
	PIDs int64
}

// cpuPeriod is the kernel's default period of the CPU quota.
const cpuPeriod = 100 * time.Millisecond

// boxesCPUs is the weight of all boxes together against the daemons, as that of a
// group with so many CPUs. Guests that compute on every CPU must not delay the
// daemons: a replica whose heartbeats are late is replaced as leader. Guests get the
// time that the daemons leave, whatever the weight.
const boxesCPUs = 0.2

// weight is the kernel's value for so many CPUs: its default for one, and within its
// bounds.
func weight(cpus float64, one, most int64) string {
	if cpus == 0 {
		cpus = 1
	}
	return strconv.FormatInt(min(max(int64(cpus*float64(one)), 1), most), 10)
}

// quota is the CPU time a period. The kernel takes no less than 1 ms.
func (l Limits) quota() time.Duration {
	return max(time.Duration(l.CPUs*float64(cpuPeriod)), time.Millisecond)
}

func (l Limits) check() error {
	if math.IsNaN(l.CPUs) || l.CPUs < 0 || l.CPUs > 100_000 || l.MemoryBytes < 0 || l.PIDs < 0 {
		return fmt.Errorf("limits %+v are out of range", l)
	}
	return nil
}

// MemoryLimit is the limit for a VM with that much RAM whose engine takes overhead
// for itself. The VMM's page cache counts too, and a capture writes a file as large
// as the RAM: dirty cache cannot be freed at once, and if nothing can, the kernel
// kills the VMM. So the limit is higher by an eighth of the RAM, and by no less than
// 128 MiB.
func MemoryLimit(ram, overhead int64) int64 {
	return ram + overhead + max(ram/8, 128<<20)
}

// Stats is what a group used.
type Stats struct {
	MemoryBytes int64         // now, with page cache
	CPU         time.Duration // since the group was made
	OOMKills    int64         // processes the kernel killed at the memory limit
	PIDs        int64         // now
}

// Config says where groups are made. Host is required.
type Config struct {
	// Host is the short id of this host: it keeps the groups of two hosts on
	// one machine apart.
	Host string
	// Mount is where the hierarchies are mounted, by default /sys/fs/cgroup.
	Mount string
	// Base is the group of the mount that holds everything of Berth. By default
	// it is the part of the tree that systemd delegated to us, or berth.
	Base string
	// Last is the Root of a Tree that held the host's groups before. They are
	// there for as long as the host has a group there.
	Last string
}

const (
	defaultMount = "/sys/fs/cgroup"
	defaultBase  = "berth"
)

// hierarchy is one version of the kernel's interface.
type hierarchy interface {
	// unified says whether it is version 2, where a group is one directory.
	unified() bool
	// roots are the directories that hold the hosts' groups, one a hierarchy.
	roots() []string
	// prepare makes the host's directories, so that groups below them can have
	// limits.
	prepare(host string) error
	limit(dirs []string, l Limits) error
	stats(dirs []string) (Stats, error)
	cpu(dirs []string) (time.Duration, error)
	// kill sends SIGKILL to everything in the group, so that nothing it starts
	// meanwhile escapes.
	kill(dirs []string) error
}

// Tree holds the groups of one host. Its methods may be called concurrently.
type Tree struct {
	host string
	h    hierarchy
}

// The kernel fills a group's directory with files when it is made, and empties
// it when it is removed. Replaced where a test plays the kernel.
var (
	makeDir   = os.Mkdir
	removeDir = os.Remove
)

var (
	validHost = regexp.MustCompile(`^[a-z0-9]{1,8}$`)
	validBox  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)
)

// Open finds out which version the machine has and makes the host's own
// directories.
func Open(cfg Config, log *slog.Logger) (*Tree, error) {
	if !validHost.MatchString(cfg.Host) {
		return nil, fmt.Errorf("open cgroups: host id %q: want 1 to 8 characters of a-z and 0-9", cfg.Host)
	}
	if cfg.Mount == "" {
		cfg.Mount = defaultMount
	}
	var st unix.Statfs_t
	if err := unix.Statfs(cfg.Mount, &st); err != nil {
		return nil, fmt.Errorf("open cgroups: look at %s: %w", cfg.Mount, err)
	}
	var h hierarchy
	var err error
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		h, err = openV2(cfg, log)
	} else {
		h, err = openV1(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("open cgroups: %w", err)
	}
	t := &Tree{host: cfg.Host, h: h}
	if err := h.prepare(cfg.Host); err != nil {
		return nil, fmt.Errorf("open cgroups: %w", err)
	}
	log.Info("cgroups are ready", "host", cfg.Host, "directories", h.roots())
	return t, nil
}

// Root is the directory that holds the hosts' groups, empty in version 1, where it is
// always the same.
func (t *Tree) Root() string {
	if !t.h.unified() {
		return ""
	}
	return t.h.roots()[0]
}

// Ensure makes the box's group, or finds it, and gives it the limits.
func (t *Tree) Ensure(ctx context.Context, id string, l Limits) (*Group, error) {
	g, err := t.group(id)
	if err == nil {
		err = l.check()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("ensure cgroup: %w", err)
	}
	if err := g.make(l); err != nil {
		return nil, fmt.Errorf("ensure cgroup: %w", err)
	}
	return g, nil
}

// Group returns the box's group, ErrNotFound if nothing of it is there.
func (t *Tree) Group(id string) (*Group, error) {
	g, err := t.group(id)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(g.dirs, exists) {
		return nil, fmt.Errorf("box %q: %w", id, ErrNotFound)
	}
	return g, nil
}

// List returns the ids of all boxes of this host that have a group, or a part
// of one, in order.
func (t *Tree) List() ([]string, error) {
	var ids []string
	for _, root := range t.h.roots() {
		entries, err := os.ReadDir(filepath.Join(root, t.host))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && validBox.MatchString(e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Remove kills what is left in the box's group, waits for its end and removes
// it. A group that is not there is no error.
func (t *Tree) Remove(ctx context.Context, id string) error {
	g, err := t.Group(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = g.Kill(ctx)
	}
	if err == nil {
		err = g.remove(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// Close removes the host's own directories, and what then is empty above them.
// With boxes in them they stay; that is no error.
func (t *Tree) Close() error {
	var errs []error
	for _, root := range t.h.roots() {
		if err := removeEmpty(filepath.Join(root, t.host)); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, removeEmpty(root)) // another host may still be in it
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close cgroups: %w", err)
	}
	return nil
}

// removeEmpty removes a group unless there is something in it.
func removeEmpty(dir string) error {
	err := removeDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

func (t *Tree) group(id string) (*Group, error) {
	if !validBox.MatchString(id) {
		return nil, fmt.Errorf("%q is no name of a box", id)
	}
	g := &Group{tree: t}
	for _, root := range t.h.roots() {
		g.dirs = append(g.dirs, filepath.Join(root, t.host, id))
	}
	return g, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
