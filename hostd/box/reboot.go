package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// bootsAtOnce is how many boxes are booted at once. After a reboot of the host
// all of them are waiting, and each kernel that boots takes a processor.
var bootsAtOnce = max(1, runtime.NumCPU()/2)

const (
	firstBootPause = time.Second
	lastBootPause  = time.Minute
)

var errBootTimeout = errors.New("it took too long")

// recoverPersistent boots a persistent box from its own disk, in the
// background: its VM and its memory are gone since the host was rebooted. The
// box is starting until it runs, and is retried until it does. If the daemon
// ends before, the next start does it again.
func (b recovery) recoverPersistent(ctx context.Context) (Recovery, error) {
	if err := b.releaseFormer(ctx, nil); err != nil {
		return "", err
	}
	err := b.commit(func(r *ledger.Record) bool {
		if r.State != ledger.Booting {
			r.Enter(ledger.Booting)
		}
		r.VMM, r.Stopped, r.WarmChild, r.ResetTCP = ledger.VMM{}, false, "", false
		return true
	})
	if err != nil {
		return "", err
	}
	// Even where the budget is smaller now: it had this before.
	b.adoptReserve()
	b.op <- struct{}{}
	bctx, cancel := context.WithCancelCause(b.host.work.Life())
	b.endedBy(cancel)
	b.host.work.Go(func() {
		defer cancel(nil)
		defer b.release()
		b.reboot(bctx)
	})
	return Rebooted, nil
}

// reboot boots a box in its turn, until it runs or ctx ends.
func (b recovery) reboot(ctx context.Context) {
	for pause := firstBootPause; ; pause = min(2*pause, lastBootPause) {
		err := b.awaitLease(ctx)
		if err == nil {
			err = b.rebootOnce(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return // the next daemon boots it, or it is being deleted
		}
		if _, gone := os.Stat(b.host.paths.Overlay(b.id)); errors.Is(gone, os.ErrNotExist) {
			b.rebootFailed(err)
			return
		}
		b.host.log.Error("a persistent sandbox could not be booted again, it is tried again", "sandbox_id", b.id, "in", pause, "error", err)
		b.amend(func(r *ledger.Record) { r.Error = "it could not be booted again yet" })
		b.host.notify()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// leaseLook is how often a box that waits for its host's lease looks for it.
const leaseLook = 200 * time.Millisecond

// awaitLease holds an exclusive box back while the host has no lease: it may run
// elsewhere by now. The leader's first answer, if it is to be deleted here, is
// followed by that.
func (b *box) awaitLease(ctx context.Context) error {
	if !b.record().Exclusive || b.host.leased() {
		return nil
	}
	b.amend(func(r *ledger.Record) { r.Error = "it is booted again when its host has heard the leader" })
	b.host.notify()
	tick := time.NewTicker(leaseLook)
	defer tick.Stop()
	for !b.host.leased() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// rebootOnce ends what an earlier attempt left, waits for the box's turn, and then
// boots it. When it fails nothing runs for the box.
func (b *box) rebootOnce(ctx context.Context) error {
	// Before its turn: a VMM that cannot be ended must not hold up other boxes.
	if err := b.retryRelease(ctx); err != nil {
		return fmt.Errorf("its last VMM could not be ended: %w", err)
	}
	b.adoptReserve()
	leave, err := b.host.booting.enter(ctx, b.record().WorkspaceID)
	if err != nil {
		return err
	}
	defer leave()
	bctx, cancel := context.WithTimeoutCause(ctx, b.host.cfg.CreateTimeout, errBootTimeout)
	defer cancel()
	clock := newStopwatch(b.host.now)
	clock.in(ctx)
	p, err := b.bootAgain(bctx, clock)
	if err != nil {
		b.afterBoot(p)
		return err
	}
	b.noteRunning(ctx, p)
	took, _ := clock.total()
	b.emit(ctx, hostapi.EventRunning, "sandbox is running again", map[string]any{
		"boot_ms": took.Milliseconds(), "boot_mode": string(ledger.BootCold), "from_snapshot": nil, "warm": false, "recovered": true,
	})
	return nil
}

// afterBoot removes what a failed boot has made. The box keeps its disk, its
// slot and its memory reservation.
func (b *box) afterBoot(p VMM) {
	b.mu.Lock()
	b.vmm = nil
	b.net = nil // whatever was wrong with it is repaired at the next attempt
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if p != nil {
		b.releaseResources(ctx, p)
	} else if err := b.host.cgroups.Remove(ctx, b.id); err != nil {
		b.host.log.Warn("cgroup of a sandbox that was not booted stays", "sandbox_id", b.id, "error", err)
	}
	b.adoptReserve()
}

// rebootFailed fails a box whose disk is gone.
func (b recovery) rebootFailed(cause error) {
	b.host.log.Error("a persistent sandbox could not be booted again, its disk is gone", "sandbox_id", b.id, "error", cause)
	if err := b.fail(b.host.work.Life(), nil, "its disk was gone when it was to be booted again"); err != nil {
		b.host.log.Error("a failed sandbox is not in the ledger", "sandbox_id", b.id, "error", err)
	}
	b.unreserve()
	b.host.events.Emit(b.id, hostapi.EventOrphaned, "its VM was gone and it could not be booted again", map[string]any{"reason": "its disk was gone"})
}

func (b *box) bootAgain(ctx context.Context, clock *stopwatch) (VMM, error) {
	rec := b.record()
	tpl, err := b.host.templates.Bootable(ctx, rec.BuildID)
	if err != nil {
		return nil, err
	}
	slot, err := b.slotAgain(ctx)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{b.host.paths.State(b.id), b.host.paths.StateTmp(b.id), b.host.paths.Restore(b.id), b.host.paths.RAM(b.id)} {
		if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	src := &source{tpl: tpl, cold: true, kept: true}
	launched, err := b.launch(ctx, src, slot, clock, nil)
	b.host.metrics.stages(clock.stages)
	if err == nil {
		b.amend(func(r *ledger.Record) { r.SharedRAM = true })
	}
	return launched.process, err
}
