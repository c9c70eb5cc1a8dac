package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

const (
	sweepInterval = time.Second
	// tombstones outlive every request that could still be on its way.
	tombstoneAge = 24 * time.Hour
)

var teardownTimeout = timescale.Limit(30 * time.Second)

// Delete removes a box and everything it had, and waits until it is gone. A
// create that is under way is cut off. generation, where it is above 0, is
// buried even if no such box is here; a younger box is left alone. It goes on
// when ctx ends, and again when it fails.
func (h *Host) Delete(ctx context.Context, id string, generation uint64) error {
	if !hostapi.ValidID(id) {
		return hosterr.Invalid("id is not %d characters of lower-case base32", hostapi.IDLength)
	}
	for deleted := false; ; deleted = true {
		h.mu.Lock()
		if h.phase == starting {
			h.mu.Unlock()
			return hosterr.ErrDraining // the ledger knows boxes that the map does not yet
		}
		b := h.boxes[id]
		if b == nil {
			return h.buryAndUnlock(id, generation)
		}
		h.mu.Unlock()
		if generation > 0 && generation < b.generation {
			if deleted {
				return nil
			}
			return fmt.Errorf("%w: generation %d", hosterr.ErrStaleGeneration, b.generation)
		}
		generation = max(generation, b.generation)
		b.leave(leaveBury)
		b.cancel(errDeleted)
		h.notify()
		if err := h.join(ctx, b, &b.ending, h.deleteBox); err != nil {
			return err
		}
		// Once more: a create that failed a moment before may have let another
		// Put of the same generation in.
	}
}

// buryAndUnlock raises the tombstone of an id that has no box. A Put of the
// generation is refused from the moment at which the lock is let go, not only
// when the tombstone is on disk.
func (h *Host) buryAndUnlock(id string, generation uint64) error {
	if generation == 0 || generation <= h.ledger.Tombstone(id) {
		h.mu.Unlock()
		return nil
	}
	h.burying[id] = append(h.burying[id], generation)
	h.mu.Unlock()
	err := h.ledger.Bury(id, generation, h.now())
	h.mu.Lock()
	defer h.mu.Unlock()
	left := h.burying[id]
	i := slices.Index(left, generation)
	if left = slices.Delete(left, i, i+1); len(left) == 0 {
		delete(h.burying, id)
	} else {
		h.burying[id] = left
	}
	return err
}

// buriedLocked is the highest generation of an id that is over. The caller holds
// the lock.
func (h *Host) buriedLocked(id string) uint64 {
	return slices.Max(append([]uint64{h.ledger.Tombstone(id)}, h.burying[id]...))
}

func (h *Host) deleteBox(ctx context.Context, b *box) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	}
	defer b.release()
	if err := h.takeApart(ctx, b); err != nil {
		h.scheduleRetry(ctx, b, err)
		return fmt.Errorf("delete sandbox (it is tried again): %w", err)
	}
	return nil
}

// takeApart removes everything that a box has and then its record. The order
// matters: the intent on disk; kill and wait for the exit; what the VMM used;
// the record; and last the slot goes back, so that never two records name one
// slot. Each step finds its resource by the box's id and is content when it is
// gone, so takeApart may be called again after a failure or a crash.
//
// The caller holds the operation lock and has called leave.
func (h *Host) takeApart(ctx context.Context, b *box) error {
	select {
	case <-b.gone:
		return nil
	default:
	}
	began := h.now()
	// What was begun is finished, also at shutdown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	why := b.isLeaving()
	if why == leaveBury {
		err := h.commit(b, func(r *ledger.Record) bool {
			if r.State == ledger.Deleting {
				return false
			}
			r.Enter(ledger.Deleting)
			return true
		})
		if err != nil {
			return err
		}
	}
	if err := h.killVMM(ctx, b); err != nil {
		return err
	}
	h.unreserve(b)
	// Connections into the slot end with the VMM; a namespace that is still
	// held open cannot be used again.
	if err := b.line.AwaitUnused(ctx); err != nil {
		return err
	}
	if err := h.cgroups.Remove(ctx, b.id); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	if err := h.detachVolumes(b); err != nil {
		return err
	}
	if err := h.paths.Remove(b.id); err != nil {
		return err
	}
	if err := h.settle(b, why); err != nil {
		return err
	}
	if why == leaveBury {
		h.log.InfoContext(ctx, "sandbox is deleted", "event", "sandbox.deleted", "sandbox_id", b.id, "generation", b.generation,
			"took_ms", h.now().Sub(began).Milliseconds())
		rec := b.record()
		h.events.Emit(b.id, hostapi.EventDeleted, "sandbox is deleted", map[string]any{"lifetime_seconds": int64(h.now().Sub(rec.CreatedAt).Seconds())})
		h.events.Close(b.id)
	}
	h.notify()
	return nil
}

