// Package initd is guestd as the guest's process 1: it mounts, reaps, keeps the
// agent and the template's start command running, and powers the guest off.
package initd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/boot"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

// PowerOffSignal, sent to process 1, powers the guest off.
const PowerOffSignal = syscall.SIGPWR

// The agent is started again after a pause that doubles up to the second, so
// that an agent that cannot start does not keep the CPU busy.
const (
	agentRetryMin = 50 * time.Millisecond
	agentRetryMax = time.Second
)

// Run is process 1. It returns only if it cannot begin its work.
func Run(log *slog.Logger) error {
	if os.Getpid() != 1 {
		return errors.New("guestd init is process 1 of a guest, nothing else")
	}
	if err := prepare(); err != nil {
		log.Error("guest not fully prepared", "error", err)
	}
	groups, err := proc.SetUpGroups()
	if err != nil {
		log.Error("no limits on the workload's processes", "error", err)
	}
	spec, err := guestapi.ReadBootSpec()
	if err != nil {
		log.Error("boot specification not read; the start command does not run", "error", err)
	}
	unix.CloseOnExec(boot.DiskFD)

	// Every signal is taken and all but one ignored: a workload's `kill 1` must not
	// end process 1, which would panic the kernel. Ignoring them in the kernel's
	// sense instead would be inherited by every child.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals)
	ctx, stop := context.WithCancel(context.Background())
	reap := newReaper()
	var running sync.WaitGroup
	running.Go(func() { reap.run(ctx.Done()) })
	running.Go(func() { keepAgent(ctx, log, reap) })
	if spec.Start != "" {
		running.Go(func() { keepStart(ctx, log, reap, groups, spec) })
	}

	for s := range signals {
		if s == PowerOffSignal {
			break
		}
	}
	log.Info("powering off")
	stop()
	running.Wait()
	shutDown(log)
	return nil
}

// keepAgent runs the agent and starts it again whenever it ends.
func keepAgent(ctx context.Context, log *slog.Logger, reap *reaper) {
	retry := agentRetryMin
	for {
		started := time.Now()
		ended, err := startAgent(log, reap)
		if err != nil {
			log.Error("agent not started", "error", err)
		} else {
			select {
			case status := <-ended:
				log.Error("agent ended", "status", describe(status))
			case <-ctx.Done():
				return
			}
		}
		if time.Since(started) > agentRetryMax {
			retry = agentRetryMin
		}
		select {
		case <-time.After(retry):
			retry = min(2*retry, agentRetryMax)
		case <-ctx.Done():
			return
		}
	}
}

func startAgent(log *slog.Logger, reap *reaper) (<-chan syscall.WaitStatus, error) {
	pid, ended, err := reap.start(guestapi.ProgramPath, []string{"guestd", "agent"}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2, boot.DiskFD},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	// The kernel never picks process 1 when memory runs out; the agent gets the
	// same from its own score, which its children do not keep (see proc).
	if err := proc.SetOOMScore(pid, proc.AgentOOMScore); err != nil {
		log.Error("agent not protected from the want of memory", "error", err)
	}
	return ended, nil
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
