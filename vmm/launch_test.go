package vmm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake returns a launch of a fake VMM in a directory of its own.
func fake(t *testing.T, mode string) Launch {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return Launch{
		Engine:   Engine{Path: self, Kind: KindChvemu, Version: "v1"},
		Dir:      filepath.Join(dir, "r"),
		ExtraEnv: []string{envFake + "=" + mode},
	}
}

func startFake(t *testing.T, l Launch) *Process {
	t.Helper()
	p, err := Start(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(t, p) })
	return p
}

func kill(t *testing.T, p *Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Kill(ctx); err != nil {
		t.Error(err)
	}
}

func TestStartDetachesTheVMM(t *testing.T) {
	l := fake(t, "serve")
	p := startFake(t, l)
	session, err := unix.Getsid(p.PID())
	if err != nil || session != p.PID() {
		t.Errorf("the VMM %d is in session %d, %v; want one of its own", p.PID(), session, err)
	}
	st, err := readStat(p.PID())
	if err != nil || st.StartTime != p.StartTime() {
		t.Errorf("the VMM %d: %+v, %v", p.PID(), st, err)
	}
	// No pipe to this process: its output is the log, its input nothing.
	for fd, want := range map[string]string{"0": "/dev/null", "1": LogPath(l.Dir), "2": LogPath(l.Dir)} {
		if got, err := os.Readlink("/proc/" + itoa(p.PID()) + "/fd/" + fd); err != nil || got != want {
			t.Errorf("descriptor %s is %s, %v, want %s", fd, got, err, want)
		}
	}
	if got, err := p.Client().Ping(t.Context()); err != nil || got.PID != p.PID() {
		t.Errorf("ping: %+v, %v", got, err)
	}
	if p.Adopted() {
		t.Error("a process that was started here is told as adopted")
	}
	kill(t, p)
	code, signal, known := p.Exit()
	if !known || signal != syscall.SIGKILL || code != -1 {
		t.Errorf("exit %d, signal %d, known %t", code, signal, known)
	}
	kill(t, p) // of one that is gone
}

func TestFilesOfAVMMAreBounded(t *testing.T) {
	l := fake(t, "serve")
	l.MaxFile = MaxFile(300, 2047)
	// A program that leaves the signals as they are, as engines do.
	script, signals := filepath.Join(filepath.Dir(l.Dir), "engine"), filepath.Join(filepath.Dir(l.Dir), "signals")
	text := "#!/bin/sh\ngrep SigIgn /proc/self/status > " + signals + "\nexec " + l.Engine.Path + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	l.Engine.Path = script
	p := startFake(t, l)
	limits, err := os.ReadFile("/proc/" + itoa(p.PID()) + "/limits")
	if err != nil || !regexp.MustCompile(`Max file size +3221225472 +3221225472 `).Match(limits) {
		t.Errorf("limits of the VMM, %v:\n%s\nwant files of 3 GiB: 2047 MB and a state", err, limits)
	}
	raw, err := os.ReadFile(signals)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(raw), "SigIgn:")), 16, 64)
	if err != nil || ignored&(1<<(unix.SIGXFSZ-1)) == 0 {
		t.Errorf("the VMM would end when it writes too much: %s, %v", raw, err)
	}
}

func TestExitCodeIsKnown(t *testing.T) {
	p := startFake(t, fake(t, "serve"))
	if _, _, known := p.Exit(); known {
		t.Error("the exit of a running process is known")
	}
	// The fake ends before it answers.
	_ = p.Client().ShutdownVMM(t.Context())
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, signal, known := p.Exit(); !known || code != 7 || signal != 0 {
		t.Errorf("exit %d, signal %d, known %t; want 7", code, signal, known)
	}
}

func TestStartFails(t *testing.T) {
	missing := fake(t, "serve")
	missing.Engine.Path = filepath.Join(missing.Dir, "none")
	nowhere := fake(t, "serve")
	nowhere.NetNS = "/nowhere"
	noCgroup := fake(t, "serve")
	noCgroup.Cgroup.V1 = []string{"/nowhere"}
	long := fake(t, "serve")
	long.Dir = filepath.Join(long.Dir, strings.Repeat("x", 100))
	silent := fake(t, "silent")
	silent.Timeout = 200 * time.Millisecond
	cases := map[string]struct {
		launch Launch
		want   string
	}{
		"no such program":       {missing, "no such file"},
		"no such namespace":     {nowhere, "network namespace"},
		"no such cgroup":        {noCgroup, "join cgroup"},
		"a path too long":       {long, "107"},
		"it ends":               {fake(t, "exit"), "cannot start: no such hypervisor"},
		"it does not answer":    {silent, "did not answer"},
		"somebody else answers": {fake(t, "impostor"), "the socket is another process's"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := Start(t.Context(), tc.launch)
			if err == nil {
				kill(t, p)
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q lacks %q", err, tc.want)
			}
			// Nothing is left of it.
			if _, err := Adopt(t.Context(), tc.launch.Dir); !errors.Is(err, ErrGone) {
				t.Errorf("adopting what failed to start: %v, want ErrGone", err)
			}
		})
	}
}

func TestStartAfterACrash(t *testing.T) {
	l := fake(t, "serve")
	first := startFake(t, l)
	kill(t, first)
	if _, err := os.Lstat(SocketPath(l.Dir)); err != nil {
		t.Fatalf("the crash left no socket: %v", err)
	}
	second := startFake(t, l)
	if second.PID() == first.PID() {
		t.Error("the dead VMM was started again")
	}
}

