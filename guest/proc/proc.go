// Package proc runs the workload's commands: as which user, in which environment,
// within which limits, and how they and everything they started are ended.
package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Spec is one command.
type Spec struct {
	Argv        []string // empty with TTY: the user's login shell
	Cwd         string   // default: the user's home
	User        string   // see LookUpUser
	Env         []map[string]string
	TTY         *guestapi.TTY
	Stdin       bool          // there will be input; else it reads /dev/null
	Timeout     time.Duration // 0: none
	OutputLimit int64         // bytes per stream; 0: none
}

// ErrInvalid is wrapped by errors that say what a request got wrong.
var ErrInvalid = errors.New("invalid command")

// ErrCwd is the ErrInvalid of a directory in which no command can start.
var ErrCwd = fmt.Errorf("%w: cwd", ErrInvalid)

// ErrLimit is wrapped by errors that say which limit of the guest was reached.
var ErrLimit = errors.New("limit reached")

// ErrEnded is returned for a signal to a command that ended.
var ErrEnded = errors.New("command ended")

// Check refuses what no kernel would accept, before anything is started.
func (s Spec) Check() error {
	if len(s.Argv) == 0 && s.TTY == nil {
		return fmt.Errorf("%w: argv is empty", ErrInvalid)
	}
	for i, arg := range s.Argv {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("%w: argv[%d] contains a NUL byte", ErrInvalid, i)
		}
	}
	if strings.ContainsRune(s.Cwd, 0) {
		return fmt.Errorf("%w contains a NUL byte", ErrCwd)
	}
	for _, env := range s.Env {
		for k, v := range env {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
				return fmt.Errorf("%w: environment variable %q: a name is not empty and has no '=', and neither part a NUL byte", ErrInvalid, k)
			}
		}
	}
	if s.Timeout < 0 || s.OutputLimit < 0 {
		return fmt.Errorf("%w: negative time-out or output limit", ErrInvalid)
	}
	return nil
}

// Process is a running command.
type Process struct {
	spec    Spec
	pid     int
	pidfd   *os.File // nil where the kernel has none
	group   *Group
	grace   time.Duration
	started time.Time

	stdin  *os.File // nil when the command reads /dev/null
	stdout *os.File // the terminal, when there is one
	stderr *os.File // nil with a terminal

	mu     sync.Mutex
	reaped bool // its pid may be another process's
}

// Start starts a command in its own session, process group and control group.
// Its errors are a *CommandError, or wrap ErrInvalid, ErrCwd, ErrNoUser or ErrLimit, or
// are the guest's own.
func Start(groups Groups, spec Spec) (*Process, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	user, err := LookUpUser(spec.User)
	if err != nil {
		return nil, err
	}
	dir, err := workingDir(spec.Cwd, user)
	if err != nil {
		return nil, err
	}
	env := Environ(user, spec.TTY != nil, spec.Env...)
	var path string
	if len(spec.Argv) == 0 {
		path, spec.Argv = loginShell(user)
	} else if path, err = lookPath(spec.Argv[0], lookEnv(env, "PATH"), dir); err != nil {
		return nil, err
	}
	p := &Process{spec: spec, grace: outputGrace}
	files, err := p.open(user)
	defer closeAll(files)
	if err != nil {
		p.closeOwn()
		return nil, fmt.Errorf("open the command's streams: %w", limited(err))
	}
	if p.group, err = groups.NewExec(); err != nil {
		p.closeOwn()
		return nil, limited(err)
	}
	if err := p.fork(path, dir, env, files, user); err != nil {
		p.group.Remove()
		p.closeOwn()
		return nil, err
	}
	return p, nil
}

func workingDir(cwd string, user User) (string, error) {
	if cwd == "" {
		return user.Dir(), nil
	}
	dir := absolute(cwd, user.Dir())
	st, err := os.Stat(dir)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return "", fmt.Errorf("%w %q: %w", ErrCwd, cwd, err)
	}
	if !st.IsDir() {
		return "", fmt.Errorf("%w %q: not a directory", ErrCwd, cwd)
	}
	return dir, nil
}

