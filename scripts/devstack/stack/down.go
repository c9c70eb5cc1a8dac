package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/scripts/devstack/preflight"
)

// Down takes a stack down from outside: it asks the `up` that runs it, or, when
// that one is dead, removes what it left. It returns an error that names
// whatever could not be removed.
func Down(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return preflight.Refusef("make down needs root: run it with sudo")
	}
	lock, err := o.takeLock()
	if IsRefusal(err) {
		if lock, err = o.askHolder(ctx); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	defer lock.Close()
	return o.takeDown(ctx)
}

// askHolder interrupts the process that holds the lock, and takes the lock once
// that process has ended.
func (o Options) askHolder(ctx context.Context) (*os.File, error) {
	b, err := os.ReadFile(o.Dir + ".lock")
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("%s.lock does not name a process: %w", o.Dir, err)
	}
	o.Notify("asking the running stack (pid %d) to end", pid)
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("end pid %d: %w", pid, err)
	}
	var lock *os.File
	err = Await(ctx, 3*time.Minute, 50*time.Millisecond, "the running stack ends", func(context.Context) error {
		var err error
		lock, err = o.takeLock()
		return err
	})
	return lock, err
}

// takeDown removes all that a stack of these options has in the kernel, and its
// runtime directory. The caller holds the lock and has stopped the processes
// that it started itself; those of an earlier, dead supervisor are ended here.
func (o Options) takeDown(ctx context.Context) error {
	if err := o.killRecorded(ctx); err != nil {
		return err
	}
	if err := o.purgeHosts(ctx); err != nil {
		return err
	}
	if err := o.removeMachines(); err != nil {
		return err
	}
	left, err := o.Census()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		names := make([]string, len(left))
		for i, t := range left {
			names[i] = t.String()
		}
		return fmt.Errorf("%d things are left behind:\n  %s", len(left), strings.Join(names, "\n  "))
	}
	if err := os.Remove(filepath.Join(filepath.Dir(o.Dir), "dev.env")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(o.Dir)
}

// killRecorded ends the replicas and hosts that a dead supervisor left running.
func (o Options) killRecorded(ctx context.Context) error {
	records, err := filepath.Glob(filepath.Join(o.recordDir(), "*.json"))
	if err != nil {
		return err
	}
	for _, r := range records {
		pid, alive, err := readRecord(r)
		if err != nil {
			return err
		}
		if !alive {
			continue
		}
		o.Notify("ending %s (pid %d), left by a stack that was killed", strings.TrimSuffix(filepath.Base(r), ".json"), pid)
		// A killed daemon is what hosts and replicas are made to survive, and
		// here nothing of them is to survive anyway.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end pid %d: %w", pid, err)
		}
		err = Await(ctx, 10*time.Second, 10*time.Millisecond, fmt.Sprintf("pid %d ends", pid), func(context.Context) error {
			if _, alive, err := readRecord(r); alive || err != nil {
				return errors.Join(err, errors.New("it is still there"))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// purgeHosts has each host's own program remove the host's VMs, slots, rules
// and groups. A host that never was has nothing, which is no error.
func (o Options) purgeHosts(ctx context.Context) error {
	if left, err := o.Census(); err == nil && len(left) == 0 {
		return nil
	}
	errs := make([]error, o.Hosts)
	var all sync.WaitGroup
	for i := range o.Hosts {
		all.Go(func() {
			id := o.hostID(i)
			if o.Machines && !o.hasMachine(id) {
				return // and so nothing that was on it
			}
			cmd := o.command(ctx, id, append([]string{o.bin("hostd")}, purgeArgs...)...)
			cmd.Env = o.hostEnv(i)
			if out, err := cmd.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("purge %s: %w: %s", id, err, strings.TrimSpace(string(out)))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
