package billing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const loopSync = "subscriptions"

// The bounds of what the loop asks the provider.
const (
	passEvery    = time.Minute
	passMost     = 50              // workspaces in a pass; the others wait
	strangersFor = 6               // as rarely is asked about a workspace that the provider does not know
	backOff      = 5 * time.Minute // after a failure
	spread       = 0.2             // of the time between two questions, at random
)

// follower asks the provider about every workspace now and then, so that a subscription
// that changes is seen also if nobody calls POST /v1/billing/sync. When it last asked is
// known to this leader only; the next one spreads its questions over the time between two.
type follower struct {
	*loops.Term
	billing *Billing
	due     map[string]time.Time // by workspace
	rest    time.Time            // until when nothing is asked, after a failure
}

// Loops reconcile subscriptions with the provider; none without one.
func (s *Billing) Loops(t *loops.Term) []loops.Loop {
	if s.provider == nil {
		return nil
	}
	f := &follower{Term: t, billing: s, due: map[string]time.Time{}}
	return []loops.Loop{{Name: loopSync, Every: passEvery, Pass: f.pass}}
}

func (f *follower) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, passEvery)
	defer cancel()
	for _, w := range fairly(f.next(f.Clock())) {
		if ctx.Err() != nil {
			return
		}
		if err := f.sync(ctx, w); err != nil {
			if errors.Is(err, errTooMuch) { // tenants' questions count too: it is nobody's fault, and over in a moment
				f.Logger.WarnContext(ctx, "the provider of payments was asked too much; the rest waits for the next pass", "error", err)
				return
			}
			if ctx.Err() == nil {
				f.rest = f.Clock().Add(backOff)
				f.due[w.ID] = f.Clock().Add(f.every(w)) // the others come first: it may be this one's fault
				f.Logger.WarnContext(ctx, "the provider of payments could not be asked about subscriptions; they stay as they were", "error", err)
			}
			return
		}
	}
}

// next returns the workspaces that are due, the longest first.
func (f *follower) next(now time.Time) (out []*record.Workspace) {
	if now.Before(f.rest) {
		return nil
	}
	all := raftstore.All(f.Store.View(), record.Workspaces)
	known := make(map[string]time.Time, len(all))
	for _, w := range all {
		at, ok := f.due[w.ID]
		if !ok {
			at = now.Add(time.Duration(f.billing.cfg.Random() * float64(f.every(w))))
		}
		// One that has been paused since was to be asked about much later. Each pass
		// asks about paused ones; their times are their order.
		if latest := now.Add(time.Duration((1 + spread/2) * float64(f.every(w)))); at.After(latest) {
			at = latest
		}
		if known[w.ID] = at; !now.Before(at) || !w.PausedAt.IsZero() {
			out = append(out, w)
		}
	}
	f.due = known
	slices.SortFunc(out, func(a, b *record.Workspace) int {
		return cmp.Or(known[a.ID].Compare(known[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// fairly returns those that a pass asks about. Workspaces whose free credit is spent may
// be any number, and stay paused for the rest of the month, so they take no more than half
// of a pass while others wait.
func fairly(due []*record.Workspace) (out []*record.Workspace) {
	var paused, others []*record.Workspace
	for _, w := range due {
		if w.PausedAt.IsZero() {
			others = append(others, w)
		} else {
			paused = append(paused, w)
		}
	}
	n := min(len(others), max(passMost/2, passMost-len(paused)))
	return append(others[:n], paused[:min(len(paused), passMost-n)]...)
}

// every is the time between two questions about a workspace. A paused one goes on as soon
// as it is paid for.
func (f *follower) every(w *record.Workspace) time.Duration {
	switch {
	case !w.PausedAt.IsZero():
		return min(passEvery, f.billing.cfg.Every)
	case w.CustomerID == "":
		return strangersFor * f.billing.cfg.Every
	}
	return f.billing.cfg.Every
}

// sync makes one workspace what the provider says of it. Its error is the provider's.
func (f *follower) sync(ctx context.Context, w *record.Workspace) error {
	found, err := f.billing.ask(ctx, w)
	if err != nil {
		return err
	}
	f.due[w.ID] = f.Clock().Add(time.Duration((1 - spread/2 + spread*f.billing.cfg.Random()) * float64(f.every(w))))
	now, changed := f.billing.apply(w, found)
	if !changed {
		return nil // nothing is written
	}
	if f.Update(ctx, loopSync, func(tx *raftstore.Tx) error {
		_, err := f.billing.write(tx, w.ID, found)
		return err
	}) {
		f.Logger.InfoContext(ctx, "a subscription has changed", "workspace_id", w.ID, "status", string(now.SubscriptionStatus))
	}
	return nil
}
