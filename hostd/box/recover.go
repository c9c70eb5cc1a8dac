package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// Recovery is what became of a record at the start of the daemon.
type Recovery string

// The recoveries.
const (
	Adopted  Recovery = "adopted"  // its VM runs, or is paused, as before
	Orphaned Recovery = "orphaned" // its VM is gone: failed
	Kept     Recovery = "kept"     // had failed before
	Rebooted Recovery = "rebooted" // its VM is gone: persistent, so booted from its disk
	Leftover Recovery = "leftover" // mid-create or mid-delete: being cleaned away
)

// recovery is a box of an earlier daemon while it is being recovered.
type recovery struct{ *box }

// Recover takes over a record of an earlier daemon. It returns once List shows
// the box as it is. A leftover is removed in the background; a Put of its
// generation waits for that and then creates the box anew.
func (h *Host) Recover(ctx context.Context, rec ledger.Record) (Recovery, error) {
	b := recovery{h.newBox(rec)}
	close(b.created)
	h.mu.Lock()
	if h.boxes[b.id] != nil {
		h.mu.Unlock()
		return "", fmt.Errorf("sandbox %s was recovered already", b.id)
	}
	h.boxes[b.id] = b.box
	h.mu.Unlock()

	switch rec.State {
	case ledger.Creating:
		b.recoverLeftover(ctx, removalForget)
		return Leftover, nil
	case ledger.Deleting:
		h.open(&rec)
		b.recoverLeftover(ctx, removalBury)
		return Leftover, nil
	}
	h.open(&rec)
	switch {
	case rec.State == ledger.Failed:
		// It may have failed while its VMM could not be ended.
		return Kept, b.releaseFormer(ctx, b.formerVMM(ctx))
	case rec.State == ledger.Hibernated, rec.State == ledger.Paused && rec.Stopped:
		return b.recoverParked(ctx)
	case rec.State == ledger.Booting:
		return b.recoverBooting(ctx)
	case rec.State == ledger.Running, rec.State == ledger.Paused, rec.State == ledger.Waking:
		return b.recoverRunning(ctx)
	default:
		return "", fmt.Errorf("sandbox %s has state %q in the ledger, which this hostd does not know", b.id, rec.State)
	}
}

func (b recovery) recoverLeftover(ctx context.Context, how removal) {
	b.beginRemoval(how)
	b.op <- struct{}{}
	b.host.work.Go(func() {
		defer b.release()
		if err := b.teardown(ctx); err != nil {
			b.scheduleRetry(ctx, err)
		}
	})
}

// recoverParked takes over a box whose memory is saved. Its VMM may still be
// there, paused, if the crash came before its end.
func (b recovery) recoverParked(ctx context.Context) (Recovery, error) {
	if err := b.releaseFormer(ctx, b.formerVMM(ctx)); err != nil {
		return "", err
	}
	if err := os.RemoveAll(b.host.paths.StateTmp(b.id)); err != nil {
		return "", err
	}
	if capture.HasState(b.host.paths.State(b.id)) {
		return Kept, capture.OpenToVMMs(b.host.paths.State(b.id))
	}
	const gone = "its saved memory was gone when the host daemon started"
	if b.record().Leaving {
		return Orphaned, b.orphan(ctx, gone) // another host may have it: it is not booted
	}
	return b.handleLostVM(ctx, gone)
}

// recoverBooting kills what an earlier daemon had booted half-way.
func (b recovery) recoverBooting(ctx context.Context) (Recovery, error) {
	if err := b.releaseFormer(ctx, b.formerVMM(ctx)); err != nil {
		return "", err
	}
	return b.recoverPersistent(ctx)
}

// releaseFormer is releaseResources for what an earlier daemon made. A VMM that
// cannot be killed does not keep the host from starting: the only error is the
// end of ctx.
func (b recovery) releaseFormer(ctx context.Context, p VMM) error {
	unreleased := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.unreleased
	}
	if unreleased() {
		return nil // this recovery has tried it in vain
	}
	b.releaseResources(ctx, p)
	if unreleased() {
		b.adoptReserve()
	}
	return ctx.Err()
}

// handleLostVM fails a box whose VM and memory are gone, or boots a persistent one.
func (b recovery) handleLostVM(ctx context.Context, reason string) (Recovery, error) {
	if b.record().Persistent {
		return b.recoverPersistent(ctx)
	}
	return Orphaned, b.orphan(ctx, reason)
}

