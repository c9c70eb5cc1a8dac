package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// playKernel makes directories come with the files of version 2.
func playKernel(t *testing.T, missing ...string) (mount string) {
	t.Helper()
	files := map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": "", "cgroup.procs": "", "cgroup.kill": "",
		"cpu.max": "max 100000\n", "cpu.max.burst": "0\n", "cpu.weight": "100\n", "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
		"memory.max": "max\n", "memory.oom.group": "0\n", "memory.current": "4096\n", "memory.events": "low 0\noom 3\noom_kill 2\n",
		"pids.max": "max\n", "pids.current": "7\n",
	}
	fill := func(dir string) {
		for name, content := range files {
			if !slices.Contains(missing, name) {
				check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
			}
		}
	}
	oldMake, oldRemove, oldSelf, oldDelegated := makeDir, removeDir, selfCgroup, delegated
	t.Cleanup(func() { makeDir, removeDir, selfCgroup, delegated = oldMake, oldRemove, oldSelf, oldDelegated })
	makeDir = func(dir string, mode os.FileMode) error {
		err := os.Mkdir(dir, mode)
		if err == nil {
			fill(dir)
		}
		return err
	}
	removeDir = func(dir string) error {
		for name := range files {
			_ = os.Remove(filepath.Join(dir, name))
		}
		return os.Remove(dir)
	}
	mount = t.TempDir()
	fill(mount)
	belongTo(t, "/user.slice", "")
	return mount
}

// belongTo sets the daemon's own group, and the group systemd delegated.
func belongTo(t *testing.T, own, marked string) {
	t.Helper()
	selfCgroup = filepath.Join(t.TempDir(), "cgroup")
	check(t, os.WriteFile(selfCgroup, []byte("0::"+own+"\n"), 0o644))
	delegated = func(dir string) bool { return marked != "" && strings.HasSuffix(dir, marked) }
}

func openFake(t *testing.T, mount string) *Tree {
	t.Helper()
	h, err := openV2(Config{Host: "h1", Mount: mount}, quiet())
	check(t, err)
	tree := &Tree{host: "h1", h: h}
	check(t, h.prepare("h1"))
	return tree
}

func content(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	check(t, err)
	return strings.TrimSpace(string(data))
}

func TestVersion2WritesTheLimits(t *testing.T) {
	mount := playKernel(t)
	tree := openFake(t, mount)
	for _, dir := range []string{"", "berth", "berth/h1"} {
		if got := content(t, mount, dir, "cgroup.subtree_control"); got != "+cpu +memory +pids" {
			t.Errorf("%q hands down %q", dir, got)
		}
	}
	for name, c := range map[string]struct {
		limits Limits
		want   map[string]string
	}{
		"limited": {
			Limits{CPUs: 1.5, MemoryBytes: 1 << 30, PIDs: 64},
			map[string]string{"cpu.max": "150000 100000", "cpu.max.burst": "150000", "cpu.weight": "150", "memory.max": "1073741824", "memory.oom.group": "1", "pids.max": "64"},
		},
		"unlimited": {
			Limits{},
			map[string]string{"cpu.max": "max 100000", "cpu.max.burst": "0", "cpu.weight": "100", "memory.max": "max", "pids.max": "max"},
		},
		"less than the kernel takes": {
			Limits{CPUs: 0.001},
			map[string]string{"cpu.max": "1000 100000", "cpu.weight": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tree.Ensure(t.Context(), "box", c.limits)
			check(t, err)
			for file, want := range c.want {
				if got := content(t, mount, "berth/h1/box", file); got != want {
					t.Errorf("%s is %q, want %q", file, got, want)
				}
			}
		})
	}
	g, err := tree.Group("box")
	check(t, err)
	s, err := g.Stats()
	check(t, err)
	if want := (Stats{MemoryBytes: 4096, CPU: 1500 * time.Millisecond, OOMKills: 2, PIDs: 7}); s != want {
		t.Errorf("Stats is %+v, want %+v", s, want)
	}
	entry, err := g.Entry()
	check(t, err)
	if entry.V2 == nil || len(entry.V1) != 0 {
		t.Errorf("Entry is %+v", entry)
	}
	check(t, entry.Close())
	check(t, tree.Remove(t.Context(), "box"))
	check(t, tree.Close())
	if exists(filepath.Join(mount, "berth")) {
		t.Error("the base is still there")
	}
}

func TestVersion2OfAnOlderKernel(t *testing.T) {
	mount := playKernel(t, "cpu.max.burst", "cgroup.kill", "memory.oom.group")
	tree := openFake(t, mount)
	g, err := tree.Ensure(t.Context(), "box", Limits{CPUs: 1, MemoryBytes: 1 << 20, PIDs: 5})
	check(t, err)
	check(t, tree.h.kill(g.dirs))
	if got := content(t, mount, "berth/h1/box/pids.max"); got != "0" {
		t.Errorf("while it is killed, the group may start %q processes", got)
	}
}