// settle removes the record and the box, and gives the slot back.
func (h *Host) settle(b *box, why leave) error {
	var err error
	if why == leaveBury {
		err = h.ledger.Bury(b.id, b.generation, h.now())
	} else {
		err = h.ledger.Forget(b.id)
	}
	if err != nil {
		return err
	}
	slot := b.slotNumber()
	h.mu.Lock()
	delete(h.boxes, b.id)
	h.mu.Unlock()
	if slot != ledger.NoSlot {
		h.slots.Return(slot)
	}
	close(b.gone)
	return nil
}

// killVMM ends the box's VMM, if it has one, and waits for the end. One that does
// not end in time is what is left to shed: nothing is started beside it, and the
// next attempt need not look for it, and watch it, once more.
func (h *Host) killVMM(ctx context.Context, b *box) error {
	b.mu.Lock()
	p := b.vmm
	if p == nil {
		p = b.remains
	}
	b.mu.Unlock()
	if p == nil {
		p = h.formerVMM(ctx, b)
	}
	if p == nil {
		return nil
	}
	err := p.Kill(ctx)
	if err != nil {
		b.mu.Lock()
		b.unshed, b.remains = true, p
		b.mu.Unlock()
	}
	return err
}

// formerVMM finds a VMM that this daemon does not hold, because it was made by an
// earlier one, by the runtime directory. It is nil where there is none, or its
// identity cannot be told; its cgroup tells what to kill then.
func (h *Host) formerVMM(ctx context.Context, b *box) VMM {
	p, err := h.engine.Adopt(ctx, h.paths.VMM(b.id))
	if err == nil {
		return p
	}
	if !errors.Is(err, vmm.ErrGone) {
		h.log.WarnContext(ctx, "VMM has no readable identity, its cgroup is killed instead", "sandbox_id", b.id, "error", err)
	}
	return nil
}

// scheduleRetry leaves the box to the sweep.
func (h *Host) scheduleRetry(ctx context.Context, b *box, err error) {
	h.log.ErrorContext(ctx, "sandbox could not be taken apart, it is tried again", "sandbox_id", b.id, "error", err)
	b.mu.Lock()
	b.retry = true
	b.mu.Unlock()
}

// sweep tries again what could not be taken apart and forgets old tombstones,
// until the host closes. It waits for no box.
func (h *Host) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-h.work.Life().Done():
			return
		case <-tick.C:
		}
		h.retryAll()
		if n%3600 == 0 {
			h.work.Go(h.forgetTombstones)
		}
	}
}

func (h *Host) forgetTombstones() {
	if _, err := h.ledger.Prune(h.now().Add(-tombstoneAge)); err != nil {
		h.log.Warn("old tombstones stay in the ledger", "error", err)
	}
}

// retryAll begins to try again, each box by itself: one that takes long, or a
// disk that does, keeps no other waiting.
func (h *Host) retryAll() {
	h.mu.Lock()
	var again []*box
	for _, b := range h.boxes {
		b.mu.Lock()
		if b.retry || (b.unshed || b.doubts > 0) && h.phase != starting { // until then its recovery is at it
			again = append(again, b)
		}
		b.mu.Unlock()
	}
	h.mu.Unlock()
	for _, b := range again {
		select {
		case b.op <- struct{}{}:
		default:
			continue // it is being moved; the next sweep looks again
		}
		if !h.work.Go(func() { defer b.release(); h.tryAgain(b) }) {
			b.release()
		}
	}
}

// tryAgain does once more what failed. The caller holds the operation lock.
func (h *Host) tryAgain(b *box) {
	select {
	case <-b.gone:
		return // its id may be another box's, and so its cgroup and its record
	default:
	}
	b.mu.Lock()
	apart, p, failing := b.retry, b.remains, b.failing != ""
	b.mu.Unlock()
	if !apart {
		if err := h.shedRemains(h.work.Life(), b); err != nil {
			h.log.Error("what a sandbox's last VMM used could not be ended, it is tried again", "sandbox_id", b.id, "error", err)
		}
		if failing && p != nil && ended(p) {
			if err := h.failed(b, p); err != nil {
				h.log.Error("a failed sandbox is not in the ledger", "sandbox_id", b.id, "error", err)
			}
		}
		if err := h.clearDoubt(b); err != nil {
			h.log.Error("what a sandbox's VMM was late to do is not in its record", "sandbox_id", b.id, "error", err)
		}
	} else if err := h.takeApart(h.work.Life(), b); err != nil {
		h.log.Error("sandbox could not be taken apart, it is tried again", "sandbox_id", b.id, "error", err)
	}
}
