package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Restart boots a box from its own disk that has failed, or whose saved memory a wake
// has found lost; one that runs is left as it is. Whoever asks while it boots waits for the same boot. It goes on when ctx ends.
func (h *Host) Restart(ctx context.Context, id string) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	if _, p := b.running(); p == nil || b.removing() != removalNone {
		if err := b.join(ctx, &b.restarting, b.restart); err != nil {
			return hostapi.Box{}, err
		}
	}
	v, shown := b.view()
	if !shown {
		return hostapi.Box{}, hosterr.ErrNotFound
	}
	return v, nil
}

func (b *box) restart(ctx context.Context) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	}
	defer b.release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b.endedBy(cancel) // before it is known whether the box is being removed
	switch b.removing() {
	case removalForget:
		return hosterr.ErrNotFound
	case removalBury:
		return b.illegal("restart")
	}
	switch state := b.record().State; {
	case b.record().Leaving:
		return errLeaving
	case state == ledger.Running:
		return nil
	case state == ledger.Failed, state == ledger.Hibernated && b.memoryLost:
	default:
		return b.illegal("restart")
	}
	began := b.host.now()
	err := b.bootFailed(ctx)
	b.host.metrics.transition("restart", b.host.now().Sub(began), err)
	if err != nil {
		return hosterr.AsNoDisk(fmt.Errorf("restart sandbox: %w", err))
	}
	b.refusals = 0
	return nil
}

// bootFailed boots a box that has failed, or has lost its memory. What is refused before its record says
// that it boots leaves it as it was; a failure after that leaves it failed, with a
// new reason. If the daemon ends meanwhile, the next one boots it.
func (b *box) bootFailed(ctx context.Context) error {
	if err := b.endLast(ctx); err != nil {
		return err
	}
	if _, err := b.host.templates.Bootable(ctx, b.record().BuildID); err != nil {
		return err
	}
	if err := b.reserve(); err != nil {
		return err
	}
	err := b.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Booting)
		r.VMM, r.Stopped, r.WarmChild, r.ResetTCP = ledger.VMM{}, false, "", false
		r.ExitCode, r.Signal = nil, ""
		return true
	})
	if err != nil {
		b.unreserve()
		return err
	}
	b.host.notify()
	if err = b.rebootOnce(ctx); err == nil {
		return nil
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, background.ErrClosing):
		return fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	case cause != nil:
		return err // the delete takes it apart
	}
	b.host.log.WarnContext(ctx, "a sandbox could not be booted again", "sandbox_id", b.id, "error", err)
	return errors.Join(err, b.failBoot(ctx, "it could not be booted again"))
}

// endLast makes sure that nothing runs for a box that has failed.
func (b *box) endLast(ctx context.Context) error {
	b.mu.Lock()
	if p := b.vmm; p != nil { // it has ended
		b.vmm, b.unreleased, b.formerVM = nil, true, p
	}
	b.mu.Unlock()
	if err := b.retryRelease(ctx); err != nil {
		return fmt.Errorf("its last VMM could not be ended: %w", err)
	}
	return nil
}

// failBoot marks a box failed whose boot has failed. Its memory stays reserved
// while what the boot left behind cannot be ended.
func (b *box) failBoot(ctx context.Context, reason string) error {
	b.mu.Lock()
	unreleased, p := b.unreleased, b.formerVM
	b.mu.Unlock()
	if !unreleased {
		b.unreserve()
	}
	return b.fail(ctx, p, reason)
}
