package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// start begins a postmaster whose output goes to log and to guestpg's own.
func (c Config) start(log io.Writer) (*process, error) {
	cred, err := c.Credential()
	if err != nil {
		return nil, err
	}
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(c.Bin, "postgres"), "-D", c.Data(), "-c", "config_file="+c.conf("postgresql.conf"))
	p.cmd.Dir = c.Dir
	p.cmd.Env = []string{
		"PATH=/usr/bin:/bin", "LANG=C", "LC_ALL=C",
		// The postmaster keeps guestpg's protection from the kernel's killer; sessions,
		// which take what the tenant's SQL asks for, do not.
		"PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj", "PG_OOM_ADJUST_VALUE=0",
	}
	p.cmd.Stdout = io.MultiWriter(log, c.Output)
	p.cmd.Stderr = p.cmd.Stdout
	p.cmd.WaitDelay = time.Second // a session may hold the pipe for longer than the postmaster lives
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cred, Pdeathsig: syscall.SIGINT}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig at the end of the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		if errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil
		}
		close(p.done)
	}()
	return p, <-started
}

func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// stop asks for a fast shutdown, then an immediate one, then kills.
func (p *process) stop(ctx context.Context, immediate bool) error {
	fast := ctx
	if immediate {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		fast = ended
	} else if err := p.signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-fast.Done():
	case <-time.After(fastStop):
	}
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.signal(sig); err != nil {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(immediateStop):
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) does not end", p.cmd.Process.Pid)
}

// endOrphan ends the postmaster of a guestpg that was killed, if there is one: two
// never share a data directory, and this one's output is gone.
func (c Config) endOrphan(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(c.Data(), "postmaster.pid"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	line, _, _ := bytes.Cut(raw, []byte("\n"))
	pid, err := strconv.Atoi(string(line))
	if err != nil || pid <= 1 {
		return nil // PostgreSQL says what it thinks of the file
	}
	// The file names whoever wrote it; the process is ours only if it runs our program.
	want, err := filepath.EvalSymlinks(filepath.Join(c.Bin, "postgres"))
	if err != nil {
		return err
	}
	runs := func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		cwd, errCwd := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		return err == nil && errCwd == nil && exe == want && cwd == c.Data()
	}
	for i, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if !runs() {
			return nil
		}
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		patience := immediateStop
		if i == 0 {
			patience = fastStop
		}
		for deadline := time.Now().Add(patience); runs() && time.Now().Before(deadline); {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if runs() {
		return fmt.Errorf("a PostgreSQL of before (process %d) does not end", pid)
	}
	return nil
}

// How much of the server's log is kept to be told.
const (
	tailLines = 40
	tailWidth = 512 // bytes of a line
)

// logTail keeps the last lines that a server wrote.
type logTail struct {
	mu   sync.Mutex
	part []byte
	kept []string
}

func (t *logTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range p {
		if b != '\n' {
			if len(t.part) < tailWidth {
				t.part = append(t.part, b)
			}
			continue
		}
		t.kept = append(t.kept, string(bytes.ToValidUTF8(t.part, []byte("\uFFFD"))))
		if len(t.kept) > tailLines {
			t.kept = append(t.kept[:0], t.kept[1:]...)
		}
		t.part = t.part[:0]
	}
	return len(p), nil
}

func (t *logTail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.kept...)
}
