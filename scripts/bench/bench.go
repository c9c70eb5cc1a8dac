package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// The two hosts of the stack. They differ only in the snapshot store.
const (
	plainHost  = "m1" // has no snapshot store
	storedHost = "m2"
)

// bench is what the parts measure with.
type bench struct {
	s *stack.Stack
	c *api.Client
	r *results
}

// A workspace has 50 requests at once and 25 a second; a full bucket again
// takes this long.
const refill = 2 * time.Second

// awaitRateLimit waits until the rate limit no longer affects the next measurement.
func awaitRateLimit(ctx context.Context) error { return pause(ctx, refill) }

// electionTime is how long a call is repeated while no replica leads. Guests
// that compute on all CPUs also delay a leader; the call then takes that long.
const electionTime = 20 * time.Second

// clear deletes what a failed part left behind: the next one needs the memory.
func (b *bench) clear(ctx context.Context) error {
	for a, err := range b.c.Apps(ctx) {
		if err != nil {
			return fmt.Errorf("list leftover apps: %w", err)
		}
		if err := b.c.DeleteApp(ctx, a.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
			return fmt.Errorf("delete a leftover app: %w", err)
		}
	}
	for db, err := range b.c.Databases(ctx) {
		if err != nil {
			return fmt.Errorf("list leftover databases: %w", err)
		}
		if err := b.c.DeleteDatabase(ctx, db.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
			return fmt.Errorf("delete a leftover database: %w", err)
		}
	}
	for s, err := range b.c.Sandboxes(ctx) {
		if err != nil {
			return fmt.Errorf("list leftover sandboxes: %w", err)
		}
		if s.Owner != nil { // it goes with what is deleted above
			continue
		}
		if err := b.c.DeleteSandbox(ctx, s.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
			return fmt.Errorf("delete a leftover sandbox: %w", err)
		}
	}
	return nil
}

const (
	idleWithin  = 2 * time.Minute
	idleWindow  = time.Second
	idleCPUTime = 200 * time.Millisecond // in the window, of all daemons together
)

// awaitIdle waits until the daemons have no background work left:
// a host that has just started puts its templates into the snapshot store.
func (b *bench) awaitIdle(ctx context.Context) error {
	deadline := time.Now().Add(idleWithin)
	before, err := b.cpuTime()
	for err == nil {
		if err = pause(ctx, idleWindow); err != nil {
			break
		}
		var now time.Duration
		if now, err = b.cpuTime(); err != nil || now-before < idleCPUTime {
			break
		}
		before = now
		if time.Now().After(deadline) {
			return fmt.Errorf("the daemons are not idle after %s", idleWithin)
		}
	}
	return err
}

// cpuTime is what the stack's daemons have used, without the engines.
func (b *bench) cpuTime() (sum time.Duration, err error) {
	for _, p := range slices.Concat(b.s.Replicas, b.s.HostProc) {
		proc, err := procfs.NewProc(p.PID())
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s: %w", p.ID, err)
		}
		stat, err := proc.Stat()
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s: %w", p.ID, err)
		}
		sum += time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return sum, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retryLimited repeats a call that the rate limit refused; not for measured calls.
func retryLimited(ctx context.Context, do func() error) error {
	for {
		err := do()
		if api.StatusOf(err) != http.StatusTooManyRequests {
			return err
		}
		if err := pause(ctx, refill/4); err != nil {
			return err
		}
	}
}

// exec runs a shell command in a sandbox, which has to succeed.
func (b *bench) exec(ctx context.Context, id, command string) (time.Duration, error) {
	var took time.Duration
	err := retryLimited(ctx, func() error {
		began := time.Now()
		result, err := b.c.Exec(ctx, id, api.Exec{Cmd: api.Shell(command)})
		took = time.Since(began)
		if err == nil && result.ExitCode != 0 {
			err = fmt.Errorf("%s: exit code %d: %s", command, result.ExitCode, result.Stderr)
		}
		return err
	})
	return took, err
}

// execTrue runs the shortest command, without retries.
func (b *bench) execTrue(ctx context.Context, id string) error {
	result, err := b.c.Exec(ctx, id, api.Exec{Cmd: api.Argv("true")})
	if err == nil && result.ExitCode != 0 {
		err = errors.New("true failed")
	}
	return err
}

// create makes a sandbox on a certain host.
func (b *bench) create(ctx context.Context, host string) (*api.Sandbox, error) {
	var elsewhere []string
	defer func() { _ = b.deleteAll(context.WithoutCancel(ctx), elsewhere) }()
	for range 8 {
		var made *api.Sandbox
		err := retryLimited(ctx, func() (err error) {
			made, err = b.c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
			return err
		})
		if err != nil {
			return nil, err
		}
		if made.AgentID == host {
			return made, nil
		}
		elsewhere = append(elsewhere, made.ID) // it stays for now, so that the other host is emptier
	}
	return nil, fmt.Errorf("no sandbox was placed on %s", host)
}

// box returns a sandbox as its host sees it.
func (b *bench) box(ctx context.Context, sandbox *api.Sandbox) (hostapi.Box, error) {
	host, err := b.s.HostClient(sandbox.AgentID)
	if err != nil {
		return hostapi.Box{}, err
	}
	defer host.Close()
	return host.GetBox(ctx, sandbox.ID)
}

// What a parent has written before it is measured.
const writtenMB = 100

// createParent makes a sandbox whose guest has written writtenMB of memory.
func (b *bench) createParent(ctx context.Context, host string) (*api.Sandbox, error) {
	parent, err := b.create(ctx, host)
	if err != nil {
		return nil, err
	}
	_, err = b.exec(ctx, parent.ID, fmt.Sprintf(
		"mkdir -p /mnt/written && mount -t tmpfs none /mnt/written && yes berth | head -c %dM > /mnt/written/file", writtenMB))
	return parent, err
}

func (b *bench) deleteAll(ctx context.Context, ids []string) error {
	errs := make([]error, len(ids))
	var group sync.WaitGroup
	for i, id := range ids {
		group.Go(func() {
			errs[i] = retryLimited(ctx, func() error { return b.c.DeleteSandbox(ctx, id) })
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// samples holds durations by name.
type samples struct {
	names []string
	of    map[string][]time.Duration
}

func (s *samples) add(name string, d time.Duration) {
	if s.of == nil {
		s.of = map[string][]time.Duration{}
	}
	if s.of[name] == nil {
		s.names = append(s.names, name)
	}
	s.of[name] = append(s.of[name], d)
}

// timed measures what do takes.
func (s *samples) timed(name string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.add(name, time.Since(began))
	return nil
}

func (s *samples) p50(name string) time.Duration { return quantile(s.of[name], 0.5) }

// over is how many times the median of one is that of the other.
func (s *samples) over(name, other string) float64 {
	if s.p50(other) == 0 {
		return 0
	}
	return float64(s.p50(name)) / float64(s.p50(other))
}

// report adds the median and the maximum of each; too few for percentiles.
func (s *samples) report(r *results) {
	for _, name := range s.names {
		r.add(name+"_p50", ms(s.p50(name)), "ms")
		r.add(name+"_max", ms(slices.Max(s.of[name])), "ms")
	}
}
