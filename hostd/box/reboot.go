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

// bootsAtOnce is how many boxes are booted again at once: after a reboot of the
// host all of them want to, and a kernel that boots takes a processor.
var bootsAtOnce = max(1, runtime.NumCPU()/2)

const (
	firstBootPause = time.Second
	lastBootPause  = time.Minute
)

var errTooLong = errors.New("it took too long")

// recoverPersistent boots a persistent box from its own disk, in the background:
// its VM and its memory went with a reboot of the host. Until it runs it is
// starting, and tried again, however often it takes. If this is cut off, the next
// start does it again.
func (h *Host) recoverPersistent(ctx context.Context, b *box) (Recovery, error) {
	if err := h.shedFormer(ctx, b, nil); err != nil {
		return "", err
	}
	err := h.commit(b, func(r *ledger.Record) bool {
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
	h.adoptReserve(b)
	b.op <- struct{}{}
	// A delete ends it.
	bctx, cancel := context.WithCancelCause(h.work.Life())
	b.cancel = cancel
	h.work.Go(func() {
		defer cancel(nil)
		defer b.release()
		h.reboot(bctx, b)
	})
	return Rebooted, nil
}

// reboot boots a box in its turn, until it runs or ctx ends.
func (h *Host) reboot(ctx context.Context, b *box) {
	for pause := firstBootPause; ; pause = min(2*pause, lastBootPause) {
		err := h.rebootOnce(ctx, b)
		if err == nil || ctx.Err() != nil {
			return // the next daemon boots it, or it is being deleted
		}
		if _, gone := os.Stat(h.paths.Overlay(b.id)); errors.Is(gone, os.ErrNotExist) {
			h.rebootFailed(b, err)
			return
		}
		h.log.Error("a persistent sandbox could not be booted again, it is tried again", "sandbox_id", b.id, "in", pause, "error", err)
		b.amend(func(r *ledger.Record) { r.Error = "it could not be booted again yet: " + err.Error() })
		h.notify()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// rebootOnce ends what an earlier attempt left, waits for the box's turn, and then
// boots it. When it fails nothing runs for the box.
func (h *Host) rebootOnce(ctx context.Context, b *box) error {
	// Before its turn: a VMM that cannot be ended keeps nobody else from theirs.
	if err := h.shedRemains(ctx, b); err != nil {
		return fmt.Errorf("its last VMM could not be ended: %w", err)
	}
	h.adoptReserve(b)
	select {
	case h.booting <- struct{}{}:
		defer func() { <-h.booting }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	bctx, cancel := context.WithTimeoutCause(ctx, h.cfg.CreateTimeout, errTooLong)
	defer cancel()
	clock := newStopwatch(h.now)
	p, err := h.bootAgain(bctx, b, clock)
	if err != nil {
		h.afterBoot(b, p)
		return err
	}
	h.runs(ctx, b, p)
	took, _ := clock.total()
	h.tell(ctx, b, hostapi.EventRunning, "sandbox is running again", map[string]any{
		"boot_ms": took.Milliseconds(), "boot_mode": string(ledger.BootCold), "from_snapshot": nil, "warm": false, "recovered": true,
	})
	return nil
}

// afterBoot takes apart what a boot that failed has made. The box keeps its disk
// and its slot, and its memory stays promised.
func (h *Host) afterBoot(b *box, p VMM) {
	b.mu.Lock()
	b.vmm = nil
	b.net = nil // whatever was wrong with it is repaired at the next attempt
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if p != nil {
		h.shed(ctx, b, p)
	} else if err := h.cgroups.Remove(ctx, b.id); err != nil {
		h.log.Warn("cgroup of a sandbox that was not booted stays", "sandbox_id", b.id, "error", err)
	}
	h.adoptReserve(b)
}

// rebootFailed gives a box up whose disk is gone.
func (h *Host) rebootFailed(b *box, why error) {
	h.log.Error("a persistent sandbox could not be booted again, its disk is gone", "sandbox_id", b.id, "error", why)
	if err := h.fail(h.work.Life(), b, nil, "its disk was gone when it was to be booted again: "+why.Error()); err != nil {
		h.log.Error("a failed sandbox is not in the ledger", "sandbox_id", b.id, "error", err)
	}
	h.unreserve(b)
	h.events.Emit(b.id, hostapi.EventOrphaned, "its VM was gone and it could not be booted again", map[string]any{"reason": why.Error()})
}

func (h *Host) bootAgain(ctx context.Context, b *box, clock *stopwatch) (VMM, error) {
	rec := b.record()
	tpl, err := h.templates.Build(ctx, rec.BuildID)
	if err != nil {
		return nil, err
	}
	slot, err := h.slotAgain(ctx, b)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{h.paths.State(b.id), h.paths.StateTmp(b.id), h.paths.Restore(b.id), h.paths.RAM(b.id)} {
		if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	src := &source{tpl: tpl, cold: true, kept: true}
	p, _, err := h.bringUp(ctx, b, src, slot, clock, nil)
	h.metrics.stages(clock.stages)
	if err == nil {
		b.amend(func(r *ledger.Record) { r.SharedRAM = true })
	}
	return p, err
}

// adoptReserve counts memory that a box has, or has a right to, once.
func (h *Host) adoptReserve(b *box) {
	b.mu.Lock()
	mb := b.rec.ReservedMB - b.reserved
	b.reserved += mb
	b.mu.Unlock()
	h.mu.Lock()
	h.reservedMB += mb
	h.mu.Unlock()
}
