package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one program of the stack. Its methods may be called from any
// goroutine. The program writes to its log file directly, so that it does not die
// of a broken pipe if we die.
type Process struct {
	ID   string
	Path string
	Args []string
	Env  []string // complete
	Nice int      // below 0: priority over others

	wrap    []string // a command that becomes the program, with its first arguments
	logFile string
	record  string // where pid and start time are kept, for a `down` after a crash

	mu      sync.Mutex
	cmd     *exec.Cmd
	done    chan struct{} // closed when the current run has been waited for
	exit    error         // of the last run
	wanted  bool          // false from Stop or Kill9 until the next Start
	started int           // runs so far
}

// Start runs the program. It is an error if it already runs.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("%s already runs", p.ID)
	}
	if err := os.MkdirAll(filepath.Dir(p.logFile), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := slices.Concat(p.wrap, []string{p.Path}, p.Args)
	if p.Nice != 0 {
		// nice executes the program: the pid stays the same.
		argv = append([]string{"nice", "-n", strconv.Itoa(p.Nice)}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = p.Env
	cmd.Stdout, cmd.Stderr = log, log
	// Its own session: Ctrl-C at the terminal reaches only us, and we stop the
	// others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.ID, err)
	}
	if p.Nice != 0 {
		// If the kernel groups sessions (autogroup), nice works only within one,
		// and the session has its own nice value. Other kernels lack this file.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte(strconv.Itoa(p.Nice)), 0)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.wanted = cmd, done, true
	p.started++
	if err := writeRecord(p.record, cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.exit = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// running is true between a start and the end of that run. Callers hold mu.
func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Running reports whether the program runs now.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running()
}

// Wanted reports whether the program should run: it was started and has not been
// stopped or killed through this package since.
func (p *Process) Wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// PID returns the pid of the current or last run, 0 before the first.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Done is closed when the current run has ended. Exit then tells how.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return p.done
}

// Exit returns how the last run ended; nil for status 0.
func (p *Process) Exit() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// signal sends sig if the program runs.
func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", sig, p.ID, err)
	}
	return nil
}

// Kill9 kills the program as a crash would and waits until it is gone.
func (p *Process) Kill9() error {
	p.forget()
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

// Pause stops the program with SIGSTOP: it keeps its connections and answers
// nothing, like a hung machine. Continue reverses it.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Continue resumes a paused program.
func (p *Process) Continue() error { return p.signal(syscall.SIGCONT) }

// Stop asks the program to end, and kills it if ctx ends first. It returns when
// the program is gone.
func (p *Process) Stop(ctx context.Context) error {
	p.forget()
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	// A paused program does not react to SIGTERM.
	if err := p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		err := p.signal(syscall.SIGKILL)
		<-p.Done()
		return errors.Join(fmt.Errorf("%s did not end in time and was killed", p.ID), err)
	}
}

// Restart stops the program and starts it again.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start()
}

// forget tells the supervisor that the coming end is intended.
func (p *Process) forget() {
	p.mu.Lock()
	p.wanted = false
	p.mu.Unlock()
}

// supervise restarts the program when it ends unexpectedly, after a pause that
// doubles while it ends soon after its start. It returns when ctx ends.
func (p *Process) supervise(ctx context.Context, notify func(string, ...any)) {
	const first, most, old = 250 * time.Millisecond, 8 * time.Second, 30 * time.Second
	pause := first
	for {
		began := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-p.Done():
		}
		p.mu.Lock()
		wanted, exit := p.wanted, p.exit
		p.mu.Unlock()
		if !wanted {
			return
		}
		if time.Since(began) > old {
			pause = first
		}
		notify("%s ended (%s); starting it again in %s — its log is %s", p.ID, describeExit(exit), pause, p.logFile)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, most)
		if ctx.Err() != nil {
			return
		}
		if err := p.Start(); err != nil {
			notify("%s cannot be started again: %s", p.ID, err)
			return
		}
	}
}

func describeExit(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// procRecord identifies a process: pids are reused, but a pid with its start time
// is unique.
type procRecord struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/<pid>/stat, in ticks since boot
}

func writeRecord(path string, pid int) error {
	start, _, err := startTime(pid)
	if err != nil {
		return err
	}
	b, err := json.Marshal(procRecord{PID: pid, StartTime: start})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// readRecord returns the pid of the recorded process if that process is alive.
func readRecord(path string) (pid int, alive bool, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false, err
	}
	var r procRecord
	if err := json.Unmarshal(b, &r); err != nil {
		// Incomplete after a crash: the census finds its process.
		return 0, false, nil
	}
	start, state, err := startTime(r.PID)
	alive = err == nil && start == r.StartTime && state != "Z"
	return r.PID, alive, nil
}

// startTime reads when a process started, in clock ticks since boot, and its
// state letter.
func startTime(pid int) (start uint64, state string, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, "", err
	}
	// The second field, the name in parentheses, may contain spaces.
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("/proc/%d/stat: %d fields after the name", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0], err
}
