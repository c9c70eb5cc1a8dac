package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	loopSend  = "webhook deliveries"
	loopPrune = "old webhook deliveries"

	// atOnce limits the attempts under way. Each endpoint has at most one.
	atOnce = 256
	// turnTime limits the turn of one endpoint, because others may wait for a place.
	turnTime = 10 * time.Second
	// closePause is the pause between two tries to record the result of an attempt.
	closePause = 100 * time.Millisecond

	maxAttempts = 20  // attempts kept per delivery
	maxEnded    = 100 // ended deliveries kept per endpoint
	maxWaiting  = 100 // waiting deliveries per endpoint; prune gives up the excess
	endedKept   = 7 * 24 * time.Hour
)

// keeper sends waiting deliveries during one term.
type keeper struct {
	*loops.Term
	sealer core.Sealer
	delays []time.Duration
	sender *sender

	mu     sync.Mutex
	served map[string]time.Time // last turn of each endpoint that has a due delivery
}

// Loops returns the loops that send deliveries and remove old ones.
func (s *Webhooks) Loops(t *loops.Term) []loops.Loop {
	k := s.keeper(t)
	return []loops.Loop{
		{Name: loopSend, Pass: k.send, Wake: func() <-chan struct{} { return k.Store.View().Changed(record.WebhookDeliveries.Name) }},
		{Name: loopPrune, Pass: k.prune, Every: loops.ExpiryEvery},
	}
}

func (s *Webhooks) keeper(t *loops.Term) *keeper {
	return &keeper{Term: t, sealer: s.core.Sealer, delays: s.cfg.Delays, sender: newSender(s.cfg), served: map[string]time.Time{}}
}

// send starts a turn for every endpoint with a due delivery, up to atOnce turns. The
// endpoints that have waited longest for a turn come first.
func (k *keeper) send(ctx context.Context) {
	for _, id := range k.due() {
		k.Begin(loops.Job{What: loopSend, ID: id}, atOnce, func() { k.turn(ctx, id) })
	}
}

// due returns the ids of the endpoints with due deliveries. The endpoints that have waited
// longest for a turn come first.
func (k *keeper) due() []string {
	view, now := k.Store.View(), k.Clock()
	held := loops.Restored(view)
	has := map[string]bool{}
	for _, d := range raftstore.UpTo(view, record.WebhookDeliveries, "due", record.WebhookDue(now)) {
		if isDue(d, now, held) {
			has[d.EndpointID] = true
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	last := make(map[string]time.Time, len(has))
	ids := make([]string, 0, len(has))
	for id := range has {
		last[id] = k.served[id]
		ids = append(ids, id)
	}
	k.served = last
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(last[a].Compare(last[b]), strings.Compare(a, b)) })
	return ids
}

// isDue reports whether a delivery needs work now. An open attempt was begun by a former
// leader: the request may have arrived or not. Deliveries up to the index held waited in
// a restored backup and may have arrived since the backup; they are not due.
func isDue(d *record.WebhookDelivery, now time.Time, held uint64) bool {
	return d.Status.Waiting() && d.ModifyIndex > held && (d.Open() != nil || !d.NextAttemptAt.After(now))
}

// turn sends the due deliveries of one endpoint, one after the other, for up to turnTime.
func (k *keeper) turn(ctx context.Context, endpointID string) {
	begun := k.Clock()
	k.mu.Lock()
	k.served[endpointID] = begun
	k.mu.Unlock()
	for k.Clock().Sub(begun) < turnTime {
		d := k.next(endpointID)
		if d == nil || !k.attempt(ctx, d.ID) {
			return
		}
	}
}

// next returns the delivery of an endpoint that has been due longest.
func (k *keeper) next(endpointID string) *record.WebhookDelivery {
	var first *record.WebhookDelivery
	view, now := k.Store.View(), k.Clock()
	held := loops.Restored(view)
	for _, d := range raftstore.Find(view, record.WebhookDeliveries, "endpoint", endpointID) {
		if isDue(d, now, held) && (first == nil || cmp.Or(d.NextAttemptAt.Compare(first.NextAttemptAt), cmp.Compare(d.CreateIndex, first.CreateIndex)) < 0) {
			first = d
		}
	}
	return first
}

// attempt makes one attempt and reports whether its result was recorded.
func (k *keeper) attempt(ctx context.Context, id string) bool {
	d, e := k.open(ctx, id)
	if d == nil {
		return false
	}
	at := d.Open().At
	secret, err := openSecret(k.sealer, e)
	out := result{err: "internal error", took: 1}
	if err != nil {
		k.Logger.ErrorContext(ctx, "webhook cannot be signed", "endpoint_id", e.ID, "error", err)
	} else {
		out = k.sender.send(ctx, message{url: e.URL, secret: secret, id: d.ID, kind: d.Type, body: d.Body}, k.Clock())
	}
	return k.close(ctx, id, at, out)
}

// Interrupted is the error of an attempt if the leader that began it did not see its end.
const Interrupted = "interrupted: whether it arrived is not known"