// open makes the command's streams. It returns the child's ends; ours are in p.
func (p *Process) open(user User) (child []*os.File, err error) {
	if p.spec.TTY != nil {
		master, slave, err := openTerminal(user, *p.spec.TTY)
		if err != nil {
			return nil, err
		}
		p.stdin, p.stdout = master, master
		return []*os.File{slave, slave, slave}, nil
	}
	var in *os.File
	if p.spec.Stdin {
		in, p.stdin, err = os.Pipe()
	} else {
		in, err = os.Open(os.DevNull)
	}
	if err != nil {
		return child, err
	}
	child = append(child, in)
	for _, own := range []**os.File{&p.stdout, &p.stderr} {
		var out *os.File
		if *own, out, err = os.Pipe(); err != nil {
			return child, err
		}
		child = append(child, out)
	}
	return child, nil
}

func (p *Process) fork(path, dir string, env []string, files []*os.File, user User) error {
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if p.spec.TTY != nil {
		sys.Setctty = true // descriptor 0, the zero value of Ctty
	}
	if os.Geteuid() == 0 {
		sys.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
	}
	p.group.Join(sys)
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Sys: sys}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	protect := expose()
	p.started = time.Now()
	pid, err := forkExec(path, p.spec.Argv, attr)
	if errors.Is(err, unix.ENOEXEC) {
		// A script without #!, which execvp gives to the shell.
		pid, err = forkExec("/bin/sh", append([]string{"sh", path}, p.spec.Argv[1:]...), attr)
	}
	protect()
	switch {
	case err == nil:
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return limited(err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: arguments and environment together are too long", ErrInvalid)
	default:
		return commandError(p.spec.Argv[0], err)
	}
	p.pid = pid
	if pidfd >= 0 {
		if err := unix.SetNonblock(pidfd, true); err == nil {
			p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
		} else {
			_ = unix.Close(pidfd)
		}
	}
	return nil
}

// limited names the limit behind an error of the kernel.
func limited(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%w: the sandbox has as many processes as it may have", ErrLimit)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: the sandbox has no memory left", ErrLimit)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: too many commands at once: %w", ErrLimit, err)
	}
	return err
}

// Resize sets the terminal's size.
func (p *Process) Resize(size guestapi.TTY) error {
	if p.spec.TTY == nil {
		return fmt.Errorf("%w: it has no terminal", ErrInvalid)
	}
	return setSize(p.stdout, size)
}

// PID is the id of the command's process, and of its process group.
func (p *Process) PID() int { return p.pid }

// Signal signals the process group; with a terminal, the one in its foreground.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return ErrEnded
	}
	if p.spec.TTY != nil {
		if pgid, err := foreground(p.stdout); err == nil && pgid > 0 {
			return syscall.Kill(-pgid, sig)
		}
	}
	return syscall.Kill(-p.pid, sig)
}

// Kill kills the command and everything it started that still runs. After the
// command's end it does nothing: what still runs was left on purpose.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	_ = p.group.Kill()
}

// wait waits for the command's end. Until it returns the pid is the command's.
func (p *Process) wait() syscall.WaitStatus {
	p.awaitExit()
	p.mu.Lock()
	defer p.mu.Unlock()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	p.reaped = true
	if p.pidfd != nil {
		_ = p.pidfd.Close()
	}
	return status
}

// awaitExit returns when the command can be reaped, without reaping it and
// without holding a thread where the kernel has pidfds.
func (p *Process) awaitExit() {
	if p.pidfd != nil {
		raw, err := p.pidfd.SyscallConn()
		if err == nil && raw.Read(p.exited) == nil {
			return
		}
	}
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// exited is called whenever the pidfd may have become readable.
func (p *Process) exited(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

func (p *Process) closeOwn() {
	closeAll([]*os.File{p.stdin, p.stdout, p.stderr})
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // the terminal is in the list three times
		}
	}
}
