package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Hibernate saves a running box's memory to disk and ends its VMM. The box keeps
// its slot and gives its memory back. Until the saved state is on disk and the
// ledger says so, a failure or a crash leaves the box running.
func (h *Host) Hibernate(ctx context.Context, id string) (hostapi.Box, error) {
	return h.transition(ctx, id, "hibernate", func(ctx context.Context, b *box) error {
		rec, p := b.running()
		if p == nil {
			return b.illegal("hibernate")
		}
		return b.hibernateAndTell(ctx, rec, p, false)
	})
}

// hibernateAndTell hibernates a box. settled: it is a database with all its WAL archived.
func (b *box) hibernateAndTell(ctx context.Context, rec ledger.Record, p VMM, settled bool) error {
	began := b.host.now()
	if err := b.hibernate(ctx, p, func(r *ledger.Record) { r.Enter(ledger.Hibernated); r.Settled = settled }); err != nil {
		return fmt.Errorf("hibernate sandbox: %w", err)
	}
	b.emit(ctx, hostapi.EventHibernated, "memory is saved and the VMM has ended",
		map[string]any{"snap_ms": b.host.now().Sub(began).Milliseconds(), "mem_mib": rec.MemoryMB})
	return nil
}

// hibernate saves a running box's memory and ends its VMM. enter changes the
// record once the saved state is complete.
func (b *box) hibernate(ctx context.Context, p VMM, enter func(*ledger.Record)) error {
	slot, err := b.claim(ctx)
	if err != nil {
		return err
	}
	vm := &saver{box: b, process: p}
	if _, err := vm.save(ctx, slot); err != nil {
		return err
	}
	err = b.commit(func(r *ledger.Record) bool {
		if r.State != ledger.Running {
			return false // its VMM died meanwhile
		}
		enter(r)
		r.SharedRAM = false
		r.SavedBy, r.VMM = r.VMM.Engine, ledger.VMM{}
		return true
	})
	if err == nil && b.record().State == ledger.Failed {
		err = errors.New("its VMM died")
	}
	if err != nil {
		return errors.Join(err, vm.resumeAfterSave(ctx), os.RemoveAll(b.host.paths.State(b.id)))
	}
	b.mu.Lock()
	b.vmm = nil
	b.mu.Unlock()
	b.host.notify()
	b.releaseResources(ctx, p)
	return nil
}

// releaseResources ends what a hibernated or failed box does not need: VMM,
// cgroup, memory. p is nil where there is no VMM, or where only the cgroup
// tells what to kill. What cannot be ended now is retried by the sweep, and
// before the box's next transition; until then its memory stays reserved.
func (b *box) releaseResources(ctx context.Context, p VMM) {
	b.mu.Lock()
	b.unreleased, b.formerVM = true, p
	b.mu.Unlock()
	if err := b.retryRelease(ctx); err != nil {
		b.host.log.ErrorContext(ctx, "what a sandbox's last VMM used could not be ended, it is tried again", "sandbox_id", b.id, "error", err)
	}
}

func (b *box) retryRelease(ctx context.Context) error {
	b.mu.Lock()
	unreleased, p := b.unreleased, b.formerVM
	b.mu.Unlock()
	if !unreleased {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	if p != nil {
		if err := p.Kill(ctx); err != nil {
			return err
		}
		b.unreserve()
	}
	if err := b.host.cgroups.Remove(ctx, b.id); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	b.unreserve()
	if err := os.RemoveAll(b.host.paths.RAM(b.id)); err != nil {
		return err
	}
	b.mu.Lock()
	b.unreleased, b.formerVM = false, nil
	b.mu.Unlock()
	return nil
}

// claim returns the slot of a box, and makes sure that it is complete.
func (b *box) claim(ctx context.Context) (Slot, error) {
	b.mu.Lock()
	known, number := b.net, b.rec.Slot
	b.mu.Unlock()
	if known != nil && known.Number == number {
		return *known, nil
	}
	slot, err := b.host.slots.Claim(ctx, number)
	if err != nil {
		return Slot{}, fmt.Errorf("make network slot %d: %w", number, err)
	}
	b.mu.Lock()
	b.net = &slot
	b.mu.Unlock()
	return slot, nil
}
