package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	sequential = 30 // creates one after the other
	atOnce     = 16
	coldBoots  = 8
	execs      = 100
)

// made is one create: how long the caller waited, and the host's stages of it.
type made struct {
	sandbox *api.Sandbox
	took    time.Duration
	stages  []hostapi.Stage
}

// ours is what the engine did not use of the caller's wait.
func (m made) ours() time.Duration {
	d := m.took
	for _, s := range m.stages {
		if s.Engine {
			d -= s.Duration
		}
	}
	return d
}

func measureSandboxes(ctx context.Context, b *bench) error {
	r := b.r
	progress("%d creates, one after the other", sequential)
	restored, err := createSequential(ctx, b, sequential, api.BootRestore)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	progress("%d cold boots", coldBoots)
	cold, err := createSequential(ctx, b, coldBoots, api.BootCold)
	if err != nil {
		return fmt.Errorf("create by cold boot: %w", err)
	}
	r.addLatency("create_restored", waits(restored))
	r.addLatency("create_cold_booted", waits(cold))
	r.want("create_cold_over_restored", float64(quantile(waits(cold), 0.5))/float64(quantile(waits(restored), 0.5)), "times", atLeast, 5)
	own := make([]time.Duration, len(restored))
	for i, m := range restored {
		own[i] = m.ours()
	}
	r.want("create_our_share_p50", ms(quantile(own, 0.5)), "ms", atMost, 60)
	r.add("create_our_share_p95", ms(quantile(own, 0.95)), "ms")
	addStages(r, restored)

	progress("%d creates at once", atOnce)
	if err := createAtOnce(ctx, b); err != nil {
		return err
	}
	progress("%d execs of true", execs)
	if err := measureExec(ctx, b); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	progress("memory of %d sandboxes", residents)
	if err := measureMemory(ctx, b); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

func waits(all []made) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, m := range all {
		out[i] = m.took
	}
	return out
}

// createOne makes a sandbox and asks its host for the stages.
func createOne(ctx context.Context, b *bench, boot api.Boot) (made, error) {
	began := time.Now()
	sandbox, err := b.c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate, Boot: &boot}, "")
	if err != nil {
		return made{}, err
	}
	m := made{sandbox: sandbox, took: time.Since(began)}
	box, err := b.box(ctx, sandbox)
	if err != nil {
		return made{}, err
	}
	m.stages = box.Stages
	return m, nil
}

// createSequential makes sandboxes one at a time, and deletes each before the
// next, so that every one meets the same machine.
func createSequential(ctx context.Context, b *bench, n int, boot api.Boot) ([]made, error) {
	var all []made
	for range n + 1 {
		m, err := createOne(ctx, b, boot)
		if err != nil {
			return nil, err
		}
		if err := b.c.DeleteSandbox(ctx, m.sandbox.ID); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all[1:], nil // the first one warms caches and connections
}

// addStages adds the median of each stage, in the order of a create. What the
// host's stages do not cover is the control plane's and the wires'.
func addStages(r *results, all []made) {
	var names []string
	of := map[string][]time.Duration{}
	engine := map[string]bool{}
	var rest []time.Duration
	for _, m := range all {
		left := m.took
		for _, s := range m.stages {
			if of[s.Name] == nil {
				names = append(names, s.Name)
			}
			of[s.Name] = append(of[s.Name], s.Duration)
			engine[s.Name] = s.Engine
			left -= s.Duration
		}
		rest = append(rest, left)
	}
	for _, name := range names {
		whose := "ours"
		if engine[name] {
			whose = "engine"
		}
		r.add(fmt.Sprintf("create_stage_%s_%s_p50", whose, name), ms(quantile(of[name], 0.5)), "ms")
	}
	r.add("create_stage_ours_control_plane_p50", ms(quantile(rest, 0.5)), "ms")
}

func createAtOnce(ctx context.Context, b *bench) error {
	all := make([]made, atOnce)
	errs := make([]error, atOnce)
	began := time.Now()
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { all[i], errs[i] = createOne(ctx, b, api.BootRestore) })
	}
	group.Wait()
	whole := time.Since(began)
	failed := 0
	var took []time.Duration
	for i, err := range errs {
		if err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "  create %d at once: %v\n", i+1, err)
			continue
		}
		took = append(took, all[i].took)
	}
	b.r.want("create_16_at_once_errors", float64(failed), "", atMost, 0)
	b.r.addLatency("create_16_at_once", took)
	b.r.add("create_16_at_once_all", ms(whole), "ms")
	for _, m := range all {
		if m.sandbox != nil {
			group.Go(func() {
				if err := b.c.DeleteSandbox(ctx, m.sandbox.ID); err != nil {
					fmt.Fprintf(os.Stderr, "  delete: %v\n", err)
				}
			})
		}
	}
	group.Wait()
	return nil
}

func measureExec(ctx context.Context, b *bench) error {
	sandbox, err := b.c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
	if err != nil {
		return err
	}
	var took []time.Duration
	pace := time.NewTicker(50 * time.Millisecond) // below the rate limit of a workspace
	defer pace.Stop()
	for i := range execs + 5 {
		<-pace.C
		began := time.Now()
		result, err := b.c.Exec(ctx, sandbox.ID, api.Exec{Cmd: api.Argv("true")})
		if err != nil {
			return err
		}
		if result.ExitCode != 0 {
			return errors.New("true ended with an error")
		}
		if i >= 5 {
			took = append(took, time.Since(began))
		}
	}
	b.r.addLatency("exec_true", took)
	return b.c.DeleteSandbox(ctx, sandbox.ID)
}
