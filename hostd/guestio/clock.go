package guestio

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

const (
	// The pauses between the tries, of which each is twice the one before.
	firstClockPause = 100 * time.Millisecond
	lastClockPause  = 30 * time.Second
)

// lateClockTimeout bounds each further try: on a host that is very busy the
// first one may have ended for want of time alone.
var lateClockTimeout = timescale.Limit(15 * time.Second)

// clockTimeout bounds how long a resume waits for its guest's clock.
var clockTimeout = timescale.Limit(3 * time.Second)

// clockSetting sets the clock of a guest that was paused, and gives it new
// entropy. It is sent as one identity, however often: a guest that took it, but
// could not say so, recognizes it and sets only its clock.
//
// The guest runs in any case: if this fails, its clock is late. So it is
// retried in the background until it is done, the guest has been paused again,
// or the VMM has ended. A wake gives the guest an identity of its own; one that was cut
// off is made up for in the same way.
type clockSetting struct {
	guests *Guests
	guest  Guest
	id     *guestapi.Identity
	ctx    context.Context // ends with the daemon and with the next one
	end    context.CancelFunc
	warned bool
}

// Guest is a running guest.
type Guest struct {
	Record ledger.Record
	Line   *Line
	VMM    <-chan struct{} // closed when the VMM has ended
	// Woken says that it went on from saved memory, whose callers are gone. Otherwise it
	// only stood still.
	Woken bool
}

// SetClock sets the clock of a guest that was resumed, and waits for it a
// moment. The caller makes sure that the slot stays the box's.
func (g *Guests) SetClock(ctx context.Context, guest Guest) {
	s := g.beginClock(guest)
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	if err := g.Identify(ctx, guest.Record.Slot, s.id); err != nil {
		s.warnLate(err)
		s.runInBackground(firstClockPause)
		return
	}
	s.end()
}

// SetClockSoon sets the clock without waiting for it.
func (g *Guests) SetClockSoon(guest Guest) {
	if s := g.beginClock(guest); s != nil {
		s.runInBackground(0)
	}
}

// IdentifySoon gives a guest that runs the identity that it was given and did not
// confirm, as soon as it takes it.
func (g *Guests) IdentifySoon(guest Guest, id *guestapi.Identity) {
	if s := g.beginSetting(guest); s != nil {
		s.id = id
		s.runInBackground(firstClockPause)
	}
}

// beginSetting ends the setting that was begun before, and returns a new one that lacks
// its identity; nil if there is no VMM.
func (g *Guests) beginSetting(guest Guest) *clockSetting {
	s := &clockSetting{guests: g, guest: guest}
	s.ctx, s.end = context.WithCancel(g.work.Life())
	guest.Line.mu.Lock()
	guest.Line.clock()
	guest.Line.clock = s.end
	guest.Line.mu.Unlock()
	if guest.VMM == nil {
		s.end()
		return nil
	}
	return s
}

// beginClock is beginSetting with an identity that sets the clock.
func (g *Guests) beginClock(guest Guest) *clockSetting {
	s := g.beginSetting(guest)
	if s == nil {
		return nil
	}
	var err error
	if s.id, err = g.NewIdentity(&guest.Record); err != nil {
		g.cfg.Log.Error("clock of a resumed sandbox was not set", "sandbox_id", guest.Record.ID, "error", err)
		s.end()
		return nil
	}
	s.id.SSHHostKeys = nil // it is the same guest and keeps those it has
	s.id.Resumed = !guest.Woken
	s.id.ResetTCP = guest.Record.ResetTCP
	return s
}

// runInBackground tries in the background, for the first time after a pause.
func (s *clockSetting) runInBackground(pause time.Duration) {
	if !s.guests.work.Go(func() { s.run(pause) }) {
		s.end()
	}
}

func (s *clockSetting) run(pause time.Duration) {
	defer s.end()
	for s.pause(pause) {
		err := s.try()
		if err == nil || errors.Is(err, hosterr.ErrNotFound) {
			return
		}
		s.warnLate(err)
		pause = min(max(2*pause, firstClockPause), lastClockPause)
	}
}

// pause waits, and reports whether there is still something to be set.
func (s *clockSetting) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	case <-s.guest.VMM:
	}
	return s.ctx.Err() == nil && !s.ended()
}

// try uses the slot as any caller does, so that it stays the box's meanwhile. A
// paused box is left alone: its resume sets the clock.
func (s *clockSetting) try() error {
	l, err := s.guests.boxes.Enter(s.ctx, s.guest.Record.ID, Connection)
	if err != nil {
		return err
	}
	defer l.Leave()
	if l.line != s.guest.Line || l.vmm != s.guest.VMM {
		return hosterr.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(l.ctx, lateClockTimeout)
	defer cancel()
	return s.guests.Identify(ctx, l.slot, s.id)
}

// warnLate says once that a guest has not set its clock.
func (s *clockSetting) warnLate(err error) {
	if s.warned || !errors.Is(err, hosterr.ErrGuest) || s.ctx.Err() != nil || s.ended() {
		return
	}
	s.warned = true
	s.guests.cfg.Log.Warn("clock of a resumed sandbox is late, it is told again", "sandbox_id", s.guest.Record.ID, "error", err)
}

// ended reports whether the VMM of the guest has ended.
func (s *clockSetting) ended() bool {
	select {
	case <-s.guest.VMM:
		return true
	default:
		return false
	}
}
