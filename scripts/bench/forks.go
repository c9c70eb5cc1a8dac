package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

const (
	forkRounds = 3
	most       = 16 // children of one fork
)

var treeSizes = []int{1, 4, 8, most}

// forks collects the results of forks.
type forks struct {
	*bench
	all    samples
	failed int           // children
	paused time.Duration // the parent's pause in the last one
}

// measureForks measures fork-trees of one parent, each size in turns with the
// same work by the engine alone.
func measureForks(ctx context.Context, b *bench, e *rawEngine) error {
	f := &forks{bench: b}
	parent, err := b.createParent(ctx, plainHost)
	if err != nil {
		return err
	}
	snapshot, err := b.c.CreateSnapshot(ctx, parent.ID, api.CreateSnapshot{}, rand.Text())
	if err != nil {
		return err
	}
	state := b.captureDir(plainHost, snapshot.ID)
	if err := f.warmUp(ctx, e, parent.ID, state); err != nil {
		return err
	}
	var memory forkMemory
	for round := range forkRounds {
		progress("fork-trees of 1, 4, 8 and 16, and the engine alone, round %d of %d", round+1, forkRounds)
		for _, n := range treeSizes {
			measure := &memory
			if n != most {
				measure = nil
			}
			if err := f.forkTree(ctx, fmt.Sprintf("fork_tree_%d", n), parent.ID, n, measure); err != nil {
				return err
			}
			took, err := e.saveAndCopy(ctx, b, plainHost, parent.ID)
			if err != nil {
				return fmt.Errorf("raw save: %w", err)
			}
			f.all.add("raw_save_and_copy", took)
			f.all.add("fork_tree_pause", f.paused)
		}
		if err := f.rawSixteen(ctx, e, state); err != nil {
			return err
		}
	}
	if err := errors.Join(b.c.DeleteSnapshot(ctx, snapshot.ID), b.c.DeleteSandbox(ctx, parent.ID)); err != nil {
		return err
	}
	if err := f.withStore(ctx); err != nil {
		return err
	}
	f.report()
	memory.report(b.r)
	return nil
}

func (f *forks) report() {
	f.all.report(f.r)
	f.r.want("fork_tree_failed_children", float64(f.failed), "", atMost, 0)
	f.r.want("fork_tree_16_over_16_raw_restores", f.all.over("fork_tree_16_to_all_execs", "raw_restore_16_to_all_execs"), "times", atMost, 1.3)
	f.r.add("fork_tree_16_over_16_raw_restores_to_resume", f.all.over("fork_tree_16_to_all_execs", "raw_restore_16_to_all_resumes"), "times")
	f.r.want("parent_pause_over_raw_save_and_copy", f.all.over("fork_tree_pause", "raw_save_and_copy"), "times", atMost, 1.3)
}

// warmUp does what is measured next once, unmeasured.
func (f *forks) warmUp(ctx context.Context, e *rawEngine, parent, state string) error {
	unmeasured := &forks{bench: f.bench}
	if err := unmeasured.forkTree(ctx, "warm_up", parent, 2, nil); err != nil {
		return err
	}
	_, err := e.restoreAll(ctx, state, 2)
	return err
}

// rawSixteen measures until the last of the VMs reaches each point.
func (f *forks) rawSixteen(ctx context.Context, e *rawEngine, state string) error {
	if err := awaitRateLimit(ctx); err != nil { // as before a fork
		return err
	}
	vms, err := e.restoreAll(ctx, state, most)
	if err != nil {
		return fmt.Errorf("raw restores: %w", err)
	}
	last := func(of func(rawVM) time.Duration) time.Duration {
		return of(slices.MaxFunc(vms, func(a, b rawVM) int { return int(of(a) - of(b)) }))
	}
	f.all.add("raw_restore_16_to_all_resumes", last(func(v rawVM) time.Duration { return v.resumed }))
	f.all.add("raw_restore_16_to_all_identities", last(func(v rawVM) time.Duration { return v.answered }))
	f.all.add("raw_restore_16_to_all_execs", last(func(v rawVM) time.Duration { return v.executed }))
	return nil
}