func TestVersion2LivesInWhatSystemdDelegated(t *testing.T) {
	const service = "/system.slice/berth-hostd.service"
	for name, c := range map[string]struct{ own, marked, want string }{
		"with a subgroup for the daemon": {service + "/daemon", service, service + "/h1"},
		// Where a restarted daemon could not be put back, it does not live.
		"without one":       {service, service, "/berth/h1"},
		"nothing delegated": {service, "", "/berth/h1"},
		"at the root":       {"/", "", "/berth/h1"},
	} {
		t.Run(name, func(t *testing.T) {
			mount := playKernel(t)
			belongTo(t, c.own, c.marked)
			dir := mount
			for _, part := range strings.Split(strings.Trim(c.own, "/"), "/") {
				if dir = filepath.Join(dir, part); dir != mount {
					check(t, makeDir(dir, 0o755))
				}
			}
			tree := openFake(t, mount)
			_, err := tree.Ensure(t.Context(), "box", Limits{CPUs: 1})
			check(t, err)
			if !exists(filepath.Join(mount, c.want, "box")) {
				t.Errorf("the group is not in %s", c.want)
			}
			// Above what was delegated, everything is systemd's.
			if c.want != "/berth/h1" && content(t, mount, "cgroup.subtree_control") != "" {
				t.Error("controllers were enabled above what was delegated")
			}
		})
	}
}

// Boxes come after the daemons: their groups together weigh less than the
// kernel's default, and no box's own weight changes that.
func TestVersion2PutsTheDaemonsBeforeTheBoxes(t *testing.T) {
	t.Run("nothing delegated", func(t *testing.T) {
		mount := playKernel(t)
		openFake(t, mount)
		if got := content(t, mount, "berth", "cpu.weight"); got != "20" {
			t.Errorf("all boxes weigh %s, want 20 against the 100 of everything else", got)
		}
		if got := content(t, mount, "berth", "h1", "cpu.weight"); got != "100" {
			t.Errorf("one host's boxes weigh %s against another's", got)
		}
	})
	t.Run("delegated", func(t *testing.T) {
		mount := playKernel(t)
		service := filepath.Join(mount, "berth-hostd.service")
		check(t, makeDir(service, 0o755))
		check(t, makeDir(filepath.Join(service, "daemon"), 0o755))
		belongTo(t, "/berth-hostd.service/daemon", "berth-hostd.service")
		openFake(t, mount)
		if boxes, daemon := content(t, service, "h1", "cpu.weight"), content(t, service, "daemon", "cpu.weight"); boxes != "20" || daemon != "100" {
			t.Errorf("boxes weigh %s and the daemon %s, want 20 and 100", boxes, daemon)
		}
	})
}

func TestVersion2SaysWhichControllerIsMissing(t *testing.T) {
	mount := playKernel(t)
	check(t, os.WriteFile(filepath.Join(mount, "cgroup.controllers"), []byte("cpu pids\n"), 0o644))
	if _, err := openV2(Config{Host: "h1", Mount: mount}, quiet()); err == nil || !strings.Contains(err.Error(), "controller memory") {
		t.Errorf("openV2: %v", err)
	}
}

func TestMemoryLimitLeavesRoomForACapture(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ ram, overhead, want int64 }{
		{512 * mib, 100 * mib, (512 + 100 + 128) * mib},
		{4096 * mib, 100 * mib, (4096 + 100 + 512) * mib},
	} {
		if got := MemoryLimit(c.ram, c.overhead); got != c.want {
			t.Errorf("%d MiB: limit %d MiB, want %d", c.ram/mib, got/mib, c.want/mib)
		}
	}
}

// A purge from a shell, or a daemon that is started by hand, is in another group than the
// unit's daemon was, and looks for boxes where that has them.
func TestVersion2LivesWhereItsBoxesAre(t *testing.T) {
	mount := playKernel(t)
	service := filepath.Join(mount, "berth-hostd.service")
	check(t, makeDir(service, 0o755))
	belongTo(t, "/berth-hostd.service/daemon", "berth-hostd.service")
	tree := openFake(t, mount)
	if tree.Root() != service {
		t.Fatalf("the daemon's groups are in %s, want %s", tree.Root(), service)
	}
	_, err := tree.Ensure(t.Context(), "box", Limits{CPUs: 1})
	check(t, err)

	belongTo(t, "/user.slice", "")
	later := func(last string) *Tree {
		h, err := openV2(Config{Host: "h1", Mount: mount, Last: last}, quiet())
		check(t, err)
		return &Tree{host: "h1", h: h}
	}
	if got := later("").Root(); got != filepath.Join(mount, "berth") {
		t.Errorf("who does not know where they are looks in %s", got)
	}
	tree = later(service)
	ids, err := tree.List()
	check(t, err)
	if tree.Root() != service || !slices.Equal(ids, []string{"box"}) {
		t.Errorf("who knows it finds %q in %s", ids, tree.Root())
	}
	check(t, tree.h.prepare("h1"))
	if exists(filepath.Join(mount, "berth")) || content(t, mount, "cgroup.subtree_control") != "" {
		t.Error("something was made above them")
	}
	check(t, tree.Remove(t.Context(), "box"))
	check(t, tree.Close())
	if got := later(service).Root(); got != filepath.Join(mount, "berth") {
		t.Errorf("without a box groups are in %s", got)
	}
	// And the other way around: a daemon that was started by hand had them in berth.
	tree = later("")
	check(t, tree.h.prepare("h1"))
	check(t, makeDir(service, 0o755))
	belongTo(t, "/berth-hostd.service/daemon", "berth-hostd.service")
	tree = later(filepath.Join(mount, "berth"))
	check(t, tree.h.prepare("h1"))
	if tree.Root() != filepath.Join(mount, "berth") || content(t, mount, "cgroup.subtree_control") != "+cpu +memory +pids" {
		t.Errorf("groups of berth are then in %s", tree.Root())
	}
	if got := later(t.TempDir()).Root(); got != service {
		t.Errorf("a directory that has none is taken for %s", got)
	}
}
