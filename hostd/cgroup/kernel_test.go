package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

// base keeps the tests' groups apart from those of a daemon on this machine.
const base = "berth-test"

// openReal opens the machine's own hierarchies, of whichever version.
func openReal(t *testing.T, host string) *Tree {
	t.Helper()
	tier.Root(t)
	tree, err := Open(Config{Host: host, Base: base}, quiet())
	check(t, err)
	t.Cleanup(func() { cleared(t, tree) })
	return tree
}

// cleared removes the tree and fails the test if something of it stays.
func cleared(t *testing.T, tree *Tree) {
	t.Helper()
	ids, err := tree.List()
	if err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := tree.Remove(ctx, id); err != nil {
			t.Error(err)
		}
		cancel()
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	for _, root := range tree.h.roots() {
		if exists(filepath.Join(root, tree.host)) {
			t.Errorf("%s/%s is still there", root, tree.host)
		}
	}
}

func TestGroupHoldsItsProcessesAndGoes(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "box1", Limits{CPUs: 1.5, MemoryBytes: 256 << 20, PIDs: 50})
	check(t, err)
	cmd := start(t, g, "sleep")
	pids, err := g.PIDs()
	check(t, err)
	if !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, want the one %d", pids, cmd.Process.Pid)
	}
	await(t, "its use is counted", func() bool {
		s, err := g.Stats()
		check(t, err)
		return s.MemoryBytes > 0 && s.CPU > 0 && s.PIDs >= 1 && s.OOMKills == 0
	})
	if got, want := weightOf(t, tree, "box1"), map[bool]string{true: "150", false: "1536"}[tree.h.unified()]; got != want {
		t.Errorf("one and a half CPUs weigh %s, want %s", got, want)
	}
	// Another daemon finds it again, and may change its limits.
	again, err := Open(Config{Host: "t1", Base: base}, quiet())
	check(t, err)
	ids, err := again.List()
	check(t, err)
	if !slices.Equal(ids, []string{"box1"}) {
		t.Errorf("List is %v", ids)
	}
	for _, l := range []Limits{{CPUs: 0.5, MemoryBytes: 512 << 20, PIDs: 60}, {}, {CPUs: 2}} {
		if _, err := again.Ensure(t.Context(), "box1", l); err != nil {
			t.Errorf("limits %+v: %v", l, err)
		}
	}
	found, err := again.Group("box1")
	check(t, err)
	check(t, found.Kill(t.Context()))
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	check(t, again.Remove(t.Context(), "box1"))
	check(t, again.Remove(t.Context(), "box1"))
	if _, err := again.Group("box1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Group after Remove: %v", err)
	}
	if _, err := g.Stats(); !errors.Is(err, ErrNotFound) {
		t.Errorf("Stats after Remove: %v", err)
	}
}

// weightOf reads what the kernel took for a group's weight.
func weightOf(t *testing.T, tree *Tree, id string) string {
	t.Helper()
	for _, root := range tree.h.roots() {
		for _, file := range []string{"cpu.weight", "cpu.shares"} {
			if path := filepath.Join(root, tree.host, id, file); exists(path) {
				return content(t, path)
			}
		}
	}
	t.Fatal("the group has no weight")
	return ""
}

func TestAddMovesAProcess(t *testing.T) {
	tree := openReal(t, "t1")
	a, err := tree.Ensure(t.Context(), "a", Limits{})
	check(t, err)
	b, err := tree.Ensure(t.Context(), "b", Limits{})
	check(t, err)
	cmd := start(t, a, "sleep")
	check(t, b.Add(cmd.Process.Pid))
	if pids, err := a.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("left in the first: %v, %v", pids, err)
	}
	if pids, err := b.PIDs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("in the second: %v, %v", pids, err)
	}
	if err := b.Add(1 << 30); !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("adding a process that is none: %v", err)
	}
}

func TestCPUIsLimited(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "spin", Limits{CPUs: 0.2})
	check(t, err)
	start(t, g, "spin")
	// The kernel counts the periods in which it stopped the group. How much of a
	// period it may run is what Ensure wrote.
	await(t, "it is stopped", func() bool {
		for _, dir := range g.dirs {
			if n, err := readField(dir, "cpu.stat", "nr_throttled"); err == nil && n > 3 {
				return true
			}
		}
		return false
	})
}

