// Package command runs the tenant's commands: as a user of their own, with what they
// write masked, and ended with all that they started.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/proc"
)

// Runner starts commands.
type Runner struct {
	Groups proc.Groups
	User   string // whom they run as; "": root
	// MemoryEvents is the kernel's file that counts processes killed for want of
	// memory; "": there is none.
	MemoryEvents string
}

// DefaultMemoryEvents is MemoryEvents of a guest's workload.
const DefaultMemoryEvents = "/sys/fs/cgroup/sandbox/memory.events"

// Command is what is run.
type Command struct {
	Argv []string // Shell makes one of a line
	Dir  string
	Env  []map[string]string // the later over the earlier
	User string              // "": the Runner's
}

// Shell is the argv of a shell command.
func Shell(line string) []string { return []string{"/bin/sh", "-c", line} }

// Ended is how a command ended.
type Ended struct {
	Code     int
	Signal   string // without SIG; "": it exited
	OOM      bool   // the kernel killed it, or what it started, for want of memory
	Duration time.Duration
}

// OK reports whether a command succeeded.
func (e Ended) OK() bool { return e.Code == 0 }

// String says how it ended, as a sentence goes on after "the command".
func (e Ended) String() string {
	switch {
	case e.OOM:
		return "was killed: out of memory"
	case e.Signal != "":
		return "was killed by SIG" + e.Signal
	case e.Code == 127:
		return "failed: command not found (exit code 127)"
	case e.Code == 126:
		return "failed: not executable (exit code 126)"
	}
	return "failed with exit code " + strconv.Itoa(e.Code)
}

// Running is a command that runs.
type Running struct {
	process *proc.Process
	runner  *Runner
	kills   int64
}

// Start starts a command. What the shell cannot be blamed for is an error; so is a
// program that is not there, if Argv names it itself.
func (r *Runner) Start(c Command) (*Running, error) {
	user := c.User
	if user == "" {
		user = r.User
	}
	kills := r.oomKills()
	p, err := proc.Start(r.Groups, proc.Spec{Argv: c.Argv, Cwd: c.Dir, User: user, Env: c.Env})
	if err != nil {
		return nil, err
	}
	return &Running{process: p, runner: r, kills: kills}, nil
}

// Wait passes the command's output on until its end. When ctx ends, the command and what
// it started are killed.
func (p *Running) Wait(ctx context.Context, stdout, stderr io.Writer) Ended {
	defer context.AfterFunc(ctx, p.process.Kill)()
	exit := p.process.Run(proc.Collect(stdout, stderr))
	e := Ended{Code: exit.ExitCode, Signal: exit.Signal, Duration: time.Duration(exit.DurationMS) * time.Millisecond}
	// A shell reports the signal of its own child as 128 and its number.
	if e.Code != 0 && ctx.Err() == nil {
		e.OOM = p.runner.oomKills() > p.kills
	}
	return e
}

// Terminate asks the command and what it started to end, by SIGTERM to its process group.
func (p *Running) Terminate() { _ = p.process.Signal(syscall.SIGTERM) } // it may have ended

// AwaitRest waits, after the command's end, for the end of what else is in its process
// group, or of ctx.
func (p *Running) AwaitRest(ctx context.Context) {
	tick := time.NewTicker(restPause)
	defer tick.Stop()
	for inGroup(p.process.PID()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// restPause is between two looks at a process group.
const restPause = 50 * time.Millisecond

// Run starts a command and waits for its end.
func (r *Runner) Run(ctx context.Context, c Command, stdout, stderr io.Writer) (Ended, error) {
	p, err := r.Start(c)
	if err != nil {
		return Ended{}, err
	}
	return p.Wait(ctx, stdout, stderr), nil
}

func (r *Runner) oomKills() int64 {
	if r.MemoryEvents == "" {
		return 0
	}
	raw, err := os.ReadFile(r.MemoryEvents)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			count, _ := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			return count
		}
	}
	return 0
}

// errLeft says that processes could not be ended.
var errLeft = errors.New("processes are left that cannot be ended")

// EndAll kills everything of the runner's user, and waits until it is gone. It does
// nothing where commands run as root, or as this program's own user.
func (r *Runner) EndAll(ctx context.Context) error {
	uid, err := r.uid()
	if err != nil || uid == 0 || uid == os.Getuid() || os.Getuid() != 0 {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err := killUser(uid); err != nil {
			return fmt.Errorf("end the processes of %s: %w", r.User, err)
		}
		left, err := processes(uid)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%w: %v", errLeft, left)
		}
	}
}

func (r *Runner) uid() (int, error) {
	if r.User == "" {
		return 0, nil
	}
	u, err := proc.LookUpUser(r.User)
	return int(u.UID), err
}

// UID is the number of the runner's user.
func (r *Runner) UID() (uid int, ok bool) {
	uid, err := r.uid()
	if os.Getuid() != 0 {
		uid = os.Getuid()
	}
	return uid, err == nil
}
