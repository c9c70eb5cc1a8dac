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
	sequential = 30 // creates in sequence
	atOnce     = 16
	coldBoots  = 8
	execs      = 100
)

// made is one create: how long the caller waited, and the host's stages.
type made struct {
	sandbox *api.Sandbox
	took    time.Duration
	stages  []hostapi.Stage
}

// The parties that a create's time is divided among.
const (
	ours   = "ours" // replicas, hostd and the wires between them
	engine = "engine"
	guest  = "guest"
)

// spentBy returns who spends the time of a stage.
func spentBy(s hostapi.Stage) string {
	switch {
	case s.Guest():
		return guest
	case s.Engine:
		return engine
	}
	return ours
}

// share is one party's part of the caller's wait. The stages of the engine and
// of the guest overlap no other, so what they leave is ours.
func (m made) share(party string) time.Duration {
	of := map[string]time.Duration{}
	for _, s := range m.stages {
		of[spentBy(s)] += s.Duration
	}
	if party == ours {
		return m.took - of[engine] - of[guest]
	}
	return of[party]
}

func measureSandboxes(ctx context.Context, b *bench) error {
	r := b.r
	progress("%d creates in sequence", sequential)
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
	addShares(r, restored)
	addStages(r, restored)

	progress("%d creates at once", atOnce)
	if err := createAtOnce(ctx, b, "create_16_at_once"); err != nil {
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

// measureFresh measures what a newcomer meets: the first creates of a stack that has just
// become healthy.
func measureFresh(ctx context.Context, b *bench) error {
	progress("the first create, and %d at once after it", atOnce)
	first, err := createOne(ctx, b, api.BootRestore)
	if err != nil {
		return err
	}
	b.r.add("fresh_first_create", ms(first.took), "ms")
	return errors.Join(createAtOnce(ctx, b, "fresh_16_at_once"), b.c.DeleteSandbox(ctx, first.sandbox.ID))
}

func waits(all []made) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, m := range all {
		out[i] = m.took
	}
	return out
}

// commitsOfACreate is how many entries a create puts into the Raft log: the row
// with its flow, and the outcome.
const commitsOfACreate = 2

// addShares adds what our own processes, the engine and the guest take of a
// create. Ours has a goal: a multiple of the commits that a create cannot do
// without, measured in the same run.
func addShares(r *results, all []made) {
	for _, party := range []string{ours, engine, guest} {
		took := make([]time.Duration, len(all))
		for i, m := range all {
			took[i] = m.share(party)
		}
		r.addLatency("create_share_"+party, took)
	}
	const name = "create_share_ours_over_raft_commits"
	commit, measured := r.value(singleCommit)
	if !measured {
		r.note(name, "needs the part raft in the same run")
		return
	}
	own, _ := r.value("create_share_ours_p50")
	r.want(name, own/(commitsOfACreate*commit), "times", atMost, 3)
}

// createOne creates a sandbox and gets the stages from its host.
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

// createSequential creates sandboxes one at a time and deletes each before the
// next, so that all see the same machine.
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

// addStages adds the median of each stage, in the order of a create.
// control_plane is what the host's stages do not cover: replicas and connections.
func addStages(r *results, all []made) {
	var names []string
	of := map[string][]time.Duration{}
	party := map[string]string{}
	var rest []time.Duration
	for _, m := range all {
		left := m.took
		for _, s := range m.stages {
			if of[s.Name] == nil {
				names = append(names, s.Name)
			}
			of[s.Name] = append(of[s.Name], s.Duration)
			party[s.Name] = spentBy(s)
			left -= s.Duration
		}
		rest = append(rest, left)
	}
	for _, name := range names {
		r.add(fmt.Sprintf("create_stage_%s_%s_p50", party[name], name), ms(quantile(of[name], 0.5)), "ms")
	}
	r.add("create_stage_ours_control_plane_p50", ms(quantile(rest, 0.5)), "ms")
}

// createAtOnce adds what many creates take, under names that begin with name.
func createAtOnce(ctx context.Context, b *bench, name string) error {
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
	b.r.want(name+"_errors", float64(failed), "", atMost, 0)
	b.r.addLatency(name, took)
	b.r.add(name+"_all", ms(whole), "ms")
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
			return errors.New("true failed")
		}
		if i >= 5 {
			took = append(took, time.Since(began))
		}
	}
	b.r.addLatency("exec_true", took)
	return b.c.DeleteSandbox(ctx, sandbox.ID)
}