// Where both want one CPU, what runs beside the boxes, as a daemon does, gets
// more of it than all boxes together.
func TestDaemonsComeBeforeBoxes(t *testing.T) {
	tree := openReal(t, "t1")
	box, err := tree.Ensure(t.Context(), "spin", Limits{CPUs: 8})
	check(t, err)
	// A group of the kernel's own weight beside the one of all boxes.
	beside := &Group{tree: tree}
	for _, root := range tree.h.roots() {
		dir := root + "-daemon"
		check(t, os.Mkdir(dir, 0o755))
		beside.dirs = append(beside.dirs, dir)
	}
	t.Cleanup(func() { check(t, errors.Join(beside.Kill(context.Background()), beside.remove(context.Background()))) })
	var one unix.CPUSet
	check(t, unix.SchedGetaffinity(0, &one))
	for cpu, first := 0, true; cpu < len(one)*64; cpu++ {
		if one.IsSet(cpu) && !first {
			one.Clear(cpu)
		}
		first = first && !one.IsSet(cpu)
	}
	for _, g := range []*Group{box, box, box, beside} {
		check(t, pin(start(t, g, "spin").Process.Pid, &one))
	}
	begin, err := both(box, beside)
	check(t, err)
	var boxes, daemon time.Duration
	await(t, "half a second of the CPU was used", func() bool {
		now, err := both(box, beside)
		check(t, err)
		boxes, daemon = now[0]-begin[0], now[1]-begin[1]
		return boxes+daemon > 500*time.Millisecond
	})
	if daemon < 2*boxes {
		t.Errorf("the daemon had %s of the CPU and the boxes %s", daemon, boxes)
	}
}

// pin binds every thread that a process has, and will have.
func pin(pid int, cpus *unix.CPUSet) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, th := range threads {
		tid, _ := strconv.Atoi(th.Name())
		err = errors.Join(err, unix.SchedSetaffinity(tid, cpus))
	}
	return err
}

func both(a, b *Group) (used [2]time.Duration, err error) {
	for i, g := range []*Group{a, b} {
		s, serr := g.Stats()
		used[i], err = s.CPU, errors.Join(err, serr)
	}
	return used, err
}

func TestMemoryIsLimitedAndTheKillIsCounted(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "eat", Limits{MemoryBytes: 32 << 20, PIDs: 100})
	check(t, err)
	cmd := start(t, g, "eat")
	if err := cmd.Wait(); err == nil {
		t.Error("it ended well")
	}
	s, err := g.Stats()
	check(t, err)
	if s.OOMKills < 1 {
		t.Errorf("%+v; want a kill counted", s)
	}
}

func TestAGroupThatForksForEverIsKilled(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "fork", Limits{CPUs: 1, PIDs: 100, MemoryBytes: 512 << 20})
	check(t, err)
	start(t, g, "fork")
	await(t, "it forks", func() bool {
		s, err := g.Stats()
		check(t, err)
		if s.PIDs > 100 {
			t.Errorf("%d processes, limited to 100", s.PIDs)
		}
		return s.PIDs >= 60
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	check(t, tree.Remove(ctx, "fork"))
}

// The guard looks at groups from another process than the daemon, one of whose threads
// may be in one while a VMM is started there.
func TestAProcessThatOnlyVisitsAGroupIsNotKilled(t *testing.T) {
	tree := openReal(t, "t1")
	if tree.h.unified() {
		t.Skip("version 2 moves whole processes")
	}
	g, err := tree.Ensure(t.Context(), "visited", Limits{CPUs: 1, PIDs: 100, MemoryBytes: 512 << 20})
	check(t, err)
	elsewhere, err := tree.Ensure(t.Context(), "home", Limits{CPUs: 1, PIDs: 100, MemoryBytes: 512 << 20})
	check(t, err)
	daemon, vmm := start(t, elsewhere, "sleep"), start(t, g, "sleep")
	var thread string
	await(t, "it has a second thread", func() bool {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", daemon.Process.Pid))
		check(t, err)
		for _, task := range tasks {
			if task.Name() != strconv.Itoa(daemon.Process.Pid) {
				thread = task.Name()
			}
		}
		return thread != ""
	})
	for _, dir := range g.dirs {
		check(t, write(dir, "tasks", thread))
	}
	pids, err := g.PIDs()
	check(t, err)
	if !slices.Equal(pids, []int{vmm.Process.Pid}) {
		t.Errorf("processes %v, want the one %d, not %d", pids, vmm.Process.Pid, daemon.Process.Pid)
	}
	check(t, g.KillNow(t.Context()))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", daemon.Process.Pid))
	check(t, err)
	if strings.Contains(string(status), "State:\tZ") {
		t.Error("it was killed")
	}
	check(t, daemon.Process.Kill()) // a thread of it is in the group
	_ = daemon.Wait()
}

// killer is a hierarchy that kills in a way of its own.
type killer struct {
	hierarchy
	do func() error
}

func (k killer) kill([]string) error { return k.do() }

// A box may be started again, in the group that it had, while somebody waits for the end
// of its last VMM.
func TestWhatComesAfterAKillLives(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "again", Limits{CPUs: 1, PIDs: 100, MemoryBytes: 512 << 20})
	check(t, err)
	last := start(t, g, "sleep")
	var next *exec.Cmd
	kills, own := 0, tree.h
	tree.h = killer{own, func() error {
		kills++
		next = start(t, g, "sleep")
		check(t, last.Process.Kill())
		_ = last.Wait() // it was killed
		return nil
	}}
	err = g.KillNow(t.Context())
	tree.h = own
	check(t, err)
	pids, err := g.PIDs()
	check(t, err)
	if kills != 1 || !slices.Equal(pids, []int{next.Process.Pid}) {
		t.Errorf("killed %d times, processes %v are left, want %d", kills, pids, next.Process.Pid)
	}
	check(t, g.KillNow(t.Context()))
	check(t, g.KillNow(t.Context())) // of none
}

