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

// The child of a warm fork takes its parent's place, in the parent's slot: it has
// the same address and the same connections. So the parent's VMM ends before the
// child's starts, and one write of the ledger passes the slot on. The parent is
// then paused without a VMM, and its memory is saved in its own directory; its
// client resumes it, in another slot.

// takeOverParent stops the parent and takes its slot. It returns with the
// parent's operation lock held, until the create has ended.
func (c *creation) takeOverParent(ctx context.Context) (Slot, error) {
	parent := c.source.warm
	if err := parent.acquire(ctx); err != nil {
		return Slot{}, fmt.Errorf("wait for the parent: %w", err)
	}
	c.source.done = append(c.source.done, parent.release)
	rec := parent.record()
	if parent.removing() != removalNone {
		return Slot{}, fmt.Errorf("%w: the parent is being deleted", hosterr.ErrNotRunning)
	}
	if err := forkable(&rec, c.id); err != nil {
		return Slot{}, err
	}
	if rec.Stopped {
		// An earlier create of this child got this far. The slot went with it, and
		// with the slot the connections.
		c.source.resetTCP = true
		if err := c.reserve(); err != nil {
			return Slot{}, err
		}
		return c.takeSlot(ctx, func() {})
	}
	_, p := parent.running()
	if p == nil {
		return Slot{}, fmt.Errorf("%w: the parent has no VMM", hosterr.ErrNotRunning)
	}
	slot, err := parent.claim(ctx)
	if err != nil {
		return Slot{}, err
	}
	vm := &saver{box: parent, process: p}
	stood, err := vm.save(ctx, slot)
	if err != nil {
		return Slot{}, fmt.Errorf("save the parent: %w", err)
	}
	if err := c.host.handOver(parent, c.box, slot, stood.Milliseconds()); err != nil {
		return Slot{}, errors.Join(err, vm.resumeAfterSave(ctx), os.RemoveAll(c.host.paths.State(parent.id)))
	}
	c.source.tookOver = true
	c.host.notify()
	parent.emit(ctx, hostapi.EventPaused, "sandbox is stopped, a warm fork took its place", map[string]any{"warm_child": c.id})
	// The child's VMM starts after this one's end: they must not be on the network
	// at the same time.
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	if err := p.Kill(kctx); err != nil {
		return Slot{}, fmt.Errorf("end the parent's VMM: %w", err)
	}
	if err := c.host.cgroups.Remove(kctx, parent.id); err != nil {
		return Slot{}, fmt.Errorf("remove the parent's cgroup: %w", err)
	}
	parent.passReserve(c.box)
	if err := os.RemoveAll(c.host.paths.RAM(parent.id)); err != nil {
		return Slot{}, err
	}
	return slot, nil
}

// handOver gives the parent's slot to the child, in the ledger and in memory at
// once.
func (h *Host) handOver(parent, child *box, slot Slot, stoodMS int64) error {
	return h.commitBoth(parent, child, func(p, c *ledger.Record) error {
		if p.State != ledger.Running {
			return fmt.Errorf("%w: the parent's VMM died", hosterr.ErrNotRunning)
		}
		p.Enter(ledger.Paused)
		p.Stopped, p.ResetTCP, p.WarmChild = true, true, c.ID
		p.SharedRAM, p.SavedBy, p.VMM, p.Slot = false, p.VMM.Engine, ledger.VMM{}, ledger.NoSlot
		c.Slot, c.PauseMS = slot.Number, stoodMS
		return nil
	}, func() { parent.net, child.net, parent.vmm = nil, &slot, nil })
}

// giveBackParent returns the slot to the parent and resumes it, because its
// child failed.
func (c *creation) giveBackParent(ctx context.Context) {
	parent := c.source.warm
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	err := c.killVMM(ctx)
	if err == nil {
		err = parent.killVMM(ctx) // if that is what went wrong
	}
	if err == nil {
		err = errors.Join(c.host.cgroups.Remove(ctx, c.id), c.host.cgroups.Remove(ctx, parent.id))
	}
	if err == nil {
		err = c.host.commitBoth(parent, c.box, func(p, child *ledger.Record) error {
			p.Slot, p.WarmChild, p.ResetTCP = child.Slot, "", false
			child.Slot = ledger.NoSlot
			return nil
		}, func() { parent.net, c.net, c.vmm = c.net, nil, nil })
	}
	if err != nil {
		c.host.log.ErrorContext(ctx, "the parent of a warm fork that failed stays stopped", "sandbox_id", parent.id, "child_id", c.id, "error", err)
		return
	}
	c.passReserve(parent)
	if err := parent.resumeFromState(ctx); err != nil {
		c.host.log.ErrorContext(ctx, "the parent of a warm fork that failed stays stopped", "sandbox_id", parent.id, "child_id", c.id, "error", err)
		return
	}
	parent.emit(ctx, hostapi.EventResumed, "sandbox runs on, its warm fork failed", nil)
}

// commitBoth changes two records at once, on disk and then in memory. change and
// then are called with the locks of both held.
func (h *Host) commitBoth(one, two *box, change func(a, b *ledger.Record) error, then func()) error {
	// In a fixed order, against deadlock.
	first, second := one, two
	if first.id > second.id {
		first, second = second, first
	}
	first.writing.Lock()
	defer first.writing.Unlock()
	second.writing.Lock()
	defer second.writing.Unlock()
	locked := func(f func() error) error {
		first.mu.Lock()
		defer first.mu.Unlock()
		second.mu.Lock()
		defer second.mu.Unlock()
		return f()
	}
	var a, b ledger.Record
	err := locked(func() error {
		a, b = one.rec, two.rec
		if err := change(&a, &b); err != nil {
			return err
		}
		return errors.Join(one.rec.State.MayBecome(a.State), two.rec.State.MayBecome(b.State))
	})
	if err != nil {
		return err
	}
	if err := h.ledger.PutAll(a, b); err != nil {
		return err
	}
	return locked(func() error {
		one.rec, two.rec = a, b
		then()
		return nil
	})
}
