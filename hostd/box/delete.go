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

// errDeleted is why a delete cuts a create off.
var errDeleted = errors.New("sandbox was deleted while it was created")

// Delete removes a box and everything it had, and waits until it is gone. A
// create that is under way is cut off. A generation above 0 gets a tombstone
// even where no such box is here; a younger box is left alone. Delete goes on
// when ctx ends, and is retried when it fails.
func (h *Host) Delete(ctx context.Context, id string, generation uint64) error {
	return h.delete(ctx, id, generation, false)
}

// DeleteKeepingDisk is Delete, but the disk of a database's box stays for Config.KeepDisks:
// see Paths.KeptDisk.
func (h *Host) DeleteKeepingDisk(ctx context.Context, id string, generation uint64) error {
	return h.delete(ctx, id, generation, h.cfg.KeepDisks > 0)
}

func (h *Host) delete(ctx context.Context, id string, generation uint64, keepDisk bool) error {
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
		if keepDisk {
			b.keeps.Store(true)
		}
		b.beginRemoval(removalBury)
		b.cutOff(errDeleted)
		h.notify()
		if err := b.join(ctx, &b.deleting, b.deleteBox); err != nil {
			return err
		}
		// Once more: a create that failed a moment before may have let another
		// Put of the same generation in.
	}
}

// buryAndUnlock writes the tombstone of an id that has no box. A Put of the
// generation is refused as soon as the lock is released, and not only when the
// tombstone is on disk.
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

// buriedLocked is the highest generation of an id that was deleted. The caller
// holds the lock.
func (h *Host) buriedLocked(id string) uint64 {
	return slices.Max(append([]uint64{h.ledger.Tombstone(id)}, h.burying[id]...))
}

func (b *box) deleteBox(ctx context.Context) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	}
	defer b.release()
	if err := b.teardown(ctx); err != nil {
		b.scheduleRetry(ctx, err)
		return fmt.Errorf("delete sandbox (it is tried again): %w", err)
	}
	return nil
}

// teardown removes everything that a box has, and then its record, in this
// order: the intent is written to disk; its guest flushes its volumes; the VMM
// is killed and its exit awaited; what the VMM used is removed; the record is
// removed; and last the slot goes back, so that two records never name one
// slot. Each step finds its resource by the box's id and succeeds if it is gone,
// so teardown may be called again after a failure or a crash.
//
// The caller holds the operation lock and has called beginRemoval.
func (b *box) teardown(ctx context.Context) error {
	select {
	case <-b.gone:
		return nil
	default:
	}
	began := b.host.now()
	// A removal that has begun is finished, also at shutdown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	how := b.removing()
	if how == removalBury {
		was := ledger.Deleting
		err := b.commit(func(r *ledger.Record) bool {
			if was = r.State; was == ledger.Deleting {
				return false // an earlier daemon may have ended before the flush
			}
			r.Enter(ledger.Deleting)
			r.KeepDisk = b.keeps.Load() && r.Database != nil
			return true
		})
		if err != nil {
			return err
		}
		if was == ledger.Running || was == ledger.Paused || was == ledger.Deleting {
			b.flushBeforeEnd(ctx)
		}
	}
	if err := b.killVMM(ctx); err != nil {
		return err
	}
	b.unreserve()
	// Connections into the slot end with the VMM; a namespace that is still
	// held open cannot be used again.
	if err := b.line.AwaitUnused(ctx); err != nil {
		return err
	}
	if err := b.host.cgroups.Remove(ctx, b.id); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	if err := b.detachVolumes(); err != nil {
		return err
	}
	if err := b.saveDisk(ctx); err != nil {
		return err
	}
	if err := b.host.paths.Remove(b.id); err != nil {
		return err
	}
	if err := b.finishRemoval(ctx, how, began); err != nil {
		return err
	}
	b.host.notify()
	return nil
}

// finishRemoval removes the record and the box, and gives the slot back.
func (b *box) finishRemoval(ctx context.Context, how removal, began time.Time) error {
	var err error
	if how == removalBury {
		err = b.host.ledger.Bury(b.id, b.generation, b.host.now())
	} else {
		err = b.host.ledger.Forget(b.id)
	}
	if err != nil {
		return err
	}
	if how == removalBury {
		b.emitDeleted(ctx, began)
	}
	slot := b.slotNumber()
	b.host.mu.Lock()
	delete(b.host.boxes, b.id) // its id, and so the stream of its events, may be another box's now
	b.host.mu.Unlock()
	if slot != ledger.NoSlot {
		b.host.slots.Return(slot)
	}
	close(b.gone)
	return nil
}

