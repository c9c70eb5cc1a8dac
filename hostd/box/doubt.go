package box

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// answersAwaited is how many answers of a VMM are needed to know its state:
// after the first one it may still carry out an earlier request.
const answersAwaited = 2

// markUncertain notes that it is not known whether a VM runs: a VMM that did
// not answer in time may still carry out the request. The sweep finds out.
func (b *box) markUncertain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answersDue = answersAwaited
}

// stillLimit is for how long it is tried to get a guest to run on that may stand still
// after a pause that failed, or that nobody could end. Until then it waits for a disk that
// is slow, or hangs.
var stillLimit = timescale.Limit(10 * time.Minute)

// markStill is markUncertain of a guest that may stand still although its box runs: a
// pause of it failed, whatever its VM is said to do then (see saver.pause), or its VMM did
// not resume it in time.
func (b *box) markStill() {
	b.markUncertain()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stillSince.IsZero() {
		b.stillSince = b.host.now()
	}
}

// asksAtOnce is how many guests are asked at once whether they run.
const asksAtOnce = 16

// askWhetherItRuns asks, in the background, the guest of an adopted VM that is said to
// run. The last daemon may have ended after a pause that was refused, or before it knew:
// a guest that answers nothing is taken for one that stands still. If it is only busy, it
// is paused for a moment.
func (b *box) askWhetherItRuns() {
	life := b.host.work.Life()
	b.host.work.Go(func() {
		select {
		case b.host.asking <- struct{}{}:
			defer func() { <-b.host.asking }()
		case <-life.Done():
			return
		}
		l, err := b.enter(life, guestio.Own)
		if err != nil {
			return // it does not run any more
		}
		defer l.Leave()
		if !b.host.guests.Answers(l) && life.Err() == nil {
			b.host.log.Warn("an adopted guest does not answer, it may stand still", "sandbox_id", b.id)
			b.markStill()
		}
	})
}

// clearDoubt notes that it is known whether a VM runs.
func (b *box) clearDoubt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answersDue, b.stillSince = 0, time.Time{}
}

// resolveState asks a VMM whether its VM runs. Once that is known, it makes
// record and VM agree, as after a crash. The caller holds the operation lock.
func (b *box) resolveState() error {
	b.mu.Lock()
	p := b.vmm
	if p == nil || ended(p) {
		b.answersDue, b.stillSince = 0, time.Time{} // its watch tells the rest
	}
	due, since := b.answersDue, b.stillSince
	b.mu.Unlock()
	if due == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.host.work.Life(), stateTimeout)
	defer cancel()
	state, err := p.State(ctx)
	if err != nil {
		if b.stillTooLong(since) {
			return b.failStill(p, err)
		}
		return nil // it is asked again
	}
	b.mu.Lock()
	b.answersDue--
	due = b.answersDue
	b.mu.Unlock()
	switch {
	case due > 0:
		return nil
	case state != vmm.StateRunning && state != vmm.StatePaused:
		return b.fail(b.host.work.Life(), p, fmt.Sprintf("its guest has ended (VM state %s)", state))
	}
	if state == vmm.StateRunning && !since.IsZero() {
		if err := b.pauseAgain(p); err != nil {
			b.markUncertain() // it may be carried out later
			if b.stillTooLong(since) {
				return b.failStill(p, err)
			}
			return nil
		}
		state = vmm.StatePaused
	}
	if err := b.settleState(b.host.work.Life(), p, state); err != nil {
		b.markUncertain() // it is not in the ledger
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.answersDue == 0 { // else there is a new doubt, about the same guest
		b.stillSince = time.Time{}
	}
	return nil
}

// stillTooLong reports whether a guest may have stood still for too long.
func (b *box) stillTooLong(since time.Time) bool {
	return !since.IsZero() && b.host.now().Sub(since) >= stillLimit
}

// failStill fails a box whose guest does not run on. What its VMM says about that is the
// operator's to read; a tenant reads the reason.
func (b *box) failStill(p VMM, why error) error {
	b.host.log.Error("a guest that stands still is ended", "sandbox_id", b.id, "error", why)
	return b.fail(b.host.work.Life(), p, "it did not run on after a pause")
}

// pauseAgain pauses a VM that is said to run and may stand still, so that it can be
// resumed. A delete cuts it off.
func (b *box) pauseAgain(p VMM) error {
	ctx, cancel := context.WithCancelCause(b.host.work.Life())
	defer cancel(nil)
	b.endedBy(cancel)
	return pauseOnce(ctx, p)
}
