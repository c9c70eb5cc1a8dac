package box

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cloud/berth/hostd/ledger"
)

// errFenced is why the create of an exclusive box is cut off.
var errFenced = errors.New("the host's lease is over")

// Fence ends the VMM of every exclusive box, whatever transition is under way,
// and waits for their ends. A create is cut off. A hibernated box has no VMM
// and stays. A box that a transition starts meanwhile is missed: the caller
// calls again for as long as the reason holds.
func (h *Host) Fence(ctx context.Context, reason string) {
	var exclusive []*box
	for _, b := range h.all() {
		if b.record().Exclusive {
			exclusive = append(exclusive, b)
		}
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	for _, b := range exclusive {
		if !b.createEnded() {
			b.cutOff(errFenced)
		}
		b.mu.Lock()
		p := b.vmm
		if p == nil || b.rec.State == ledger.Failed || ended(p) {
			p = nil
		} else {
			b.fenced = reason
		}
		b.mu.Unlock()
		if p == nil {
			continue
		}
		h.log.Warn("exclusive sandbox is ended", "event", "box.fenced", "sandbox_id", b.id, "generation", b.generation, "reason", reason)
		ends.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
			defer cancel()
			if err := p.Kill(ctx); err != nil {
				h.log.Error("exclusive sandbox could not be ended, it is tried again", "sandbox_id", b.id, "error", err)
			}
		})
	}
}
