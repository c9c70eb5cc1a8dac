package guard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/lease"
	"github.com/berth-cloud/berth/tier"
)

// What a copy of this program does: it is a daemon that renews its lease and keeps a
// guard, or that guard, which the daemon starts with arguments as hostd does.
const helperEnv = "BERTH_TEST_HELPER"

// processLease is short, and long enough for a machine that is busy.
const processLease = 4 * time.Second

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "guard":
		if err := guardProcess(os.Args[2], os.Args[3]); err != nil {
			slog.Error("guard", "error", err)
			os.Exit(1)
		}
	case os.Getenv(helperEnv) == "daemon":
		daemonProcess(os.Args[1], os.Args[2])
	default:
		verify(m)
	}
}

func guardProcess(dir, host string) error {
	tree, err := cgroup.Open(cgroup.Config{Host: host, Base: "berth-test-guard"}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return Run(context.Background(), Config{
		Lock: hostLock(dir, host), Marks: Marks(filepath.Join(dir, "guard")), Lease: lease.Observe(filepath.Join(dir, "lease.json"), "boot-1", nil), Groups: tests{tree},
	})
}

// hostLock is one for all runtime directories of a test.
func hostLock(dir, host string) string { return filepath.Join(filepath.Dir(dir), "locks", host) }

// tests are groups of a tree.
type tests struct{ tree *cgroup.Tree }

func (g tests) Busy(id string) (bool, error) {
	group, err := g.tree.Group(id)
	if err != nil {
		return false, err
	}
	pids, err := group.PIDs()
	return len(pids) > 0, err
}

func (g tests) Kill(ctx context.Context, id string) error {
	group, err := g.tree.Group(id)
	if err != nil {
		return err
	}
	return group.KillNow(ctx)
}

func daemonProcess(dir, host string) {
	go func() { // what outlives a test sees the end of its input
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	l := lease.New(lease.Config{File: filepath.Join(dir, "lease.json"), BootID: "boot-1", Log: slog.Default()})
	k := &Keeper{Command: []string{"/proc/self/exe", "guard", dir, host}, Log: slog.Default()}
	go k.Run(context.Background())
	for range time.Tick(processLease / 40) {
		l.Renew(l.Now(), processLease)
	}
}

// machine has a daemon with its guard, and two boxes, of which A is exclusive.
type machine struct {
	dir, host string
	marks     Marks
	boxes     map[string]*box
}

type box struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (b *box) lives() bool {
	select {
	case <-b.done:
		return false
	default:
		return true
	}
}

func newMachine(t *testing.T, host string) *machine {
	t.Helper()
	tier.Root(t)
	tree, err := cgroup.Open(cgroup.Config{Host: host, Base: "berth-test-guard"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{dir: t.TempDir(), host: host, boxes: map[string]*box{}}
	m.marks = Marks(filepath.Join(m.dir, "guard"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := errors.Join(Dismiss(ctx, hostLock(m.dir, m.host), m.marks), tree.Remove(ctx, idA), tree.Remove(ctx, idB), tree.Close())
		if err != nil {
			t.Error(err)
		}
	})
	for _, id := range []string{idA, idB} {
		group, err := tree.Ensure(t.Context(), id, cgroup.Limits{PIDs: 10})
		if err != nil {
			t.Fatal(err)
		}
		b := &box{cmd: exec.Command("sleep", "1000"), done: make(chan struct{})}
		if err := b.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = b.cmd.Wait(); close(b.done) }()
		t.Cleanup(func() { _ = b.cmd.Process.Kill(); <-b.done })
		if err := group.Add(b.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		m.boxes[id] = b
	}
	if err := m.marks.Set(idA); err != nil {
		t.Fatal(err)
	}
	return m
}

// startDaemon starts a daemon, and waits until a guard of its own is at work.
func (m *machine) startDaemon(t *testing.T) *os.Process {
	t.Helper()
	before := m.guard(t)
	// Before it has the leader's word it would fence: a real one does not start boxes.
	l := lease.New(lease.Config{File: filepath.Join(m.dir, "lease.json"), BootID: "boot-1", Log: slog.Default()})
	l.Renew(l.Now(), processLease)
	cmd := exec.Command("/proc/self/exe", m.dir, m.host)
	cmd.Env = []string{helperEnv + "=daemon"}
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	await(t, "a guard of the daemon is at work", func() bool { g := m.guard(t); return g != 0 && g != before })
	return cmd.Process
}

// guard is the process that guards now, 0 if none does.
func (m *machine) guard(t *testing.T) int {
	t.Helper()
	f, err := os.OpenFile(m.marks.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pid, err := holder(f)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func (m *machine) exclusiveEnds(t *testing.T) {
	t.Helper()
	await(t, "the exclusive box ends", func() bool { return !m.boxes[idA].lives() })
	if !m.boxes[idB].lives() || !m.marks.Ended(idA) || m.marks.Ended(idB) {
		t.Errorf("the other box lives: %t; marked as ended: A %t, B %t", m.boxes[idB].lives(), m.marks.Ended(idA), m.marks.Ended(idB))
	}
}

func TestABoxOfAFrozenDaemonEnds(t *testing.T) {
	m := newMachine(t, "frozen1")
	daemon := m.startDaemon(t)
	if err := daemon.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m.exclusiveEnds(t)
}

func TestTheGuardOutlivesItsDaemon(t *testing.T) {
	m := newMachine(t, "killed1")
	daemon := m.startDaemon(t)
	guard := m.guard(t)
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	m.exclusiveEnds(t)
	if now := m.guard(t); now != guard {
		t.Errorf("the guard was %d and is %d", guard, now)
	}
}

// A daemon that comes back in time has a guard of its own, in place of the other one,
// and nothing ends.
func TestASuccessorTakesTheGuardOver(t *testing.T) {
	tier.Slow(t)
	m := newMachine(t, "again1")
	before := m.startDaemon(t)
	old := m.guard(t)
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	m.startDaemon(t)
	await(t, "the first guard has ended", func() bool { return errors.Is(unix.Kill(old, 0), unix.ESRCH) })
	over := time.After(processLease * 5 / 4)
	for waiting := true; waiting; {
		select {
		case <-over:
			waiting = false
		case <-m.boxes[idA].done:
			t.Fatal("the exclusive box ended")
		}
	}
	if !m.boxes[idB].lives() || m.marks.Ended(idA) {
		t.Error("something was ended")
	}
}

// The guard of a daemon that had another runtime directory reads a lease that nobody
// renews.
func TestTheGuardOfAnotherRuntimeDirectoryEnds(t *testing.T) {
	m := newMachine(t, "moved1")
	before := m.startDaemon(t)
	old := m.guard(t)
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	m.dir = t.TempDir()
	m.marks = Marks(filepath.Join(m.dir, "guard"))
	if err := m.marks.Set(idA); err != nil {
		t.Fatal(err)
	}
	m.startDaemon(t)
	await(t, "the first guard has ended", func() bool { return errors.Is(unix.Kill(old, 0), unix.ESRCH) })
	if !m.boxes[idA].lives() {
		t.Error("the exclusive box ended")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	now := m.guard(t)
	if err := Dismiss(ctx, hostLock(m.dir, m.host), Marks(filepath.Join(t.TempDir(), "guard"))); err != nil {
		t.Fatal(err)
	}
	await(t, "it is dismissed by its host alone", func() bool { return errors.Is(unix.Kill(now, 0), unix.ESRCH) })
}

// One that ends is replaced, and holds its program in memory.
func TestAGuardThatEndsIsReplaced(t *testing.T) {
	m := newMachine(t, "again2")
	m.startDaemon(t)
	first := m.guard(t)
	await(t, "the memory of the guard is locked", func() bool { return lockedKB(t, first) > 1000 })
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "another guard is at work", func() bool { g := m.guard(t); return g != 0 && g != first })
	if !m.boxes[idA].lives() {
		t.Error("the exclusive box ended")
	}
}

// A host that was removed without its guard leaves none.
func TestAGuardEndsWithItsHost(t *testing.T) {
	m := newMachine(t, "removed1")
	daemon := m.startDaemon(t)
	guard := m.guard(t)
	if err := errors.Join(daemon.Kill(), os.RemoveAll(string(m.marks))); err != nil {
		t.Fatal(err)
	}
	await(t, "the guard has ended", func() bool { return errors.Is(unix.Kill(guard, 0), unix.ESRCH) })
	if !m.boxes[idA].lives() {
		t.Error("the exclusive box ended")
	}
}

func lockedKB(t *testing.T, pid int) (kb int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if size, ok := strings.CutPrefix(line, "VmLck:"); ok {
			kb, _ = strconv.Atoi(strings.Fields(size)[0])
		}
	}
	return kb
}