func TestStartBesideARunningVMM(t *testing.T) {
	l := fake(t, "serve")
	first := startFake(t, l)
	l.Timeout = 300 * time.Millisecond
	if p, err := Start(t.Context(), l); err == nil {
		kill(t, p)
		t.Fatal("two VMMs run in one directory")
	} else if !strings.Contains(err.Error(), "another VMM holds") {
		t.Errorf("error %q", err)
	}
	if got, err := first.Client().Ping(t.Context()); err != nil || got.PID != first.PID() {
		t.Errorf("the first VMM: %+v, %v", got, err)
	}
}

// What a VMM has started, and shares its lock, is waited for.
func TestDoneMeansThatNothingIsLeft(t *testing.T) {
	l := fake(t, "heir")
	p := startFake(t, l)
	kill(t, p)
	f, err := os.OpenFile(SocketPath(l.Dir)+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if held, err := locked(f); err != nil || held {
		t.Errorf("the lock is held: %t, %v", held, err)
	}
}

// A VMM may end between a look at it and the signal.
func TestAKillMeetsTheEnd(t *testing.T) {
	p := startFake(t, fake(t, "serve"))
	ended := &Process{rec: p.rec, pidfd: p.pidfd, done: make(chan struct{})}
	kill(t, p)
	if err := ended.sendSignal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestAdopt(t *testing.T) {
	l := fake(t, "serve")
	p := startFake(t, l)
	a, err := Adopt(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if a.PID() != p.PID() || a.StartTime() != p.StartTime() || !a.Adopted() {
		t.Errorf("adopted %d of %d, want %d of %d", a.PID(), a.StartTime(), p.PID(), p.StartTime())
	}
	kill(t, a)
	if _, _, known := a.Exit(); known {
		t.Error("the exit of an adopted process is known")
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := Adopt(t.Context(), l.Dir); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
}

// A crash of the daemon between the start and the record.
func TestAdoptWithoutARecord(t *testing.T) {
	l := fake(t, "serve")
	p := startFake(t, l)
	if err := os.Remove(filepath.Join(l.Dir, recordName)); err != nil {
		t.Fatal(err)
	}
	a, err := Adopt(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if a.PID() != p.PID() || a.StartTime() != p.StartTime() {
		t.Errorf("adopted %d of %d, want %d of %d", a.PID(), a.StartTime(), p.PID(), p.StartTime())
	}
	kill(t, a)
	for _, dir := range []string{l.Dir, t.TempDir()} {
		if err := os.RemoveAll(filepath.Join(dir, recordName)); err != nil {
			t.Fatal(err)
		}
		if _, err := Adopt(t.Context(), dir); !errors.Is(err, ErrGone) {
			t.Errorf("got %v, want ErrGone", err)
		}
	}
}

func TestAdoptBelievesNoStaleRecord(t *testing.T) {
	l := fake(t, "serve")
	startFake(t, l)
	good, err := readRecord(l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	edits := map[string]func(*record){
		"another start time": func(r *record) { r.StartTime++ },
		"another boot":       func(r *record) { r.BootID = "earlier" },
		"no such process":    func(r *record) { r.PID = 1 << 22 },
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			r := good
			edit(&r)
			if err := writeRecord(l.Dir, r); err != nil {
				t.Fatal(err)
			}
			if p, err := Adopt(t.Context(), l.Dir); !errors.Is(err, ErrGone) {
				t.Errorf("adopted %+v, %v, want ErrGone", p, err)
			}
		})
	}
	t.Run("garbage", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(l.Dir, recordName), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Adopt(t.Context(), l.Dir); err == nil {
			t.Error("garbage was adopted")
		}
	})
}

// A guest that broke out of its VMM may write a record of its own.
func TestAdoptTakesNobodyElsesProcess(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	st, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(dir, record{PID: os.Getpid(), StartTime: st.StartTime, BootID: boot}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 654321, 654321); err != nil {
		t.Fatal(err)
	}
	if p, err := Adopt(t.Context(), dir); err == nil {
		t.Errorf("adopted %d", p.PID())
	}
}

func TestStartConfined(t *testing.T) {
	needRoot(t)
	const uid = 654321
	l := fake(t, "serve")
	l.UID, l.GID, l.Groups = uid, uid, []int{654322}
	l.NetNS = netns(t)
	l.Cgroup = cgroups(t)
	for dir := filepath.Dir(l.Dir); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	l.Engine.Path = reachable(t, l.Engine.Path, filepath.Dir(l.Dir))
	p := startFake(t, l)
	status := proc(t, p.PID(), "status")
	for _, want := range []string{
		"Uid:\t654321\t654321\t654321\t654321\n", "Gid:\t654321\t654321\t654321\t654321\n", "Groups:\t654322 \n",
		"CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	var ours, theirs, mine unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{l.NetNS: &ours, "/proc/" + itoa(p.PID()) + "/ns/net": &theirs, "/proc/self/ns/net": &mine} {
		if err := unix.Stat(path, st); err != nil {
			t.Fatal(err)
		}
	}
	if theirs.Ino != ours.Ino || mine.Ino == ours.Ino {
		t.Errorf("the VMM is in namespace %d, this process in %d; want %d for the VMM alone", theirs.Ino, mine.Ino, ours.Ino)
	}
	for _, name := range cgroupNames(l.Cgroup) {
		if groups := proc(t, p.PID(), "cgroup"); !strings.Contains(groups, name) {
			t.Errorf("the VMM is not in %s:\n%s", name, groups)
		}
		if groups := proc(t, os.Getpid(), "cgroup"); strings.Contains(groups, name) {
			t.Errorf("this process went into %s:\n%s", name, groups)
		}
	}
}

func TestAwaitLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := awaitLock(t.Context(), path); err != nil {
		t.Errorf("no lock: %v", err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := awaitLock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock that is held: %v", err)
	}
	f.Close()
	if err := awaitLock(t.Context(), path); err != nil {
		t.Errorf("a lock that was let go: %v", err)
	}
}
