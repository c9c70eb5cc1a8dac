package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	transitionRounds = 8
	snapshotRounds   = 4
	coldForks        = 3
)

// measureTransitions measures the transitions of one sandbox and, after each
// wake, a raw restore of the same state.
func measureTransitions(ctx context.Context, b *bench, e *rawEngine) error {
	parent, err := b.createParent(ctx, plainHost)
	if err != nil {
		return err
	}
	progress("%d times pause, resume, hibernate and wake, and raw restores", transitionRounds)
	var all samples
	snapshot, err := b.c.CreateSnapshot(ctx, parent.ID, api.CreateSnapshot{}, rand.Text())
	if err != nil {
		return err
	}
	state := b.captureDir(plainHost, snapshot.ID)
	for round := range transitionRounds + 1 {
		got := &all
		if round == 0 {
			got = &samples{} // warms caches and connections
		}
		if err := transitionRound(ctx, b, e, parent.ID, state, got); err != nil {
			return err
		}
	}
	progress("%d snapshots, %d sandboxes from one, %d cold forks", 2*snapshotRounds, transitionRounds, coldForks)
	if err := snapshots(ctx, b, &all, "snapshot", parent.ID); err != nil {
		return err
	}
	if err := fromSnapshot(ctx, b, &all, snapshot.ID); err != nil {
		return err
	}
	if err := b.c.DeleteSnapshot(ctx, snapshot.ID); err != nil {
		return err
	}
	if err := forkCold(ctx, b, &all, parent.ID); err != nil {
		return err
	}
	stored, err := b.createParent(ctx, storedHost)
	if err != nil {
		return err
	}
	if err := snapshots(ctx, b, &all, "snapshot_to_the_store", stored.ID); err != nil {
		return err
	}
	all.report(b.r)
	b.r.want("wake_to_first_exec_over_raw_restore", all.over("wake_to_first_exec", "raw_restore_to_first_exec"), "times", atMost, 2)
	b.r.add("wake_to_first_exec_over_raw_restore_to_resume", all.over("wake_to_first_exec", "raw_restore_to_resume"), "times")
	return b.deleteAll(ctx, []string{parent.ID, stored.ID})
}

// captureDir is where a host keeps a snapshot.
func (b *bench) captureDir(host, id string) string {
	return filepath.Join(b.s.DataDir(host), "captures", id)
}

func transitionRound(ctx context.Context, b *bench, e *rawEngine, id, state string, got *samples) error {
	transition := func(name string, do func(context.Context, string) (*api.Sandbox, error)) error {
		return got.timed(name, func() error { _, err := do(ctx, id); return err })
	}
	if err := transition("pause", b.c.PauseSandbox); err != nil {
		return err
	}
	if err := transition("resume", b.c.ResumeSandbox); err != nil {
		return err
	}
	if err := transition("hibernate", b.c.HibernateSandbox); err != nil {
		return err
	}
	began := time.Now()
	if err := transition("wake", b.c.WakeSandbox); err != nil {
		return err
	}
	if err := b.execTrue(ctx, id); err != nil {
		return err
	}
	got.add("wake_to_first_exec", time.Since(began))

	raw, err := e.restoreOnce(ctx, state)
	if err != nil {
		return fmt.Errorf("raw restore: %w", err)
	}
	got.add("raw_restore_to_resume", raw.resumed)
	got.add("raw_restore_to_identity", raw.answered)
	got.add("raw_restore_to_first_exec", raw.executed)

	if err := transition("hibernate", b.c.HibernateSandbox); err != nil {
		return err
	}
	return got.timed("exec_that_wakes", func() error { return b.execTrue(ctx, id) })
}

// snapshots measures the call, and for how long the sandbox was paused.
func snapshots(ctx context.Context, b *bench, got *samples, name, id string) error {
	for range snapshotRounds {
		var made *api.Snapshot
		err := got.timed(name, func() (err error) {
			made, err = b.c.CreateSnapshot(ctx, id, api.CreateSnapshot{}, rand.Text())
			return err
		})
		if err != nil {
			return err
		}
		got.add(name+"_pause", time.Duration(made.PauseMS)*time.Millisecond)
		if err := b.c.DeleteSnapshot(ctx, made.ID); err != nil {
			return err
		}
	}
	return nil
}

func fromSnapshot(ctx context.Context, b *bench, got *samples, id string) error {
	for range transitionRounds {
		began := time.Now()
		made, err := b.c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate, FromSnapshot: id}, "")
		if err != nil {
			return fmt.Errorf("create from snapshot: %w", err)
		}
		got.add("from_snapshot", time.Since(began))
		if err := b.execTrue(ctx, made.ID); err != nil {
			return err
		}
		got.add("from_snapshot_to_first_exec", time.Since(began))
		if err := b.c.DeleteSandbox(ctx, made.ID); err != nil {
			return err
		}
	}
	return nil
}

func forkCold(ctx context.Context, b *bench, got *samples, id string) error {
	for range coldForks {
		began := time.Now()
		forked, err := b.c.Fork(ctx, id, api.Fork{Mode: new(api.ForkCold)}, rand.Text())
		if err != nil {
			return fmt.Errorf("cold fork: %w", err)
		}
		if len(forked.Children) != 1 {
			return fmt.Errorf("cold fork: no child: %+v", forked.Failed)
		}
		child := forked.Children[0].ID
		if err := b.execTrue(ctx, child); err != nil {
			return err
		}
		got.add("fork_cold_to_first_exec", time.Since(began))
		got.add("fork_cold_pause", time.Duration(forked.PauseMS)*time.Millisecond)
		if err := b.c.DeleteSandbox(ctx, child); err != nil {
			return err
		}
	}
	return nil
}
