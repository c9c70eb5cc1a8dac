package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// flight is one wake, or one delete, that all its callers share.
type flight struct {
	done chan struct{}
	err  error
}

// Wake lets a hibernated box run on; a running one is left as it is. Whoever
// asks while it wakes waits for the same wake, and whoever asks while it is put to
// sleep for the end of that first. It goes on when ctx ends.
func (h *Host) Wake(ctx context.Context, id string) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	shut, _ := b.line.IsShut()
	if _, p := b.running(); p == nil || shut || b.removing() != removalNone {
		if err := b.joinWake(ctx); err != nil {
			return hostapi.Box{}, err
		}
	}
	v, shown := b.view()
	if !shown {
		return hostapi.Box{}, hosterr.ErrNotFound
	}
	return v, nil
}

func (b *box) joinWake(ctx context.Context) error {
	return b.join(ctx, &b.waking, b.wake)
}

// join starts an action on a box, or joins the one that is under way, and waits
// for its end. The action goes on when ctx ends.
func (b *box) join(ctx context.Context, current **flight, do func(context.Context) error) error {
	b.mu.Lock()
	f := *current
	first := f == nil
	if first {
		f = &flight{done: make(chan struct{})}
		*current = f
	}
	b.mu.Unlock()
	detached := b.host.work.Detach(ctx)
	fly := func(do func(context.Context) error) {
		f.err = do(detached)
		b.mu.Lock()
		*current = nil
		b.mu.Unlock()
		close(f.done)
	}
	if first && !b.host.work.Go(func() { fly(do) }) {
		fly(func(context.Context) error { return hosterr.ErrDraining })
	}
	if err := wait(ctx, f.done); err != nil {
		return err
	}
	return f.err
}

func (b *box) wake(ctx context.Context) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	}
	defer b.release()
	switch b.removing() {
	case removalForget:
		return hosterr.ErrNotFound
	case removalBury:
		return b.illegal("wake")
	}
	switch b.record().State {
	case ledger.Running:
		return nil
	case ledger.Hibernated:
		if b.record().Leaving {
			return errLeaving
		}
	default:
		return b.illegal("wake")
	}
	began := b.host.now()
	err := b.resumeFromState(ctx)
	b.memoryLost = errors.Is(err, hosterr.ErrBadSnapshot)
	took := b.host.now().Sub(began)
	b.host.metrics.transition("wake", took, err)
	if err != nil {
		return hosterr.AsNoDisk(fmt.Errorf("wake sandbox: %w", err))
	}
	b.emit(ctx, hostapi.EventWoken, "sandbox is awake", map[string]any{"wake_ms": took.Milliseconds()})
	return nil
}

// resumeFromState restores a box from its saved state and resumes it. The
// ledger says that the state is spent before the VM runs, because the disk
// changes from then on. A failure before that leaves the box as it was; a
// failure after it fails the box. The caller holds the operation lock.
func (b *box) resumeFromState(ctx context.Context) error {
	// Not cut off at shutdown: a wake takes only a moment, and half of one would
	// have to be undone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.host.cfg.CreateTimeout)
	defer cancel()
	rec := b.record()
	tpl, err := b.savedWith(ctx, &rec)
	if err != nil {
		return err
	}
	if err := b.retryRelease(ctx); err != nil {
		return fmt.Errorf("its old VMM could not be ended: %w", err)
	}
	if err := b.reserve(); err != nil {
		return err
	}
	slot, err := b.slotAgain(ctx)
	if err != nil {
		b.unreserve()
		return err
	}
	clock := newStopwatch(b.host.now)
	clock.in(ctx)
	src := &source{tpl: tpl, from: b.host.paths.State(b.id), kept: true, resetTCP: rec.ResetTCP}
	launched, err := b.launch(ctx, src, slot, clock, func() error {
		return b.commit(func(r *ledger.Record) bool {
			r.State = ledger.Waking
			r.VMM = b.host.identityOf(b.vmm)
			return true
		})
	})
	b.host.metrics.stages(clock.stages)
	process := launched.process
	late := false // its identity
	switch {
	case err != nil && !launched.ran:
		return errors.Join(b.countRefusal(err, launched.refused), b.undoWake(ctx, rec))
	case err != nil && process != nil && !ended(process) && errors.Is(err, hosterr.ErrGuest):
		// It runs, and its agent may answer later.
		late = true
		b.host.log.WarnContext(ctx, "the guest of a sandbox that woke does not answer", "sandbox_id", b.id, "error", err)
	case err != nil:
		b.host.log.WarnContext(ctx, "a sandbox did not go on from its saved memory", "sandbox_id", b.id, "error", err)
		return errors.Join(err, b.fail(ctx, process, "it did not go on from its saved memory"))
	}
	b.refusals = 0
	b.noteRunning(ctx, process)
	if late {
		b.host.guests.IdentifySoon(b.guest(), launched.identity)
	}
	if err := os.RemoveAll(b.host.paths.State(b.id)); err != nil {
		b.host.log.WarnContext(ctx, "spent state of a sandbox stays until its next transition", "sandbox_id", b.id, "error", err)
	}
	return nil
}

