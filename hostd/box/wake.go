package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// flight is one wake, or one delete, whoever asked for it.
type flight struct {
	done chan struct{}
	err  error
}

// Wake lets a hibernated box run on; a running one is left as it is. Whoever
// asks while it wakes waits for the same wake. It goes on when ctx ends.
func (h *Host) Wake(ctx context.Context, id string) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	if _, p := b.running(); p == nil || b.isLeaving() != leaveNot {
		if err := h.joinWake(ctx, b); err != nil {
			return hostapi.Box{}, err
		}
	}
	v, shown := b.view()
	if !shown {
		return hostapi.Box{}, hosterr.ErrNotFound
	}
	return v, nil
}

func (h *Host) joinWake(ctx context.Context, b *box) error {
	return h.join(ctx, b, &b.waking, h.wake)
}

// join does something to a box for everyone who asks for it meanwhile, and waits
// for its end. It goes on when ctx ends.
func (h *Host) join(ctx context.Context, b *box, current **flight, do func(context.Context, *box) error) error {
	b.mu.Lock()
	f := *current
	first := f == nil
	if first {
		f = &flight{done: make(chan struct{})}
		*current = f
	}
	b.mu.Unlock()
	detached := h.work.Detach(ctx)
	fly := func(do func(context.Context, *box) error) {
		f.err = do(detached, b)
		b.mu.Lock()
		*current = nil
		b.mu.Unlock()
		close(f.done)
	}
	if first && !h.work.Go(func() { fly(do) }) {
		fly(func(context.Context, *box) error { return hosterr.ErrDraining })
	}
	if err := wait(ctx, f.done); err != nil {
		return err
	}
	return f.err
}

func (h *Host) wake(ctx context.Context, b *box) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	}
	defer b.release()
	switch b.isLeaving() {
	case leaveForget:
		return hosterr.ErrNotFound
	case leaveBury:
		return b.illegal("wake")
	}
	switch b.record().State {
	case ledger.Running:
		return nil
	case ledger.Hibernated:
	default:
		return b.illegal("wake")
	}
	began := h.now()
	_, err := h.goOn(ctx, b)
	took := h.now().Sub(began)
	h.metrics.moved("wake", took, err)
	if err != nil {
		return hosterr.AsNoDisk(fmt.Errorf("wake sandbox: %w", err))
	}
	h.tell(ctx, b, hostapi.EventWoken, "sandbox is awake", map[string]any{"wake_ms": took.Milliseconds()})
	return nil
}

// goOn lets a box run on from its saved state. The ledger says that the state is
// spent before the VM goes on: from then on the disk moves away from it. A
// failure before leaves the box as it was; one after fails it, as a VM that
// dies. The caller holds the operation lock.
func (h *Host) goOn(ctx context.Context, b *box) (Slot, error) {
	// Not the host's life: a wake is over in a moment, and half of one would
	// have to be taken apart.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.CreateTimeout)
	defer cancel()
	rec := b.record()
	tpl, err := h.templates.Build(ctx, rec.BuildID)
	if err != nil {
		return Slot{}, err
	}
	if err := h.shedRemains(ctx, b); err != nil {
		return Slot{}, fmt.Errorf("its old VMM could not be ended: %w", err)
	}
	if err := h.reserve(b); err != nil {
		return Slot{}, err
	}
	slot, err := h.slotAgain(ctx, b)
	if err != nil {
		h.unreserve(b)
		return Slot{}, err
	}
	clock := newStopwatch(h.now)
	src := &source{tpl: tpl, from: h.paths.State(b.id), kept: true, resetTCP: rec.ResetTCP}
	process, ran, err := h.bringUp(ctx, b, src, slot, clock, func() error {
		return h.commit(b, func(r *ledger.Record) bool {
			r.State = ledger.Waking
			r.VMM = h.identityOf(b.vmm)
			return true
		})
	})
	h.metrics.stages(clock.stages)
	switch {
	case err != nil && !ran:
		return slot, errors.Join(err, h.backToSleep(ctx, b, rec))
	case err != nil && process != nil && !ended(process) && errors.Is(err, hosterr.ErrGuest):
		// It runs, and its agent may answer later.
		h.log.WarnContext(ctx, "the guest of a sandbox that woke does not answer", "sandbox_id", b.id, "error", err)
	case err != nil:
		return slot, errors.Join(err, h.fail(ctx, b, process, "it did not go on from its saved memory: "+err.Error()))
	}
	h.runs(ctx, b, process)
	if err := os.RemoveAll(h.paths.State(b.id)); err != nil {
		h.log.WarnContext(ctx, "spent state of a sandbox stays until its next move", "sandbox_id", b.id, "error", err)
	}
	return slot, nil
}

