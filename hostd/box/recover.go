package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// Recovery is what became of a record when the daemon started.
type Recovery string

// The recoveries.
const (
	Adopted  Recovery = "adopted"  // its VM runs, or is paused, as before
	Orphaned Recovery = "orphaned" // its VM is gone: failed
	Kept     Recovery = "kept"     // had failed before
	Leftover Recovery = "leftover" // mid-create or mid-delete: being cleaned away
)

// Recover takes a record of an earlier daemon over. It returns once the box is
// in List as it will be answered for; a leftover is taken apart in the
// background, and a Put of its generation waits for that and then starts anew.
func (h *Host) Recover(ctx context.Context, rec ledger.Record) (Recovery, error) {
	b := newBox(rec, h.cfg.MaxExecs)
	close(b.created)
	h.mu.Lock()
	if h.boxes[b.id] != nil {
		h.mu.Unlock()
		return "", fmt.Errorf("sandbox %s was recovered already", b.id)
	}
	h.boxes[b.id] = b
	h.mu.Unlock()

	switch rec.State {
	case ledger.Creating:
		return Leftover, h.recoverLeftover(b, leaveForget)
	case ledger.Deleting:
		return Leftover, h.recoverLeftover(b, leaveBury)
	case ledger.Failed, ledger.Hibernated:
		return Kept, nil
	case ledger.Running, ledger.Paused:
		return h.recoverRunning(ctx, b)
	default:
		return "", fmt.Errorf("sandbox %s has state %q in the ledger, which this hostd does not know", b.id, rec.State)
	}
}

func (h *Host) recoverLeftover(b *box, why leave) error {
	b.leave(why)
	b.op <- struct{}{}
	h.spawn(func() {
		defer b.release()
		if err := h.takeApart(b); err != nil {
			h.scheduleRetry(b, err)
		}
	})
	return nil
}

func (h *Host) recoverRunning(ctx context.Context, b *box) (Recovery, error) {
	p, err := h.engine.Adopt(ctx, h.paths.VMM(b.id))
	if err == nil && (p.PID() != b.rec.VMM.PID || p.StartTime() != b.rec.VMM.StartTime) {
		// Whoever wrote the runtime directory last was not this daemon.
		err = fmt.Errorf("process %d is not the one that the ledger names", p.PID())
	}
	if err != nil {
		if !errors.Is(err, vmm.ErrGone) {
			h.log.Warn("VMM has no readable identity, its cgroup is killed", "sandbox_id", b.id, "error", err)
		}
		return Orphaned, h.orphan(ctx, b, "its VM was gone when the host daemon started")
	}
	sctx, cancel := context.WithTimeout(ctx, stateTimeout)
	state, err := p.State(sctx)
	cancel()
	switch {
	case err != nil:
		// It lives and does not answer now; what the ledger says is the best
		// guess, and every later call tells more.
		h.log.Warn("an adopted VMM does not answer", "sandbox_id", b.id, "error", err)
	case state == vmm.StateRunning || state == vmm.StatePaused:
		// A crash may have come between the VMM's move and the ledger's.
		seen := map[vmm.State]ledger.State{vmm.StateRunning: ledger.Running, vmm.StatePaused: ledger.Paused}[state]
		err = h.commit(b, func(r *ledger.Record) bool {
			changed := r.State != seen
			r.State = seen
			return changed
		})
		if err != nil {
			return "", err
		}
	default:
		if err := p.Kill(ctx); err != nil {
			return "", err
		}
		return Orphaned, h.orphan(ctx, b, fmt.Sprintf("its guest had ended when the host daemon started (VM state %s)", state))
	}
	b.mu.Lock()
	b.vmm = p
	b.reserved = b.rec.ReservedMB
	b.mu.Unlock()
	// Even where the budget is smaller now: the memory is in use.
	h.mu.Lock()
	h.reservedMB += b.rec.ReservedMB
	h.mu.Unlock()
	h.watch(b)
	return Adopted, nil
}

// orphan marks a box failed whose VM is gone.
func (h *Host) orphan(ctx context.Context, b *box, why string) error {
	if err := h.cgroups.Remove(ctx, b.id); err != nil {
		h.log.Warn("cgroup of a failed sandbox stays until its delete", "sandbox_id", b.id, "error", err)
	}
	err := h.commit(b, func(r *ledger.Record) bool {
		r.State = ledger.Failed
		r.FailedAt = h.now().UTC()
		r.Error = why
		return true
	})
	if err != nil {
		return err
	}
	h.log.Error("sandbox's VM vanished", "event", "recover.orphaned", "sandbox_id", b.id, "generation", b.generation, "reason", why)
	return nil
}
