package hostd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/vmm"
)

// onePool has one slot.
type onePool struct{ taken bool }

func (p *onePool) Take(context.Context) (box.Slot, error) {
	if p.taken {
		return box.Slot{}, hosterr.ErrNoSlot
	}
	p.taken = true
	return box.Slot{Number: 7, NetNSPath: "/run/netns/seven", UID: 4007, GID: 4007}, nil
}
func (p *onePool) Return(int)                                       { p.taken = false }
func (p *onePool) Dial(context.Context, int, int) (net.Conn, error) { return nil, net.ErrClosed }

// A build's guest has the limits and the weight of a sandbox of its size, in a
// group that goes with it.
func TestABuildsGuestIsConfinedAsASandboxIs(t *testing.T) {
	tier.Root(t)
	tree, err := cgroup.Open(cgroup.Config{Host: "lease1", Base: "berth-test-hostd"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, groups := &onePool{}, cgroups{tree}
	lease := poolLease(pool, []int{12}, groups, 88)
	got, err := lease(t.Context(), image.Guest{CPU: 2, MemoryMB: 512})
	if err != nil {
		t.Fatal(err)
	}
	if got.UID != 4007 || got.GID != 4007 || !slices.Equal(got.Groups, []int{12}) || got.NetNS != "/run/netns/seven" {
		t.Errorf("lease %+v", got)
	}
	// What a sandbox of the size has, under another name.
	_, entered, err := groups.Create(t.Context(), "sandbox", box.Limits{CPUs: 2, MemoryMB: 512, OverheadMB: 88})
	if err != nil {
		t.Fatal(err)
	}
	entered()
	build, sandbox := limitsBelow(t, "build-7"), limitsBelow(t, "sandbox")
	if !slices.Equal(build, sandbox) || len(build) == 0 {
		t.Errorf("a build's limits are\n%s\nand a sandbox's\n%s", strings.Join(build, "\n"), strings.Join(sandbox, "\n"))
	}
	if _, err := lease(t.Context(), image.Guest{CPU: 1, MemoryMB: 512}); !errors.Is(err, hosterr.ErrNoSlot) {
		t.Errorf("a second lease: %v", err)
	}
	pid := startIn(t, got.Cgroup)
	if raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup"); err != nil || !strings.Contains(string(raw), "lease1/build-7") {
		t.Errorf("a process of the build is in %s, %v", raw, err)
	}
	got.Release() // ends what is left of it, too
	if left, err := groups.List(); err != nil || !slices.Equal(left, []string{"sandbox"}) || pool.taken {
		t.Errorf("after the release: %v, %v, slot taken %t", left, err, pool.taken)
	}
	if err := groups.Remove(t.Context(), "sandbox"); err != nil {
		t.Error(err)
	}
}

// limitsBelow reads what bounds a group, of every hierarchy that there is.
func limitsBelow(t *testing.T, group string) []string {
	t.Helper()
	var out []string
	for _, name := range []string{
		"memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.weight", "cpu.shares", "cpu.cfs_quota_us", "pids.max",
	} {
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			for _, depth := range []string{"", "/*", "/*/*"} {
				files, _ := filepath.Glob(pattern + depth + "/berth-test-hostd/lease1/" + group + "/" + name)
				for _, f := range files {
					if raw, err := os.ReadFile(f); err == nil {
						out = append(out, name+" "+strings.TrimSpace(string(raw)))
					}
				}
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// startIn starts a process in a group as a VMM is: it sleeps until it is killed.
func startIn(t *testing.T, g vmm.Cgroup) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if g.V2 != nil {
		cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.V2.Fd())}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	for _, dir := range g.V1 {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cmd.Process.Pid
}

// A process that cannot be killed, because its disk hangs, keeps no daemon from
// starting.
func TestABuildThatDoesNotEndHoldsUpNoStart(t *testing.T) {
	mount := t.TempDir() // a version 1 hierarchy whose kernel does nothing
	for _, controller := range []string{"cpu", "cpuacct", "memory", "pids"} {
		group := filepath.Join(mount, controller, "berth", "h1", "build-3")
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatal(err)
		}
		// No process has this number, so none is killed.
		for path, content := range map[string]string{
			filepath.Join(mount, controller, "berth", "cpu.shares"): "", filepath.Join(group, "pids.max"): "", filepath.Join(group, "cgroup.procs"): "4194304",
		} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tree, err := cgroup.Open(cgroup.Config{Host: "h1", Mount: mount}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := removeBuildGroups(ctx, cgroups{tree}); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("it returned %v; its caller's time: %v", err, ctx.Err())
		}
	})
}
