package box

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// The stages of a create, as metrics and a box's Stages name them.
const (
	stageAdmission = "admission"
	stageSlot      = "slot"
	stageIntent    = "intent" // the record on disk
	stageFiles     = "files"  // disk and configuration, beside cgroup and vmm_start
	stageCgroup    = "cgroup"
	stageVMMStart  = "vmm_start"
	stageCapture   = "capture" // warm fork: save and stop the parent
	stageRestore   = "restore"
	stageBoot      = "boot"       // cold: define the VM and start its kernel
	stageGuestBoot = "guest_boot" // cold: until the guest's agent answers
	stageResume    = "resume"
	stageVolumes   = "volumes"
	stageIdentity  = "identity"
	stageCommit    = "commit"
)

// create runs under the box's operation lock, and ends with the box running,
// or with nothing left of it.
func (h *Host) create(ctx context.Context, b *box, src *source, clock *stopwatch) {
	defer b.release()
	defer src.release()
	err := h.build(ctx, b, src, clock)
	if err == nil {
		h.metrics.created(string(b.rec.Boot), "ok")
		h.log.InfoContext(ctx, "sandbox is running", "event", "sandbox.running", "sandbox_id", b.id, "generation", b.generation,
			"template", src.tpl.Name, "boot", b.rec.Boot, "boot_ms", b.rec.Took.Milliseconds(), "own_ms", b.rec.Own.Milliseconds())
		h.announce(b, src)
		h.watch(b)
		close(b.created)
		h.notify()
		return
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	switch {
	case errors.Is(err, errClosing):
		err = fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	case errors.Is(err, errDeleted):
		err = fmt.Errorf("%w: %w", hosterr.ErrStaleGeneration, err)
	default:
		err = hosterr.AsNoDisk(err)
	}
	b.leave(leaveForget)
	h.metrics.created(string(b.rec.Boot), "error")
	h.log.WarnContext(ctx, "create failed", "sandbox_id", b.id, "generation", b.generation, "template", src.tpl.Name, "error", err)
	b.mu.Lock()
	b.createErr = fmt.Errorf("create sandbox: %w", err)
	b.mu.Unlock()
	if src.staged {
		h.unstage(ctx, b, src)
	}
	// The caller is told once the cleaning up was tried, so that it finds what
	// this box had free again. Not under ctx, which may have ended.
	if err := h.takeApart(ctx, b); err != nil {
		h.scheduleRetry(ctx, b, err)
	}
	close(b.created)
	h.notify()
}

// build makes everything that a box has. On an error the caller takes apart
// what there is: each resource can be found by the id and by the record.
func (h *Host) build(ctx context.Context, b *box, src *source, clock *stopwatch) error {
	defer func() { h.metrics.stages(clock.stages) }()
	slot, err := h.occupy(ctx, b, src, clock)
	if err != nil {
		return err
	}
	process, _, err := h.bringUp(ctx, b, src, slot, clock, nil)
	if err != nil {
		return err
	}
	err = h.commit(b, func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.StartedAt = h.now().UTC()
		r.VMM = h.identityOf(process)
		r.SharedRAM = src.cold
		r.Stages = slices.Clone(clock.stages)
		r.Took, r.Own = clock.total()
		return true
	})
	if err != nil {
		return err
	}
	clock.done(stageCommit, false)
	// In memory the commit's own time is counted too.
	b.amend(func(r *ledger.Record) {
		r.Stages = slices.Clone(clock.stages)
		r.Took, r.Own = clock.total()
	})
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case <-process.Done():
		return h.quote(b, process, errors.New(endText(process)))
	default:
	}
	// It may not have been ended for it yet, and is not who it was restored as.
	if process.Rebooted() {
		return h.quote(b, process, errors.New(endText(process)))
	}
	return nil
}

// occupy gives a new box its slot, and has both on disk.
func (h *Host) occupy(ctx context.Context, b *box, src *source, clock *stopwatch) (Slot, error) {
	if src.warm != nil {
		slot, err := h.stage(ctx, b, src)
		if err == nil {
			clock.done(stageCapture, true)
		}
		return slot, err
	}
	slot, err := h.takeSlot(ctx, b, func() { clock.done(stageSlot, false) })
	if err == nil {
		clock.done(stageIntent, false)
	}
	return slot, err
}

// takeSlot gives a box that has none a slot, and its record the number.
func (h *Host) takeSlot(ctx context.Context, b *box, taken func()) (Slot, error) {
	slot, err := h.slots.Take(ctx)
	if err != nil {
		return Slot{}, fmt.Errorf("take a network slot: %w", err)
	}
	taken()
	if err := h.commit(b, func(r *ledger.Record) bool { r.Slot = slot.Number; return true }); err != nil {
		// Not on disk, so the slot goes back without the record's help. (A crash
		// here leaves a slot without a record, which is a free one.)
		h.slots.Return(slot.Number)
		return Slot{}, err
	}
	b.mu.Lock()
	b.net = &slot
	b.mu.Unlock()
	return slot, nil
}

func (h *Host) identityOf(p VMM) ledger.VMM {
	return ledger.VMM{PID: p.PID(), StartTime: p.StartTime(), Engine: h.cfg.Engine}
}
