package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// recoverPersistent boots a persistent box from its own disk, in the background:
// its VM and its memory went with a reboot of the host. Until it runs it is
// starting. If this is cut off, the next start does it again.
func (h *Host) recoverPersistent(ctx context.Context, b *box) (Recovery, error) {
	if err := h.cgroups.Remove(ctx, b.id); err != nil {
		return "", fmt.Errorf("remove cgroup: %w", err)
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
	h.spawn(func() {
		defer b.release()
		h.reboot(b)
	})
	return Rebooted, nil
}

func (h *Host) reboot(b *box) {
	ctx, cancel := context.WithTimeoutCause(h.life, h.cfg.CreateTimeout, errors.New("it took too long"))
	defer cancel()
	clock := newStopwatch(h.now)
	p, err := h.bootAgain(ctx, b, clock)
	switch {
	case err == nil:
	case h.life.Err() != nil:
		// The daemon ends: the next one boots it. Only the VMM must go.
		b.mu.Lock()
		p := b.vmm
		b.vmm = nil
		b.mu.Unlock()
		if p != nil {
			h.shed(context.Background(), b, p)
		}
		return
	default:
		h.log.Error("a persistent sandbox could not be booted again", "sandbox_id", b.id, "error", err)
		if err := h.fail(b, p, "it could not be booted again after its VM was gone: "+err.Error()); err != nil {
			h.log.Error("a failed sandbox is not in the ledger", "sandbox_id", b.id, "error", err)
		}
		h.unreserve(b)
		h.events.Emit(b.id, hostapi.EventOrphaned, "its VM was gone and it could not be booted again", map[string]any{"reason": err.Error()})
		return
	}
	h.runs(b, p)
	took, _ := clock.total()
	h.tell(b, hostapi.EventRunning, "sandbox is running again", map[string]any{
		"boot_ms": took.Milliseconds(), "boot_mode": string(ledger.BootCold), "from_snapshot": nil, "warm": false, "recovered": true,
	})
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

// adoptReserve counts memory that a box has, or has a right to.
func (h *Host) adoptReserve(b *box) {
	b.mu.Lock()
	mb := b.rec.ReservedMB
	b.reserved = mb
	b.mu.Unlock()
	h.mu.Lock()
	h.reservedMB += mb
	h.mu.Unlock()
}
