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
func (b *box) create(ctx context.Context, src *source, clock *stopwatch) {
	defer b.release()
	defer src.release()
	err := b.build(ctx, src, clock)
	if err == nil {
		b.host.metrics.created(string(b.rec.Boot), "ok")
		b.host.log.InfoContext(ctx, "sandbox is running", "event", "sandbox.running", "sandbox_id", b.id, "generation", b.generation,
			"template", src.tpl.Name, "boot", b.rec.Boot, "boot_ms", b.rec.Took.Milliseconds(), "own_ms", b.rec.Own.Milliseconds())
		b.announce(src)
		b.watch()
		close(b.created)
		b.host.notify()
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
	b.host.metrics.created(string(b.rec.Boot), "error")
	b.host.log.WarnContext(ctx, "create failed", "sandbox_id", b.id, "generation", b.generation, "template", src.tpl.Name, "error", err)
	b.mu.Lock()
	b.createErr = fmt.Errorf("create sandbox: %w", err)
	b.mu.Unlock()
	if src.staged {
		b.unstage(ctx, src)
	}
	// The caller is told once the cleaning up was tried, so that it finds what
	// this box had free again. Not under ctx, which may have ended.
	if err := b.takeApart(ctx); err != nil {
		b.scheduleRetry(ctx, err)
	}
	close(b.created)
	b.host.notify()
}

// build makes everything that a box has. On an error the caller takes apart
// what there is: each resource can be found by the id and by the record.
func (b *box) build(ctx context.Context, src *source, clock *stopwatch) error {
	defer func() { b.host.metrics.stages(clock.stages) }()
	slot, err := b.occupy(ctx, src, clock)
	if err != nil {
		return err
	}
	launched, err := b.launch(ctx, src, slot, clock, nil)
	if err != nil {
		return err
	}
	process := launched.process
	err = b.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.StartedAt = b.host.now().UTC()
		r.VMM = b.host.identityOf(process)
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
		return b.quote(process, errors.New(endText(process)))
	default:
	}
	// It may not have been ended for it yet, and is not who it was restored as.
	if process.Rebooted() {
		return b.quote(process, errors.New(endText(process)))
	}
	return nil
}

// occupy gives a new box its slot, and has both on disk.
func (b *box) occupy(ctx context.Context, src *source, clock *stopwatch) (Slot, error) {
	if src.warm != nil {
		slot, err := b.stage(ctx, src)
		if err == nil {
			clock.done(stageCapture, true)
		}
		return slot, err
	}
	slot, err := b.takeSlot(ctx, func() { clock.done(stageSlot, false) })
	if err == nil {
		clock.done(stageIntent, false)
	}
	return slot, err
}

// takeSlot gives a box that has none a slot, and its record the number.
func (b *box) takeSlot(ctx context.Context, taken func()) (Slot, error) {
	slot, err := b.host.slots.Take(ctx)
	if err != nil {
		return Slot{}, fmt.Errorf("take a network slot: %w", err)
	}
	taken()
	if err := b.commit(func(r *ledger.Record) bool { r.Slot = slot.Number; return true }); err != nil {
		// Not on disk, so the slot goes back without the record's help. (A crash
		// here leaves a slot without a record, which is a free one.)
		b.host.slots.Return(slot.Number)
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
