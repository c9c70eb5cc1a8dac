package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is one box's group.
type Group struct {
	tree *Tree
	dirs []string // one a hierarchy
}

// Entry is how a process gets into a group from its first instruction.
type Entry struct {
	// V2 is for SysProcAttr.CgroupFD; the caller closes it. It is nil on
	// version 1.
	V2 *os.File
	// V1 are the group's directories: a thread that writes its id into the
	// tasks file of each starts its children there. It is empty on version 2.
	V1 []string
}

// Close releases the descriptor.
func (e Entry) Close() error {
	if e.V2 == nil {
		return nil
	}
	return e.V2.Close()
}

// Entry opens the group for a process to be started in it.
func (g *Group) Entry() (Entry, error) {
	if !g.tree.h.unified() {
		return Entry{V1: g.dirs}, nil
	}
	dir, err := os.Open(g.dirs[0])
	if err != nil {
		return Entry{}, fmt.Errorf("open cgroup: %w", err)
	}
	return Entry{V2: dir}, nil
}

// Add moves a process with all its threads into the group. Memory it was
// charged for before stays charged where it was: Entry is better.
func (g *Group) Add(pid int) error {
	for _, dir := range g.dirs {
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add process %d: %w", pid, err)
		}
	}
	return nil
}

// PIDs are the processes in the group, but not those that only visit it: on version 1,
// the daemon's thread that starts a VMM there is in the group until it has ended, and
// the kernel lists the whole process for it. Killing the group would kill the daemon.
func (g *Group) PIDs() ([]int, error) {
	var pids []int
	seen := make(map[int]bool)
	for _, dir := range g.dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list processes of a cgroup: %w", err)
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			// The kernel shows a process that we cannot see as 0.
			if err == nil && pid > 0 && pid != os.Getpid() && !seen[pid] && !visits(pid, dir) {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// visits reports whether a process is in a group of version 1 with some of its threads
// alone: the first one, which a VMM's never leaves, is elsewhere. Where that cannot be
// known it is in the group. A mount may begin below the root of its hierarchy, so what
// names the host and the box is compared.
func visits(pid int, dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "tasks")); err != nil {
		return false // version 2 moves whole processes
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	box := "/" + filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
	known := false
	for line := range strings.Lines(string(raw)) { // <number>:<controllers>:<path>
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 || fields[1] == "" {
			continue
		}
		known = true
		if strings.HasSuffix(fields[2], box) {
			return false
		}
	}
	return known
}

// Stats reads what the group used.
func (g *Group) Stats() (Stats, error) {
	s, err := g.tree.h.stats(g.dirs)
	if gone(err) {
		err = ErrNotFound
	}
	if err != nil {
		return Stats{}, fmt.Errorf("read use of cgroup %s: %w", filepath.Base(g.dirs[0]), err)
	}
	return s, nil
}

// CPU reads the processor time that the group used, which Stats reads among the rest.
func (g *Group) CPU() (time.Duration, error) {
	used, err := g.tree.h.cpu(g.dirs)
	if err != nil {
		return 0, fmt.Errorf("read processor time of cgroup %s: %w", filepath.Base(g.dirs[0]), err)
	}
	return used, nil
}

// Waits of one who polls a group that is ending.
const (
	firstPoll = time.Millisecond
	lastPoll  = 50 * time.Millisecond
)

// Kill kills every process in the group and waits until none is left.
func (g *Group) Kill(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		pids, err := g.PIDs()
		if err != nil || len(pids) == 0 {
			return len(pids) == 0, err
		}
		// Again in every round: a process may have been moved in since.
		if err := g.tree.h.kill(g.dirs); err != nil && !gone(err) {
			return false, fmt.Errorf("kill cgroup: %w", err)
		}
		return false, nil
	})
}

// KillNow kills, once, the processes that are in the group now, and waits until they have
// ended. What comes into the group later is left alone.
func (g *Group) KillNow(ctx context.Context) error {
	pids, err := g.PIDs()
	if err != nil || len(pids) == 0 {
		return err
	}
	if err := g.tree.h.kill(g.dirs); err != nil && !gone(err) {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return poll(ctx, func() (bool, error) {
		now, err := g.PIDs()
		return !slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(pids, pid) }), err
	})
}

// make makes the directories and sets the limits. A group it could not finish
// it takes away again.
func (g *Group) make(l Limits) error {
	var made []string
	err := func() error {
		for _, dir := range g.dirs {
			err := makeDir(dir, 0o755)
			if errors.Is(err, fs.ErrNotExist) {
				// Someone removed the host's empty directories.
				if err = g.tree.h.prepare(g.tree.host); err == nil {
					err = makeDir(dir, 0o755)
				}
			}
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return err
			}
			made = append(made, dir)
		}
		return g.tree.h.limit(g.dirs, l)
	}()
	if err != nil {
		for _, dir := range made {
			err = errors.Join(err, removeEmpty(dir))
		}
	}
	return err
}

// remove removes the empty directories. The kernel refuses for a moment after
// the last process has gone.
func (g *Group) remove(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		for _, dir := range g.dirs {
			err := removeDir(dir)
			if errors.Is(err, unix.EBUSY) {
				return false, nil
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
		}
		return true, nil
	})
}

// poll calls fn until it is done, fails, or ctx ends.
func poll(ctx context.Context, fn func() (done bool, err error)) error {
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		done, err := fn()
		if done || err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// gone says whether a file of a group could not be used because the group is
// no longer there.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// write sets one of the kernel's files. It never creates one: where a file is
// missing, the kernel lacks the feature.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// writeIfThere does the same where the kernel has the file.
func writeIfThere(dir, name, value string) error {
	err := write(dir, name, value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// readInt reads a file that holds one number, or "max".
func readInt(dir, name string) (int64, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	return parseInt(name, strings.TrimSpace(string(data)))
}

// readField reads the number behind a key in a file of "key number" lines; a
// key that is not there counts as 0, since older kernels have fewer.
func readField(dir, name, key string) (int64, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return parseInt(name, strings.TrimSpace(value))
		}
	}
	return 0, nil
}

func parseInt(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}