// withStore measures the same on the host that has a snapshot store.
func (f *forks) withStore(ctx context.Context) error {
	progress("fork-trees of 16 on a host with a snapshot store")
	parent, err := f.createParent(ctx, storedHost)
	if err != nil {
		return err
	}
	for range forkRounds {
		if err := f.forkTree(ctx, "fork_tree_16_with_store", parent.ID, most, nil); err != nil {
			return err
		}
	}
	return f.c.DeleteSandbox(ctx, parent.ID)
}

// forkTree measures one fork from the call until every child has answered an
// exec. A fork with a failed child is counted but not measured.
func (f *forks) forkTree(ctx context.Context, name, parent string, n int, memory *forkMemory) error {
	if err := awaitRateLimit(ctx); err != nil {
		return err
	}
	began := time.Now()
	tree, err := f.c.ForkTree(ctx, parent, api.ForkTree{Count: &n}, rand.Text())
	if err != nil {
		return fmt.Errorf("fork-tree of %d: %w", n, err)
	}
	called := time.Since(began)
	ids := make([]string, len(tree.Children))
	errs := make([]error, len(ids), n+1)
	var group sync.WaitGroup
	for i, child := range tree.Children {
		ids[i] = child.ID
		group.Go(func() { errs[i] = f.execTrue(ctx, child.ID) })
	}
	group.Wait()
	answered := time.Since(began)
	for _, child := range tree.Failed {
		errs = append(errs, fmt.Errorf("child %d: %s", child.Index, child.Error))
	}
	if failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(failed) > 0 {
		f.failed += len(failed)
		fmt.Fprintf(os.Stderr, "  fork-tree of %d: %v\n", n, errors.Join(failed...))
		return f.deleteAll(ctx, ids)
	}
	f.all.add(name+"_call", called)
	f.all.add(name+"_to_all_execs", answered)
	stood := time.Duration(tree.PauseMS) * time.Millisecond
	f.all.add(name+"_pause", stood)
	f.paused = stood
	if memory != nil {
		if err := memory.look(ctx, f.bench, parent, ids); err != nil {
			return err
		}
	}
	return f.deleteAll(ctx, ids)
}

// forkMemory measures the memory that children add right after their fork.
type forkMemory struct {
	parents, children []footprint
}

func (m *forkMemory) look(ctx context.Context, b *bench, parent string, ids []string) error {
	if err := awaitRateLimit(ctx); err != nil { // each one is a call of the API
		return err
	}
	f, err := footprintOf(ctx, b, parent)
	if err != nil {
		return err
	}
	m.parents = append(m.parents, f)
	for _, id := range ids {
		f, err := footprintOf(ctx, b, id)
		if err != nil {
			return err
		}
		m.children = append(m.children, f)
	}
	return nil
}

func (m *forkMemory) report(r *results) {
	if len(m.children) == 0 {
		r.note("fork_child_pss", "not measured: every fork-tree of 16 had a failed child")
		return
	}
	mean := func(all []footprint, of func(footprint) float64) float64 {
		sum := 0.0
		for _, f := range all {
			sum += of(f)
		}
		return sum / float64(len(all))
	}
	ram := mean(m.children, func(f footprint) float64 { return float64(f.ramPSS) / 1024 })
	touched := mean(m.parents, func(f footprint) float64 { return float64(f.ramWritten) / 1024 })
	r.add("parent_ram_touched", touched, "MB")
	r.add("parent_ram_resident", mean(m.parents, func(f footprint) float64 { return float64(f.ramTouched) / 1024 }), "MB")
	r.add("fork_child_pss", mean(m.children, func(f footprint) float64 { return float64(f.pss) / 1024 }), "MB")
	r.add("fork_child_ram_pss", ram, "MB")
	r.add("fork_child_ram_written", mean(m.children, func(f footprint) float64 { return float64(f.ramWritten) / 1024 }), "MB")
	r.add("fork_child_engine_pss", mean(m.children, footprint.engineMB), "MB")
	r.want("fork_child_ram_share_of_touched", 100*ram/touched, "%", atMost, 20)
}