func (b recovery) recoverRunning(ctx context.Context) (Recovery, error) {
	p, err := b.host.engine.Adopt(ctx, b.host.paths.VMM(b.id))
	if err == nil && (p.PID() != b.rec.VMM.PID || p.StartTime() != b.rec.VMM.StartTime) {
		// Whoever wrote the runtime directory last was not this daemon.
		err = fmt.Errorf("process %d is not the one that the ledger names", p.PID())
	}
	if err != nil {
		if !errors.Is(err, vmm.ErrGone) {
			b.host.log.Warn("VMM has no readable identity, its cgroup is killed", "sandbox_id", b.id, "error", err)
		}
		return b.handleLostVM(ctx, b.goneReason())
	}
	sctx, cancel := context.WithTimeout(ctx, stateTimeout)
	state, err := p.State(sctx)
	cancel()
	switch {
	case err != nil:
		// It lives and is at work, on a pause or a snapshot that was cut off maybe; what
		// the ledger says is the best guess until it answers.
		b.host.log.Warn("an adopted VMM does not answer yet", "sandbox_id", b.id, "error", err)
		b.markStill()
	case state == vmm.StateRunning || state == vmm.StatePaused:
	default:
		if err := b.releaseFormer(ctx, p); err != nil {
			return "", err
		}
		return b.handleLostVM(ctx, fmt.Sprintf("its guest had ended when the host daemon started (VM state %s)", state))
	}
	b.mu.Lock()
	b.vmm = p
	b.mu.Unlock()
	// Even where the budget is smaller now: the memory is in use.
	b.adoptReserve()
	if b.record().State == ledger.Running && state != vmm.StateRunning {
		if err := b.passOver(); err != nil {
			return "", err
		}
	}
	if err == nil {
		if err := b.settleState(ctx, p, state); err != nil {
			return "", err
		}
	}
	b.watch()
	if state == vmm.StateRunning {
		b.askWhetherItRuns()
	}
	return Adopted, nil
}

// passOver gives the record of a box that runs a number that the last daemon has told of
// no other state: it may have told that the box is paused, where it could not write that
// down.
func (b recovery) passOver() error {
	return b.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Paused)
		r.Enter(ledger.Running)
		return true
	})
}

// goneReason says why a box has no VMM when the daemon starts.
func (b recovery) goneReason() string {
	if !b.rec.Exclusive || !b.host.guarded(b.id) {
		return "its VM was gone when the host daemon started"
	}
	b.host.log.Warn("exclusive sandbox was ended", "event", "box.fenced", "sandbox_id", b.id, "generation", b.generation, "reason", guardReason)
	b.host.events.Emit(b.id, hostapi.EventVMDied, guardReason, map[string]any{"exit_code": nil, "signal": "KILL"})
	return guardReason
}

// settleState finishes, or undoes, the transition that a crash cut off. A VM
// that runs is running, whatever the ledger says. A VM that is paused although
// its record says running was being captured, hibernated or woken: it is
// resumed. Its saved state is of no use then.
func (b *box) settleState(ctx context.Context, p VMM, state vmm.State) error {
	was := b.record().State
	if was == ledger.Paused && state != vmm.StateRunning {
		return nil
	}
	if err := errors.Join(os.RemoveAll(b.host.paths.State(b.id)), os.RemoveAll(b.host.paths.StateTmp(b.id))); err != nil {
		return err
	}
	if state == vmm.StatePaused {
		if err := (&saver{box: b, process: p}).resume(ctx); err != nil {
			b.host.log.Error("an adopted VM does not run on", "sandbox_id", b.id, "error", err)
			return nil // it is paused now, and says so; or its watch finds it dead
		}
	}
	if state == vmm.StatePaused || was != ledger.Running { // it has stood still
		guest := b.guest()
		guest.Woken = was == ledger.Waking
		b.host.guests.SetClock(ctx, guest)
	}
	if was == ledger.Running {
		return nil
	}
	err := b.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.Stopped, r.WarmChild, r.ResetTCP = false, "", false
		return true
	})
	switch {
	case err != nil:
	case was == ledger.Waking:
		b.emit(ctx, hostapi.EventWoken, "sandbox is awake, found so by its VMM", map[string]any{"wake_ms": nil})
	case was == ledger.Paused:
		b.emit(ctx, hostapi.EventResumed, "sandbox runs again, found so by its VMM", nil)
	}
	return err
}

// orphan marks a box failed whose VM is gone.
func (b recovery) orphan(ctx context.Context, reason string) error {
	if err := b.releaseFormer(ctx, nil); err != nil {
		return err
	}
	err := b.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Failed)
		r.FailedAt = b.host.now().UTC()
		r.Error = reason
		return true
	})
	if err != nil {
		return err
	}
	b.host.log.Error("sandbox's VM vanished", "event", "recover.orphaned", "sandbox_id", b.id, "generation", b.generation, "reason", reason)
	b.host.events.Emit(b.id, hostapi.EventOrphaned, reason, map[string]any{"reason": reason})
	return nil
}
