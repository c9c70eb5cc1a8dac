package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// fault breaks one thing and repairs it before it returns. It returns errNothing
// if there was nothing to break.
type fault struct {
	name string
	do   func(ctx context.Context, k *soak, r *rand.Rand) error
}

var errNothing = errors.New("there is nothing to break")

var faults = []fault{
	{"kill-leader", func(ctx context.Context, k *soak, r *rand.Rand) error { return k.kill(ctx, k.leader(ctx, r), r) }},
	{"kill-replica", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.kill(ctx, pick(r, k.stack.Replicas), r)
	}},
	{"kill-hostd", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.kill(ctx, pick(r, k.stack.HostProc), r)
	}},
	{"kill-vmm", func(ctx context.Context, k *soak, r *rand.Rand) error { return k.killVMM(ctx, r) }},
	{"freeze-leader", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.freeze(ctx, k.beyondLease(r), k.leader(ctx, r))
	}},
	{"freeze-hostd", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.freeze(ctx, k.beyondLease(r), pick(r, k.stack.HostProc))
	}},
	{"freeze-all-replicas", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.freeze(ctx, k.beyondLease(r), k.stack.Replicas...)
	}},
	{"cut-leader", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.cut(ctx, k.leader(ctx, r), k.beyondLease(r))
	}},
	{"cut-host", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.cut(ctx, pick(r, k.stack.HostProc), k.beyondLease(r))
	}},
	{"blink-host", func(ctx context.Context, k *soak, r *rand.Rand) error {
		return k.cut(ctx, pick(r, k.stack.HostProc), upTo(r, k.options.lease/2))
	}},
	{"slow-disk", func(ctx context.Context, k *soak, r *rand.Rand) error {
		all := slices.Concat(k.stack.Replicas, k.stack.HostProc)
		return k.slowDisk(ctx, pick(r, all), upTo(r, 800*time.Millisecond), 15*time.Second)
	}},
	{"hung-disk", func(ctx context.Context, k *soak, r *rand.Rand) error {
		targets := append([]*stack.Process{k.leader(ctx, r)}, k.stack.HostProc...)
		return k.slowDisk(ctx, pick(r, targets), time.Minute, k.beyondLease(r))
	}},
}

func faultNames() []string {
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.name
	}
	return names
}

// chosenFaults parses a list of names; an empty list means all.
func chosenFaults(list string) ([]string, error) {
	if list == "" {
		return faultNames(), nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(faultNames(), name) {
			return nil, fmt.Errorf("unknown fault %q; known: %s", name, strings.Join(faultNames(), ", "))
		}
	}
	return names, nil
}

// breakThings injects one fault after another, with pauses, until ctx ends. Each
// round has every chosen kind once.
func (k *soak) breakThings(ctx context.Context) error {
	r := k.options.random(0)
	var round []string // the rest of this round
	for wait(ctx, 3*time.Second+upTo(r, 6*time.Second)) {
		if len(round) == 0 {
			round = slices.Clone(k.options.faults)
			r.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		name := round[0]
		round = round[1:]
		if err := k.inflict(ctx, name, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// inflict injects one fault and counts it if it took effect.
func (k *soak) inflict(ctx context.Context, name string, r *rand.Rand) error {
	f := faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == name })]
	k.history.breaks()
	err := f.do(ctx, k, r) // it repairs even if ctx ends meanwhile
	k.history.mends()
	if errors.Is(err, errNothing) {
		return nil
	}
	if err == nil && ctx.Err() == nil { // otherwise it was interrupted
		k.history.fault(name)
	}
	return err
}

// leader returns the leader, or any replica if there is none.
func (k *soak) leader(ctx context.Context, r *rand.Rand) *stack.Process {
	if p := k.stack.Leader(ctx); p != nil {
		return p
	}
	return pick(r, k.stack.Replicas)
}

// beyondLease is longer than a host's lease.
func (k *soak) beyondLease(r *rand.Rand) time.Duration {
	return k.options.lease*12/10 + upTo(r, k.options.lease)
}

func (k *soak) kill(ctx context.Context, p *stack.Process, r *rand.Rand) error {
	say("kill -9 %s", p.ID)
	if err := p.Kill9(); err != nil {
		return err
	}
	wait(ctx, upTo(r, 3*time.Second))
	return p.Start()
}

// killVMM kills the VMM of a box, after which its sandbox may be failed.
func (k *soak) killVMM(ctx context.Context, r *rand.Rand) error {
	var boxes []hostapi.Box
	ask, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, err := k.stack.Boxes(ask)
	if err != nil {
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	for _, id := range sortedKeys(all) {
		for _, b := range all[id] {
			if b.VMMPID != 0 {
				boxes = append(boxes, b)
			}
		}
	}
	if len(boxes) == 0 {
		return errNothing
	}
	b := pick(r, boxes)
	say("kill -9 the VMM of %s", hostapi.ShortID(b.ID))
	k.history.doom(b.ID, "its VMM was killed")
	switch err := unix.Kill(b.VMMPID, unix.SIGKILL); {
	case errors.Is(err, unix.ESRCH):
		return errNothing
	case err != nil:
		return fmt.Errorf("kill VMM %d: %w", b.VMMPID, err)
	}
	return nil
}

func (k *soak) freeze(ctx context.Context, most time.Duration, procs ...*stack.Process) error {
	for _, p := range procs {
		say("freeze %s for %s", p.ID, most.Round(time.Second))
		if err := p.Pause(); err != nil {
			return err
		}
	}
	wait(ctx, most)
	var failed error
	for _, p := range procs {
		failed = errors.Join(failed, p.Continue())
	}
	return failed
}

func (k *soak) cut(ctx context.Context, p *stack.Process, most time.Duration) error {
	say("disconnect %s for %s", p.ID, most.Round(time.Millisecond))
	if err := k.stack.Cut(p.ID); err != nil {
		return err
	}
	wait(ctx, most)
	return k.stack.Join(p.ID)
}

// slowDisk delays each sync of a daemon: strace stops the thread before the
// system call.
func (k *soak) slowDisk(ctx context.Context, p *stack.Process, each, most time.Duration) error {
	say("each sync of %s takes %s longer, for %s", p.ID, each.Round(time.Millisecond), most.Round(time.Second))
	delay := strconv.FormatInt(each.Microseconds(), 10)
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-p", strconv.Itoa(p.PID()),
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter="+delay)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C goes only to us
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("strace (a package of that name): %w", err)
	}
	var ended error
	done := make(chan struct{})
	go func() { ended = cmd.Wait(); close(done) }()
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case <-bounded.Done():
	case <-done:
		return errors.Join(fmt.Errorf("strace of %s (which runs: %t) ended: %s", p.ID, p.Running(), strings.TrimSpace(stderr.String())), ended)
	}
	// It lets go of the daemon when it is asked to end.
	_ = cmd.Process.Signal(unix.SIGINT)
	<-done
	return nil
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func upTo(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

// wait reports false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
