package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// soak is one run.
type soak struct {
	stack   *stack.Stack
	options options
	history *history
	began   time.Time
}

// settleTime is how long everything may take to recover after the last fault:
// elections, leases, and retries on hosts.
var settleTime = timescale.Limit(5 * time.Minute)

// wholeRun is the length of a run, in leases, from which it must make every kind
// of call and fault. A round of all faults takes at most 30 default leases.
const wholeRun = 60

// watchPause is the time between two checks of the hosts.
const watchPause = 2 * time.Second

func (k *soak) run(ctx context.Context) error {
	workers := make([]*worker, k.options.clients)
	for i := range workers {
		var err error
		if workers[i], err = k.newWorker(ctx, i); err != nil {
			return err
		}
		defer workers[i].client.Close()
	}
	broken, cancel := context.WithTimeout(ctx, k.options.time)
	defer cancel()
	g, broken := errgroup.WithContext(broken)
	g.Go(func() error { return k.breakThings(broken) })
	g.Go(func() error { k.watch(broken); return nil })
	for _, w := range workers {
		g.Go(func() error { return w.work(broken, ctx) })
	}
	err := g.Wait()
	if err == nil {
		err = k.settle(ctx, workers)
	}
	if err == nil {
		err = k.judge()
	}
	return k.outcome(err)
}

// outcome prints the tables of a run, and joins its violations to its error.
func (k *soak) outcome(err error) error {
	k.history.print()
	if k.options.out != "" {
		err = errors.Join(err, k.history.write(k.options.out, k.options.seed))
	}
	if n := len(k.history.violations); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d violations (seed %d); logs are in %s", n, k.options.seed, k.stack.Logs))
	}
	return err
}

// settle runs after everything is repaired. It checks that each sandbox has
// recovered with all that was done in it, and that API, hosts and kernel agree.
// Then it deletes everything, and they must agree again.
func (k *soak) settle(ctx context.Context, workers []*worker) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	say("repaired; waiting until everything has recovered")
	clients := make([]*api.Client, len(workers))
	for i, w := range workers {
		clients[i] = w.client
	}
	if err := k.stack.WaitHealthy(ctx); err != nil {
		return err
	}
	for _, w := range workers {
		w.verifyAll(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := k.agree(ctx, clients); err != nil && ctx.Err() == nil {
		k.history.violate("API, hosts and kernel do not agree: %v", err)
	}
	for _, w := range workers {
		w.deleteAll(ctx)
	}
	if err := k.agree(ctx, clients); err != nil && ctx.Err() == nil {
		k.history.violate("after everything was deleted: %v", err)
	}
	return ctx.Err()
}

// judge checks the complete run.
func (k *soak) judge() error {
	for _, p := range k.stack.HostProc {
		log, err := os.Open(filepath.Join(k.stack.Logs, p.ID+".log"))
		if err != nil {
			return err
		}
		deaths, err := k.history.deaths(log)
		log.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", log.Name(), err)
		}
		for _, line := range deaths {
			k.history.violate("on %s a VMM ended that was not killed: %s", p.ID, line)
		}
	}
	if k.options.time < wholeRun*k.options.lease {
		return nil
	}
	for _, what := range k.history.never(k.options.faults) {
		k.history.violate("%s never happened", what)
	}
	return nil
}

func (k *soak) agree(ctx context.Context, clients []*api.Client) error {
	return stack.Await(ctx, settleTime, time.Second, "API, hosts and kernel agree", func(ctx context.Context) error {
		return k.stack.Agreement(ctx, clients...)
	})
}

// watch checks the hosts repeatedly: no generation of a box may be on two of
// them.
func (k *soak) watch(ctx context.Context) {
	for wait(ctx, watchPause) {
		seen := map[string]map[uint64]string{}
		for _, p := range k.stack.HostProc {
			for _, b := range k.boxesOf(ctx, p.ID) {
				if seen[b.ID] == nil {
					seen[b.ID] = map[uint64]string{}
				}
				if other, twice := seen[b.ID][b.Generation]; twice {
					k.history.violate("generation %d of box %s is on %s and on %s", b.Generation, hostapi.ShortID(b.ID), other, p.ID)
				}
				seen[b.ID][b.Generation] = p.ID
			}
		}
	}
}

// boxesOf asks one host, which may be frozen, dead or disconnected.
func (k *soak) boxesOf(ctx context.Context, host string) []hostapi.Box {
	client, err := k.stack.HostClient(host)
	if err != nil {
		return nil
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	boxes, err := client.Boxes(ctx)
	if err != nil {
		return nil
	}
	return boxes
}
