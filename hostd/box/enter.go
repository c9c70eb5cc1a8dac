package box

import (
	"context"
	"fmt"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Enter begins a use of a box's slot, where the box runs.
func (h *Host) Enter(ctx context.Context, id string, kind guestio.Kind) (*guestio.Link, error) {
	b, err := h.lookup(id)
	if err != nil {
		return nil, err
	}
	return b.enter(ctx, kind)
}

func (b *box) enter(ctx context.Context, kind guestio.Kind) (*guestio.Link, error) {
	// Under the lock, so that whoever removes the box finds the use.
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.runs(); err != nil {
		return nil, err
	}
	return b.line.Open(ctx, kind, b.rec.Slot, b.vmm.Done(), b.ended)
}

// Console finds the serial log of a box, whatever its state.
func (h *Host) Console(id string) (guestio.Console, error) {
	b, err := h.lookup(id)
	if err != nil {
		return guestio.Console{}, err
	}
	if _, shown := b.view(); !shown {
		return guestio.Console{}, hosterr.ErrNotFound
	}
	return guestio.Console{Path: h.paths.Serial(id), Line: b.line, Gone: b.gone}, nil
}

// ended is the error of what was under way in a box whose VMM has ended.
func (b *box) ended() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	reason := "its VMM died"
	switch {
	case b.removal != removalNone:
		reason = "it was deleted"
	case b.rec.State != ledger.Running:
		reason = "it is " + string(b.rec.State)
	}
	return fmt.Errorf("%w: %s", hosterr.ErrCutOff, reason)
}

// runs returns why the box's guest cannot be reached, nil if it can. The caller
// holds b.mu.
func (b *box) runs() error {
	switch {
	case b.removal == removalForget:
		return hosterr.ErrNotFound
	case b.removal != removalNone:
		return fmt.Errorf("%w: it is being deleted", hosterr.ErrNotRunning)
	case b.rec.State != ledger.Running:
		return fmt.Errorf("%w: it is %s", hosterr.ErrNotRunning, b.rec.State)
	case b.vmm == nil:
		return fmt.Errorf("%w: it has no VMM", hosterr.ErrNotRunning)
	}
	return nil
}

// guest is the box's guest, as its VMM runs it now.
func (b *box) guest() guestio.Guest {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := guestio.Guest{Record: b.rec, Line: b.line}
	if b.vmm != nil {
		g.VMM = b.vmm.Done()
	}
	return g
}