// emitDeleted emits a box's last event, and ends the stream of its events.
func (b *box) emitDeleted(ctx context.Context, began time.Time) {
	now, rec := b.host.now(), b.record()
	b.host.log.InfoContext(ctx, "sandbox is deleted", "event", "sandbox.deleted", "sandbox_id", b.id, "generation", b.generation,
		"took_ms", now.Sub(began).Milliseconds())
	b.host.events.Emit(b.id, hostapi.EventDeleted, "sandbox is deleted", map[string]any{"lifetime_seconds": int64(now.Sub(rec.CreatedAt).Seconds())})
	b.host.events.Close(b.id)
}

// lastVMM is the box's VMM, nil if it has none, and whether it was killed before and did
// not end in time.
func (b *box) lastVMM(ctx context.Context) (p VMM, killed bool) {
	b.mu.Lock()
	p, killed = b.vmm, b.unreleased
	if p == nil {
		p = b.formerVM
	}
	b.mu.Unlock()
	if p == nil {
		p = b.formerVMM(ctx)
	}
	return p, killed
}

// killVMM ends the box's VMM, if it has one, and waits for its end. A VMM that
// does not end in time is kept in formerVM: no other is started beside it, and
// the next attempt need not find and watch it again.
func (b *box) killVMM(ctx context.Context) error {
	p, _ := b.lastVMM(ctx)
	if p == nil {
		return nil
	}
	err := p.Kill(ctx)
	if err != nil {
		b.mu.Lock()
		b.unreleased, b.formerVM = true, p
		b.mu.Unlock()
	}
	return err
}

// formerVMM finds, by the runtime directory, a VMM that an earlier daemon
// started. It is nil where there is none, or where its identity cannot be read;
// then its cgroup tells what to kill.
func (b *box) formerVMM(ctx context.Context) VMM {
	p, err := b.host.engine.Adopt(ctx, b.host.paths.VMM(b.id))
	if err == nil {
		return p
	}
	if !errors.Is(err, vmm.ErrGone) {
		b.host.log.WarnContext(ctx, "VMM has no readable identity, its cgroup is killed instead", "sandbox_id", b.id, "error", err)
	}
	return nil
}

// scheduleRetry leaves the box to the sweep.
func (b *box) scheduleRetry(ctx context.Context, err error) {
	b.host.log.ErrorContext(ctx, "sandbox could not be taken apart, it is tried again", "sandbox_id", b.id, "error", err)
	b.mu.Lock()
	b.retry = true
	b.mu.Unlock()
}

// sweep retries removals that failed, and forgets old tombstones, until the
// host closes. It waits for no box.
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
			h.work.Go(h.removeKeptDisks)
		}
	}
}

func (h *Host) forgetTombstones() {
	if _, err := h.ledger.Prune(h.now().Add(-tombstoneAge)); err != nil {
		h.log.Warn("old tombstones stay in the ledger", "error", err)
	}
}

// retryAll starts the retries, each in the background: a slow box, or a slow
// disk, delays no other.
func (h *Host) retryAll() {
	h.mu.Lock()
	var again []*box
	for _, b := range h.boxes {
		b.mu.Lock()
		if b.retry || (b.unreleased || b.answersDue > 0) && h.phase != starting { // until then its recovery is at it
			again = append(again, b)
		}
		b.mu.Unlock()
	}
	h.mu.Unlock()
	for _, b := range again {
		select {
		case b.op <- struct{}{}:
		default:
			continue // it is being changed; the next sweep looks again
		}
		if !h.work.Go(func() { defer b.release(); b.tryAgain() }) {
			b.release()
		}
	}
}

// tryAgain repeats what failed. The caller holds the operation lock.
func (b *box) tryAgain() {
	select {
	case <-b.gone:
		return // its id may be another box's, and so its cgroup and its record
	default:
	}
	b.mu.Lock()
	apart, p, failing := b.retry, b.formerVM, b.failing != ""
	b.mu.Unlock()
	if !apart {
		if err := b.retryRelease(b.host.work.Life()); err != nil {
			b.host.log.Error("what a sandbox's last VMM used could not be ended, it is tried again", "sandbox_id", b.id, "error", err)
		}
		if failing && p != nil && ended(p) {
			if err := b.failed(p); err != nil {
				b.host.log.Error("a failed sandbox is not in the ledger", "sandbox_id", b.id, "error", err)
			}
		}
		if err := b.resolveState(); err != nil {
			b.host.log.Error("what a sandbox's VMM was late to do is not in its record", "sandbox_id", b.id, "error", err)
		}
	} else if err := b.teardown(b.host.work.Life()); err != nil {
		b.host.log.Error("sandbox could not be taken apart, it is tried again", "sandbox_id", b.id, "error", err)
	}
}
