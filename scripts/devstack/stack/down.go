package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/scripts/devstack/preflight"
)

// Down stops a stack from outside: it asks the `up` that runs it to stop or, if
// that is dead, removes what it left behind. The error names what could not be
// removed.
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
	ids, err := o.takeHosts()
	if err != nil {
		return err
	}
	defer ids.Close()
	return o.takeDown(ctx)
}

// askHolder interrupts the process that holds the lock, and takes the lock when
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
	o.Notify("stopping the running stack (pid %d)", pid)
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

// takeDown removes all kernel resources of a stack with these options, and its
// runtime directory. The caller holds the lock and has stopped its own processes;
// those of an earlier, dead supervisor are stopped here.
func (o Options) takeDown(ctx context.Context) error {
	if err := o.killRecorded(ctx); err != nil {
		return err
	}
	if err := o.purgeHosts(ctx); err != nil {
		return err
	}
	if err := o.purgeBuilds(ctx); err != nil {
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
		return fmt.Errorf("%d resources are left behind:\n  %s", len(left), strings.Join(names, "\n  "))
	}
	if err := os.Remove(filepath.Join(filepath.Dir(o.Dir), "dev.env")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(o.Dir)
}

// killRecorded kills the replicas and hosts that a dead supervisor left running.
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
		o.Notify("killing %s (pid %d), left by a stack that was killed", strings.TrimSuffix(filepath.Base(r), ".json"), pid)
		// Killing is safe: hosts and replicas survive it, and their state is
		// deleted here anyway.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end pid %d: %w", pid, err)
		}
		err = Await(ctx, 10*time.Second, 10*time.Millisecond, fmt.Sprintf("pid %d ends", pid), func(context.Context) error {
			if _, alive, err := readRecord(r); alive || err != nil {
				return errors.Join(err, errors.New("it still runs"))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// purgeHosts runs each host's own program to remove its VMs, slots, rules and
// cgroups. For a host that never existed there is nothing to do.
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

// purgeBuilds removes what builds of templates that were killed left: guests,
// networks and rules. They do not belong to one stack.
func (o Options) purgeBuilds(ctx context.Context) error {
	var failed error
	for i := range maxHosts {
		failed = errors.Join(failed, o.purgeBuild(ctx, i, runDir(buildPrefix+strconv.Itoa(i+1))))
	}
	return failed
}

// purgeBuild purges the host of one build, whose runtime directory a build makes
// first and removes last. It leaves a build that runs alone, whoever runs it, and
// keeps new ones waiting, by holding their lock (hostd/builder.go).
func (o Options) purgeBuild(ctx context.Context, i int, dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, "build.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil
		}
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	ours, err := lock.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(lock.Name()); err != nil || !os.SameFile(ours, now) {
		return nil // the build ended meanwhile, and perhaps another began
	}
	o.Notify("removing what a killed build of a template left (%s)", filepath.Base(dir))
	// To open the store of templates is to end the guests of killed builds in it.
	for _, args := range [][]string{openStoreArgs, purgeArgs} {
		cmd := exec.CommandContext(ctx, o.bin("hostd"), args...)
		cmd.Env = o.buildEnv(i)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("purge %s: %w: %s", filepath.Base(dir), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
