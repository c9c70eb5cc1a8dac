package guestio

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/timescale"
)

var (
	// freezeTimeout bounds how long a guest may take to have its tenant's
	// processes stand still before it is saved.
	freezeTimeout = timescale.Limit(5 * time.Second)
	// freezeWait is how long the guest waits for those that are in the midst of a
	// call to its kernel.
	freezeWait = timescale.Limit(time.Second)
	// freezeHold is for how long, by its own clock, a guest stays frozen without an
	// identity, in case the host died and let it run on. Guests accept ten minutes
	// at most.
	freezeHold = min(timescale.Limit(30*time.Second), 10*time.Minute)
)

// freezeTries is how often a guest is frozen whose answer is noticed so late that it may
// soon go on.
const freezeTries = 3

var errFrozenLate = errors.New("the answer came so late that it may go on before it is paused")

// Freeze stops the tenant's processes in a guest whose memory is saved next: in
// each copy they go on once that copy has entropy of its own. Every guest that
// goes on is given an identity, which thaws it.
//
// A guest that does not answer is saved as it is: it may be hibernated for that
// very reason. Its copies may draw the same random numbers until they have
// their identities.
//
// The guest's time runs from when it was asked. So if this process stood still before it
// noticed the answer, the guest is frozen anew: the caller pauses it in the half of the
// time that is left.
func (g *Guests) Freeze(ctx context.Context, id string, slot int) {
	var done guestapi.Frozen
	err := errFrozenLate
	for tries := 0; errors.Is(err, errFrozenLate) && tries < freezeTries; tries++ {
		began := g.cfg.Now()
		done, err = g.freeze(ctx, slot)
		if g.cfg.Now().Sub(began) > freezeHold/2 {
			err = errFrozenLate
		}
	}
	switch {
	case err != nil:
		g.cfg.Metrics.unfrozen.Inc()
		g.cfg.Log.WarnContext(ctx, "sandbox is saved while its processes run", "sandbox_id", id, "error", err)
	case len(done.Moving) > 0:
		g.cfg.Log.InfoContext(ctx, "sandbox is saved with processes in the midst of calls to its kernel", "sandbox_id", id, "processes", done.Moving[:min(len(done.Moving), 8)])
	}
}

func (g *Guests) freeze(ctx context.Context, slot int) (guestapi.Frozen, error) {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	return g.agent(slot).Freeze(ctx, guestapi.Freeze{
		NotAfter: g.cfg.Now().Add(freezeTimeout).UnixNano(), HoldMS: freezeHold.Milliseconds(), WaitMS: freezeWait.Milliseconds(),
	})
}
