package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Keeper keeps a guard beside the daemon.
type Keeper struct {
	Command []string
	Log     *slog.Logger
}

// keepPause is the time between two looks at the guard.
const keepPause = time.Second

// Run starts a guard, which takes over from that of an earlier daemon, and another if
// it ends, until ctx ends. The guard outlives it: the daemon may not come back.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(keepPause)
	defer tick.Stop()
	pid := 0
	for {
		if pid != 0 {
			pid = k.look(pid)
		}
		if pid == 0 {
			var err error
			if pid, err = k.start(); err != nil {
				k.Log.Error("the guard cannot be started: if this daemon hangs, exclusive sandboxes outlive the lease", "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look returns 0 if the guard has ended, else its pid.
func (k *Keeper) look(pid int) int {
	var status unix.WaitStatus
	switch got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); {
	case got == 0 && err == nil, errors.Is(err, unix.EINTR):
		return pid
	case err != nil:
		k.Log.Error("what became of the guard is not known, another is started", "error", err)
	default:
		k.Log.Error("the guard has ended, another is started", "exit_code", status.ExitStatus(), "signal", int(status.Signal()))
	}
	return 0
}

// start starts the process in a session of its own, so that it is not interrupted with
// the daemon. Its file descriptors say what keeps it from beginning.
func (k *Keeper) start() (int, error) {
	p, err := os.StartProcess(k.Command[0], k.Command, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{nil, os.Stderr, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start the guard: %w", err)
	}
	return p.Pid, p.Release()
}
