package vmm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/timescale"
)

// Launch says how to start a VMM.
type Launch struct {
	Engine Engine
	// Dir is the runtime directory, made if it is missing and given to UID. It
	// holds api.sock, vmm.log, event.json and vmm.json. Every directory above it
	// must let UID pass, and SocketPath(Dir) may have 107 bytes.
	Dir string
	// NetNS is the path of the network namespace that the VMM starts in; empty
	// means the caller's.
	NetNS string
	// UID, GID and Groups are what the VMM runs as. A UID of zero keeps the
	// caller's identity and capabilities.
	UID, GID int
	Groups   []int
	Cgroup   Cgroup
	// Isolated gives the VMM a root directory and a PID namespace of its own. It
	// then sees only its engine with its libraries, Dir, and what the methods of
	// Process hand over; the directories above those need not let UID pass. It
	// requires a UID.
	Isolated bool
	// MaxFile is the size in bytes beyond which the VMM cannot write to any file; 0
	// is no bound. A write beyond it fails, and does not end the VMM.
	MaxFile int64
	// ExtraEnv is added to an environment that otherwise holds PATH, and what the
	// caller has of chvemu's settings (BERTH_CHVEMU_…, BERTH_TIME_SCALE).
	ExtraEnv []string
	// Timeout bounds the wait for the first answer; 10 seconds when zero.
	Timeout time.Duration
}

// MaxFile is the size of the largest file that the VMM of a guest with such a
// disk and memory writes: its disk, or its memory when it is saved. Its state
// beside that is a few MB. What was cut from the beginning of a log counts, so a log
// that a guest has made that long gets no more lines.
func MaxFile(diskMB, memoryMB int) int64 {
	const step = 1 << 30
	most := int64(max(diskMB, memoryMB+stateMB)) << 20
	return (most + step - 1) / step * step
}

// stateMB is room for a state beside the memory.
const stateMB = 64

// Cgroup is where the VMM lives from its first instruction.
type Cgroup struct {
	// V2 is an open directory of the unified hierarchy, or nil. The caller
	// closes it.
	V2 *os.File
	// V1 lists directories of version 1 hierarchies, one a controller.
	V1 []string
}

const (
	// maxSocketPath is what struct sockaddr_un holds beside the final zero.
	maxSocketPath = 107
)

var defaultStartTimeout = timescale.Limit(10 * time.Second)

// Start starts a VMM in a session of its own and waits until it answers. The
// process outlives the caller: it has no pipe to it, and gets no signal when it
// ends. A socket or lock file of an earlier VMM is no obstacle; a VMM that still
// runs there is.
//
// When Start fails, nothing it started is left.
func Start(ctx context.Context, l Launch) (*Process, error) {
	p, err := start(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("start VMM in %s: %w", l.Dir, err)
	}
	return p, nil
}

func start(ctx context.Context, l Launch) (*Process, error) {
	if l.Timeout == 0 {
		l.Timeout = defaultStartTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	if err := prepareDir(l); err != nil {
		return nil, err
	}
	socket := SocketPath(l.Dir)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than the %d bytes that a unix address holds", socket, maxSocketPath)
	}
	// The last VMM here may have been killed a moment ago and still be closing
	// its files; one that keeps them is alive.
	lctx, lcancel := context.WithTimeout(ctx, releaseTimeout)
	defer lcancel()
	if err := awaitLock(lctx, socket+".lock"); err != nil {
		return nil, fmt.Errorf("another VMM holds %s: %w", socket, err)
	}
	log, err := openPlain(LogPath(l.Dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	logStart, err := log.Seek(0, 2)
	if err != nil {
		return nil, err
	}

	program, dir := l.Engine.Path, l.Dir
	var v *view
	if l.Isolated {
		if l.UID == 0 {
			return nil, errors.New("a VMM of root's cannot be isolated")
		}
		if v, err = newView(l.Engine, l.Dir); err != nil {
			return nil, err
		}
		defer v.close()
		program, dir = v.engine, viewRun
	}
	cmd := exec.Command(program,
		"--api-socket", "path="+SocketPath(dir),
		"--event-monitor", "path="+EventsPath(dir),
		"-v", // the VMM's log tells which calls it got
	)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "BERTH_CHVEMU_") || strings.HasPrefix(kv, timescale.Env+"=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, l.ExtraEnv...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if l.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(l.UID), Gid: uint32(l.GID), Groups: groups(l.Groups)}
	}
	if l.Cgroup.V2 != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(l.Cgroup.V2.Fd())
	}
	if l.Isolated {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	}
	if l.MaxFile > 0 {
		// A program that this process starts ignores it too. By default the signal
		// would end it.
		signal.Ignore(unix.SIGXFSZ)
	}
	if err := startConfined(cmd, l, v); err != nil {
		return nil, err
	}
	beAsNice(cmd.Process.Pid)
	Expendable(cmd.Process.Pid)
	p, err := newChild(cmd, l)
	if err != nil {
		// Cannot be waited for properly, so it must not stay.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	if err := p.awaitPing(ctx); err != nil {
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timescale.Limit(5*time.Second))
		defer cancel()
		kerr := p.Kill(kctx)
		return nil, errors.Join(fmt.Errorf("%w; its log ends: %q", err, logTail(log.Name(), logStart)), kerr)
	}
	return p, nil
}

