package box

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// stateTimeout bounds the question to a VMM that may be adopted.
var stateTimeout = timescale.Limit(5 * time.Second)

// lifecycleTimeout bounds one call to a VMM, but for those that have a limit of their own.
var lifecycleTimeout = timescale.Limit(30 * time.Second)

// Pause stops a running box's CPUs; its memory stays.
func (h *Host) Pause(ctx context.Context, id string) (hostapi.Box, error) {
	return h.transition(ctx, id, "pause", func(ctx context.Context, b *box) error {
		rec, p := b.running()
		if p == nil {
			return b.illegal("pause")
		}
		if err := (&saver{box: b, process: p}).pauseFlushed(ctx); err != nil {
			h.guests.SetClockSoon(b.guest())
			return fmt.Errorf("pause sandbox: %w", err)
		}
		if err := b.enterState(rec.State, ledger.Paused); err != nil {
			return err
		}
		b.emit(ctx, hostapi.EventPaused, "sandbox is paused", nil)
		return nil
	})
}

// Resume lets a paused box run on, and sets its clock. One that a warm fork
// stopped goes on from its saved memory, in a slot of its own.
func (h *Host) Resume(ctx context.Context, id string) (hostapi.Box, error) {
	return h.transition(ctx, id, "resume", func(ctx context.Context, b *box) error {
		b.mu.Lock()
		rec, p := b.rec, b.vmm
		b.mu.Unlock()
		switch {
		case rec.State != ledger.Paused:
			return b.illegal("resume")
		case rec.Stopped:
			err := b.resumeFromState(ctx)
			if err == nil {
				b.emit(ctx, hostapi.EventResumed, "sandbox runs again", nil)
			}
			return err
		case p == nil:
			return b.illegal("resume")
		}
		rctx, cancel := context.WithTimeout(ctx, lifecycleTimeout)
		defer cancel()
		if err := p.Resume(rctx); err != nil {
			b.markUncertain()
			return fmt.Errorf("resume sandbox: %w", err)
		}
		h.guests.SetClock(ctx, b.guest())
		if err := b.enterState(rec.State, ledger.Running); err != nil {
			return err
		}
		b.emit(ctx, hostapi.EventResumed, "sandbox runs again", nil)
		return nil
	})
}

// Update changes what may change while a box lives.
func (h *Host) Update(ctx context.Context, id string, u hostapi.BoxUpdate) (hostapi.Box, error) {
	return h.transition(ctx, id, "update", func(ctx context.Context, b *box) error {
		if u.Leaving != nil {
			if err := b.setLeaving(ctx, *u.Leaving); err != nil {
				return err
			}
		}
		return b.commit(func(r *ledger.Record) bool {
			if u.Persistent == nil || r.Persistent == *u.Persistent {
				return false
			}
			r.Persistent = *u.Persistent
			return true
		})
	})
}

// transition changes a box under its operation lock. It goes on when the caller's
// context ends: half a transition is worse than a late one.
func (h *Host) transition(ctx context.Context, id, name string, act func(context.Context, *box) error) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	if err := b.acquire(ctx); err != nil {
		return hostapi.Box{}, err
	}
	defer b.release()
	switch b.removing() {
	case removalForget:
		return hostapi.Box{}, hosterr.ErrNotFound
	case removalBury:
		return hostapi.Box{}, b.illegal(name)
	}
	began := h.now()
	ctx, span := telemetry.Start(ctx, "box.", name)
	span.SetSandbox(id)
	err = act(context.WithoutCancel(ctx), b)
	span.End(err)
	h.metrics.transition(name, h.now().Sub(began), err)
	if err != nil {
		return hostapi.Box{}, hosterr.AsNoDisk(err)
	}
	v, _ := b.view()
	return v, nil
}

// running returns the VMM of a box that runs, and nil of any other.
func (b *box) running() (ledger.Record, VMM) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rec.State != ledger.Running {
		return b.rec, nil
	}
	return b.rec, b.vmm
}

// enterState notes that a box has gone from one state to another. It refuses
// where the box died meanwhile. If the change cannot be written to disk, memory has
// the true state; after a crash, the VM has.
func (b *box) enterState(from, to ledger.State) error {
	entered := false
	change := func(r *ledger.Record) bool {
		if entered = r.State == from; entered {
			r.Enter(to)
		}
		return entered
	}
	err := b.commit(change)
	if err != nil {
		b.amend(func(r *ledger.Record) { change(r) })
	}
	b.host.notify()
	if err == nil && !entered {
		return &StateError{Status: b.status()}
	}
	return err
}

// emit logs a transition and emits its event.
func (b *box) emit(ctx context.Context, t hostapi.EventType, message string, meta map[string]any) {
	attrs := []any{"event", string(t), "sandbox_id", b.id, "what", message}
	for k, v := range meta {
		attrs = append(attrs, k, v)
	}
	b.host.log.InfoContext(ctx, "sandbox moved", attrs...)
	b.host.events.Emit(b.id, t, message, meta)
}