// maxRefusals is how often in a row a VMM refuses a saved state before that is given up.
const maxRefusals = 2

// countRefusal makes an error of a wake ErrBadSnapshot once the VMM will never take the
// saved state of a box that can be booted from its disk instead: a database's, to which
// its memory is no more than the time that a start takes.
func (b *box) countRefusal(err error, refused bool) error {
	if !refused {
		return err
	}
	b.refusals++
	if rec := b.record(); b.refusals < maxRefusals || !rec.Exclusive || !rec.Persistent {
		return err
	}
	return fmt.Errorf("%w: its memory: %w", hosterr.ErrBadSnapshot, err)
}

// savedWith returns the build of a box whose memory was saved by this host's engine:
// hosterr.ErrBadSnapshot where another one did.
func (b *box) savedWith(ctx context.Context, rec *ledger.Record) (Template, error) {
	tpl, err := b.host.templates.Bootable(ctx, rec.BuildID)
	if err != nil {
		return tpl, err
	}
	if rec.SavedBy == "" { // by an earlier hostd, which ran guests by the engine of their build alone
		if _, err := b.host.templates.Build(ctx, rec.BuildID); errors.Is(err, image.ErrOtherEngine) {
			return tpl, fmt.Errorf("%w: its memory: %w", hosterr.ErrBadSnapshot, err)
		}
		return tpl, nil
	}
	if err := vmm.Restores(b.host.cfg.Engine, rec.SavedBy); err != nil {
		return tpl, fmt.Errorf("%w: its memory was %w", hosterr.ErrBadSnapshot, err)
	}
	return tpl, nil
}

func ended(p VMM) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// noteRunning records that a box runs again.
func (b *box) noteRunning(ctx context.Context, p VMM) {
	change := func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.Stopped, r.WarmChild, r.ResetTCP, r.Error = false, "", false, ""
		r.VMM = b.host.identityOf(p)
		return true
	}
	if err := b.commit(change); err != nil {
		// The VM runs; the next start finds it, and says so again.
		b.host.log.ErrorContext(ctx, "a wake is not in the ledger", "sandbox_id", b.id, "error", err)
		b.amend(func(r *ledger.Record) { change(r) })
	}
	b.watch()
	b.host.notify()
}

// slotAgain returns the slot that a box has kept, or takes a new one if it gave
// its own away.
func (b *box) slotAgain(ctx context.Context) (Slot, error) {
	if b.slotNumber() != ledger.NoSlot {
		return b.claim(ctx)
	}
	// Another slot has another user, who cannot overwrite the files of the last.
	if err := os.RemoveAll(b.host.paths.VMM(b.id)); err != nil {
		return Slot{}, fmt.Errorf("remove what its last VMM left: %w", err)
	}
	return b.takeSlot(ctx, func() {})
}

// undoWake ends the VM of a wake that failed before the VM ran. rec is the
// record as it was.
func (b *box) undoWake(ctx context.Context, rec ledger.Record) error {
	b.mu.Lock()
	p := b.vmm
	b.vmm = nil
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	err := b.commit(func(r *ledger.Record) bool {
		changed := r.State != rec.State
		r.State, r.VMM = rec.State, rec.VMM
		return changed
	})
	if p != nil {
		b.releaseResources(ctx, p)
	} else {
		b.unreserve()
		err = errors.Join(err, b.host.cgroups.Remove(ctx, b.id))
	}
	// Whatever was wrong with the slot is repaired at the next attempt.
	b.mu.Lock()
	b.net = nil
	b.mu.Unlock()
	return err
}

// fail ends a box's VMM and marks the box failed. The box is shown as failed
// only once its VMM has ended; if that takes longer, the sweep marks it.
func (b *box) fail(ctx context.Context, p VMM, reason string) error {
	b.mu.Lock()
	b.vmm = nil
	if b.fenced != "" {
		reason = b.fenced
	}
	b.failing = reason
	b.mu.Unlock()
	if p != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
		defer cancel()
		b.releaseResources(ctx, p)
		if !ended(p) {
			return nil
		}
	}
	return b.failed(p)
}

// failed marks a box failed whose VMM p, if it had one, has ended.
func (b *box) failed(p VMM) error {
	change := func(r *ledger.Record) bool {
		r.Enter(ledger.Failed)
		r.FailedAt = b.host.now().UTC()
		r.Error = b.failing
		return true
	}
	err := b.commit(change)
	if err != nil {
		b.amend(func(r *ledger.Record) { change(r) }) // as of a VMM that died
	}
	b.mu.Lock()
	b.failing = ""
	b.mu.Unlock()
	if p != nil {
		b.reportDeath(p)
	}
	b.host.notify()
	return err
}