func prepareDir(l Launch) error {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return err
	}
	if l.UID != 0 {
		if err := os.Lchown(l.Dir, l.UID, l.GID); err != nil {
			return err
		}
	}
	// A record of an earlier VMM would be believed until the new one is written.
	if err := os.Remove(filepath.Join(l.Dir, recordName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func groups(ids []int) []uint32 {
	out := make([]uint32, 0, len(ids))
	for _, id := range ids {
		out = append(out, uint32(id))
	}
	return out
}

// startConfined forks from a thread that is in the namespaces and control groups
// and cannot gain privileges, so that the child is confined from its first
// instruction. The thread ends afterwards: most of this cannot be undone.
func startConfined(cmd *exec.Cmd, l Launch, v *view) error {
	return onThread(func() error { return confineAndStart(cmd, l, v) })
}

// onThread runs a function on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end before the process does, and would
			// show its namespace as the process's own. It is kept busy while
			// another one does the work.
			defer runtime.UnlockOSThread()
			inner := make(chan struct{})
			go func() { defer close(inner); run() }()
			<-inner
			return
		}
		done <- f()
		// No UnlockOSThread: the thread ends with the goroutine.
	}
	go run()
	return <-done
}

func confineAndStart(cmd *exec.Cmd, l Launch, v *view) error {
	if l.NetNS != "" {
		fd, err := unix.Open(l.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", l.NetNS, err)
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", l.NetNS, err)
		}
	}
	// In a version 1 hierarchy a thread can be moved by itself, and what it
	// forks starts where it is.
	for _, dir := range l.Cgroup.V1 {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), fmt.Appendf(nil, "%d", unix.Gettid()), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if v != nil {
		if err := v.enter(l.Dir); err != nil {
			return fmt.Errorf("make the VMM's view: %w", err)
		}
	}
	if l.UID != 0 {
		if err := dropPrivileges(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if l.MaxFile > 0 {
		// It has no guest and no other process yet.
		if err := boundFiles(cmd.Process.Pid, l); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return fmt.Errorf("bound the VMM's files: %w", err)
		}
	}
	return nil
}

// boundFiles limits a child that is not yet waited for, so that its pid cannot be
// another's. Its user's own may do that; root needs CAP_SYS_RESOURCE, which a
// container may lack. So the calling thread, which ends soon, takes the real user
// and group, and keeps the effective ones. Go's calls would change every thread.
func boundFiles(pid int, l Launch) error {
	const keep = ^uintptr(0)
	if l.UID != 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(l.GID), keep, keep); errno != 0 {
			return errno
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(l.UID), keep, keep); errno != 0 {
			return errno
		}
	}
	limit := unix.Rlimit{Cur: uint64(l.MaxFile), Max: uint64(l.MaxFile)}
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil)
}

// dropPrivileges makes sure that what the thread starts as another user gains no
// privilege from file capabilities or a set-uid bit.
func dropPrivileges() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // past the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// logTail returns the end of what was written to a log after from.
func logTail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	end, err := f.Seek(0, 2)
	if err != nil {
		return ""
	}
	buf := make([]byte, min(end-from, 512))
	n, _ := f.ReadAt(buf, end-int64(len(buf)))
	return string(buf[:n])
}
