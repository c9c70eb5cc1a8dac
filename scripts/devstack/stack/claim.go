package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/scripts/devstack/preflight"
)

// Claim is the right to run a stack in a directory, held by this process from
// before slow preparations until the stack ends, so that no other stack starts there
// meanwhile and Down finds whom to ask.
type Claim struct {
	options Options
	lock    locks
}

// locks are what a stack holds: its directory, and the ids of its hosts, whose namespaces,
// rules and cgroups have the same names whichever clone a stack is of.
type locks []*os.File

// Close releases them.
func (l locks) Close() error {
	var err error
	for _, f := range l {
		err = errors.Join(err, f.Close())
	}
	return err
}

// NewClaim refuses if a stack runs in the directory or the machine cannot run one.
// It removes what an earlier stack left there, whose memory, disk and ports would
// otherwise be missing.
func NewClaim(ctx context.Context, o Options) (_ *Claim, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	unix.Umask(openUmask)
	if err := o.checkMachine(preflight.This); err != nil {
		return nil, err
	}
	dir, err := o.takeLock()
	if err != nil {
		return nil, err
	}
	c := &Claim{options: o, lock: locks{dir}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Release())
		}
	}()
	ids, err := o.takeHosts()
	if err != nil {
		return nil, err
	}
	c.lock = append(c.lock, ids)
	if err := o.takeDown(ctx); err != nil {
		return nil, fmt.Errorf("clean up after the last run: %w", err)
	}
	if err := o.checkRoom(preflight.This); err != nil {
		return nil, err
	}
	return c, o.checkPorts()
}

// Release gives up the claim, unless it became a stack's.
func (c *Claim) Release() error {
	if c.lock == nil {
		return nil
	}
	defer func() { c.lock = nil }()
	return c.lock.Close()
}

// openUmask is set before anything is made: VMMs run as users of their own, and open
// what this process and its children make, whatever the umask of its caller.
const openUmask = 0o022

// takeLock locks the stack's directory for this process. The kernel releases the
// lock however we die.
func (o Options) takeLock() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(o.Dir+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		holder, _ := os.ReadFile(f.Name())
		return nil, preflight.Refusef("a stack already runs here (pid %s): use it with .berth/dev.env, or stop it with make down", strings.TrimSpace(string(holder)))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hostsLock is the file that a stack with these hosts locks.
func (o Options) hostsLock() string { return "/run/berth-stack-" + o.HostPrefix + ".lock" }

// takeHosts locks the ids of the stack's hosts on this machine. It needs the right to write
// below /run.
func (o Options) takeHosts() (*os.File, error) {
	f, err := os.OpenFile(o.hostsLock(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		other, _ := os.ReadFile(f.Name())
		return nil, preflight.Refusef("the Berth of another clone runs on this machine, and there can be one: stop it with make down in %s", strings.TrimSpace(string(other)))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, o.Root+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}