// open records that an attempt begins. It returns a nil delivery if no attempt is to be
// made. An interrupted attempt is repeated at once. Two interrupted attempts in a row
// count as one failed attempt, because the receiver may be what ends leaders.
func (k *keeper) open(ctx context.Context, id string) (d *record.WebhookDelivery, e *record.WebhookEndpoint) {
	ok := k.Update(ctx, loopSend, func(tx *raftstore.Tx) error {
		d, e = nil, nil
		row, there := raftstore.Get(tx, record.WebhookDeliveries, id)
		if !there || !row.Status.Waiting() {
			return nil
		}
		to, there := raftstore.Get(tx, record.WebhookEndpoints, row.EndpointID)
		if !there {
			raftstore.Delete(tx, record.WebhookDeliveries, id)
			return nil
		}
		d, e = row.Clone(), to
		if before := d.Open(); before != nil {
			if n := len(d.Attempts); n > 1 && d.Attempts[n-2].Error == Interrupted {
				k.settle(d, result{err: Interrupted})
				raftstore.Put(tx, record.WebhookDeliveries, d)
				d = nil
				return nil
			}
			before.Ended, before.Error = true, Interrupted
		}
		d.Attempts = append(d.Attempts, record.WebhookAttempt{At: k.Clock().UTC()})
		d.Attempts = d.Attempts[max(0, len(d.Attempts)-maxAttempts):]
		raftstore.Put(tx, record.WebhookDeliveries, d)
		return nil
	})
	if !ok {
		return nil, nil
	}
	return d, e
}

// close records the result of an attempt. It retries as long as this replica leads. If the
// result is not recorded, the next leader treats the attempt as interrupted.
func (k *keeper) close(ctx context.Context, id string, at time.Time, out result) bool {
	for ctx.Err() == nil {
		err := k.Store.Update(ctx, func(tx *raftstore.Tx) error {
			row, ok := raftstore.Get(tx, record.WebhookDeliveries, id)
			if !ok {
				return nil
			}
			d := row.Clone()
			if open := d.Open(); open != nil && open.At.Equal(at) {
				k.settle(d, out)
				raftstore.Put(tx, record.WebhookDeliveries, d)
			}
			return nil
		})
		switch {
		case err == nil:
			k.report(ctx, id, out)
			return true
		case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrClosed):
			return false
		}
		k.Logger.WarnContext(ctx, "end of a webhook's attempt could not be written", "delivery_id", id, "error", err)
		loops.Pause(ctx, closePause, nil)
	}
	return false
}

// settle ends the open attempt of a delivery and schedules the next one.
func (k *keeper) settle(d *record.WebhookDelivery, out result) {
	a := d.Open()
	a.Ended, a.StatusCode, a.Error, a.Duration = true, out.status, out.err, out.took
	d.Tries++
	d.NextAttemptAt = time.Time{}
	switch {
	case out.err == "":
		d.Status = record.WebhookDelivered
	case d.Tries > len(k.delays):
		d.Status = record.WebhookDead
	default:
		d.Status, d.NextAttemptAt = record.WebhookFailed, k.Clock().UTC().Add(k.delays[d.Tries-1])
	}
}

func (k *keeper) report(ctx context.Context, id string, out result) {
	if out.err == "" {
		k.Logger.DebugContext(ctx, "webhook delivered", "delivery_id", id, "status", out.status)
		return
	}
	k.Logger.InfoContext(ctx, "webhook not delivered", "delivery_id", id, "status", out.status, "reason", out.err)
}

// prune removes the deliveries that are no longer kept. If too many deliveries of an
// endpoint wait, it gives up the excess: tests first, then the oldest.
func (k *keeper) prune(ctx context.Context) {
	view := k.Store.View()
	of := map[string][]*record.WebhookDelivery{}
	for _, d := range raftstore.All(view, record.WebhookDeliveries) {
		of[d.EndpointID] = append(of[d.EndpointID], d)
	}
	var old []unkept
	for endpointID, rows := range of {
		_, there := raftstore.Get(view, record.WebhookEndpoints, endpointID)
		// Tests go last: an event is worth more.
		slices.SortFunc(rows, func(a, b *record.WebhookDelivery) int {
			return cmp.Or(cmp.Compare(isTest(a), isTest(b)), cmp.Compare(b.CreateIndex, a.CreateIndex))
		})
		ended, waiting := 0, 0
		for _, d := range rows {
			n := &ended
			if d.Status.Waiting() {
				n = &waiting
			}
			*n++
			if !there || k.tooMany(d, *n) {
				old = append(old, unkept{id: d.ID, index: d.ModifyIndex, giveUp: there && d.Status.Waiting()})
			}
		}
	}
	loops.InParts(ctx, k.Term, loopPrune, old, func(tx *raftstore.Tx, part []unkept) error {
		for _, u := range part {
			u.forget(tx)
		}
		return nil
	}, nil)
}

// isTest returns 1 for a test that a caller requested, and 0 for an event.
func isTest(d *record.WebhookDelivery) int {
	if d.Type == string(api.WebhookEndpointTest) {
		return 1
	}
	return 0
}

// Crowded is the error of a delivery that was given up to make room for others.
var Crowded = fmt.Sprintf("given up: more than %d deliveries waited for this endpoint", maxWaiting)

// tooMany reports whether a delivery, the nth of its kind (waiting or ended), exceeds the
// limit of its kind or has been over for too long.
func (k *keeper) tooMany(d *record.WebhookDelivery, n int) bool {
	if d.Status.Waiting() {
		return n > maxWaiting
	}
	return n > maxEnded || k.Clock().Sub(d.UpdatedAt) > endedKept
}

// unkept is a delivery to be removed or given up, as a pass of prune has seen it.
type unkept struct {
	id     string
	index  uint64
	giveUp bool
}

// forget removes a delivery or gives it up, unless it has changed since or has an open
// attempt.
func (u unkept) forget(tx *raftstore.Tx) {
	d, ok := raftstore.Get(tx, record.WebhookDeliveries, u.id)
	switch {
	case !ok || d.ModifyIndex != u.index || d.Open() != nil:
	case u.giveUp:
		d = d.Clone()
		d.Status, d.NextAttemptAt, d.Error = record.WebhookDead, time.Time{}, Crowded
		raftstore.Put(tx, record.WebhookDeliveries, d)
	default:
		raftstore.Delete(tx, record.WebhookDeliveries, u.id)
	}
}