func ended(p VMM) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// runs notes that a box is awake, whatever put it to sleep.
func (h *Host) runs(ctx context.Context, b *box, p VMM) {
	change := func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.Stopped, r.WarmChild, r.ResetTCP, r.Error = false, "", false, ""
		r.VMM = h.identityOf(p)
		return true
	}
	if err := h.commit(b, change); err != nil {
		// The VM runs; the next start finds it, and says so again.
		h.log.ErrorContext(ctx, "a wake is not in the ledger", "sandbox_id", b.id, "error", err)
		b.amend(func(r *ledger.Record) { change(r) })
	}
	h.watch(b)
	h.notify()
}

// slotAgain returns the slot that a box kept, or another for one that gave its
// own away.
func (h *Host) slotAgain(ctx context.Context, b *box) (Slot, error) {
	if b.slotNumber() != ledger.NoSlot {
		return h.claim(ctx, b)
	}
	// Another slot is another user, who could not write over what the one before
	// left.
	if err := os.RemoveAll(h.paths.VMM(b.id)); err != nil {
		return Slot{}, fmt.Errorf("remove what its last VMM left: %w", err)
	}
	return h.takeSlot(ctx, b, func() {})
}

// backToSleep takes a VM apart that was to go on and has not begun to. rec is
// the record as it was.
func (h *Host) backToSleep(ctx context.Context, b *box, rec ledger.Record) error {
	b.mu.Lock()
	p := b.vmm
	b.vmm = nil
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	err := h.commit(b, func(r *ledger.Record) bool {
		changed := r.State != rec.State
		r.State, r.VMM = rec.State, rec.VMM
		return changed
	})
	if p != nil {
		h.shed(ctx, b, p)
	} else {
		h.unreserve(b)
		err = errors.Join(err, h.cgroups.Remove(ctx, b.id))
	}
	// Whatever was wrong with the slot is repaired at the next attempt.
	b.mu.Lock()
	b.net = nil
	b.mu.Unlock()
	return err
}

// fail ends a box's VMM and marks it failed: its VM is not what it should be.
// Nobody is told that it has failed before it has ended; where that takes longer,
// the sweep tells them.
func (h *Host) fail(ctx context.Context, b *box, p VMM, why string) error {
	b.mu.Lock()
	b.vmm = nil
	if b.fenced != "" {
		why = b.fenced
	}
	b.failing = why
	b.mu.Unlock()
	if p != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
		defer cancel()
		h.shed(ctx, b, p)
		if !ended(p) {
			return nil
		}
	}
	return h.failed(b, p)
}

// failed marks a box failed whose VMM p, if it had one, has ended.
func (h *Host) failed(b *box, p VMM) error {
	change := func(r *ledger.Record) bool {
		r.Enter(ledger.Failed)
		r.FailedAt = h.now().UTC()
		r.Error = b.failing
		return true
	}
	err := h.commit(b, change)
	if err != nil {
		b.amend(func(r *ledger.Record) { change(r) }) // as of a VMM that died
	}
	b.mu.Lock()
	b.failing = ""
	b.mu.Unlock()
	if p != nil {
		h.tellDeath(b, p)
	}
	h.notify()
	return err
}

// reserve takes memory for a box that has none.
func (h *Host) reserve(b *box) error {
	b.mu.Lock()
	want := b.rec.ReservedMB - b.reserved
	b.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reservedMB+want > h.cfg.MemoryMB {
		return fmt.Errorf("%w: it takes %d MB, and %d of %d MB are reserved", hosterr.ErrNoMemory, want, h.reservedMB, h.cfg.MemoryMB)
	}
	h.reservedMB += want
	b.mu.Lock()
	b.reserved += want
	b.mu.Unlock()
	return nil
}