func TestManyGroupsAtOnce(t *testing.T) {
	tree := openReal(t, "t1")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			id := "box" + string(rune('a'+i))
			for range 5 {
				if _, err := tree.Ensure(t.Context(), id, Limits{CPUs: 1, MemoryBytes: 64 << 20, PIDs: 10}); err != nil {
					t.Error(err)
				}
				if _, err := tree.List(); err != nil {
					t.Error(err)
				}
				if err := tree.Remove(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestTwoHostsAreApart(t *testing.T) {
	one, two := openReal(t, "t1"), openReal(t, "t2")
	for _, tree := range []*Tree{one, two} {
		_, err := tree.Ensure(t.Context(), "same", Limits{})
		check(t, err)
	}
	check(t, one.Remove(t.Context(), "same"))
	check(t, one.Close())
	check(t, one.Close())
	if ids, err := two.List(); err != nil || !slices.Equal(ids, []string{"same"}) {
		t.Errorf("the other host has %v, %v", ids, err)
	}
	// The first comes back without being opened anew.
	_, err := one.Ensure(t.Context(), "same", Limits{})
	check(t, err)
}

func TestBadNamesAndLimits(t *testing.T) {
	tree := openReal(t, "t1")
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00", "a\n", "é", strings.Repeat("x", 129), "-a"} {
		if _, err := tree.Ensure(t.Context(), id, Limits{}); err == nil {
			t.Errorf("%q was taken as a box's name", id)
		}
		if err := tree.Remove(t.Context(), id); err == nil {
			t.Errorf("%q was taken as a box's name to remove", id)
		}
	}
	for _, l := range []Limits{{CPUs: -1}, {MemoryBytes: -1}, {PIDs: -1}, {CPUs: 1e9}} {
		if _, err := tree.Ensure(t.Context(), "box", l); err == nil {
			t.Errorf("limits %+v were taken", l)
		}
	}
	if ids, err := tree.List(); err != nil || len(ids) != 0 {
		t.Errorf("left are %v, %v", ids, err)
	}
	for _, host := range []string{"", "a/b", "toolongid", "A"} {
		if _, err := Open(Config{Host: host, Base: base}, quiet()); err == nil {
			t.Errorf("%q was taken as a host's id", host)
		}
	}
	if _, err := Open(Config{Host: "t1", Mount: "/nonexistent"}, quiet()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("mount that is not there: %v", err)
	}
}

func TestRemoveEndsWithTheContext(t *testing.T) {
	tree := openReal(t, "t1")
	g, err := tree.Ensure(t.Context(), "busy", Limits{})
	check(t, err)
	cmd := start(t, g, "sleep")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tree.Remove(ctx, "busy"); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: %v", err)
	}
	_ = cmd.Wait()
	check(t, tree.Remove(t.Context(), "busy"))
}

// coreV2 is version 2 without controllers, as a machine has it whose
// controllers are all taken by version 1.
type coreV2 struct{ *v2 }

func (coreV2) limit([]string, Limits) error { return nil }

func (h coreV2) prepare(host string) error {
	return os.MkdirAll(filepath.Join(h.roots()[0], host), 0o755)
}

func TestVersion2StartsAndKillsInTheGroup(t *testing.T) {
	tier.Root(t)
	mount := ""
	for _, path := range []string{defaultMount, defaultMount + "/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			mount = path
		}
	}
	if mount == "" {
		t.Log("this machine has no unified hierarchy: nothing to test")
		return
	}
	tree := &Tree{host: "t1", h: coreV2{&v2{top: mount, base: base}}}
	check(t, tree.h.prepare(tree.host))
	t.Cleanup(func() { cleared(t, tree) })
	g, err := tree.Ensure(t.Context(), "box", Limits{})
	check(t, err)
	cmd := start(t, g, "fork")
	await(t, "it forks", func() bool {
		pids, err := g.PIDs()
		check(t, err)
		return len(pids) > 10
	})
	check(t, g.Kill(t.Context()))
	_ = cmd.Wait()
	check(t, tree.Remove(t.Context(), "box"))
}
