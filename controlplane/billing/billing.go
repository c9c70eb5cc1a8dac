// Package billing follows what a provider of payments says of a workspace: whether it has
// a subscription, and to which tier. The provider is behind one small interface; Stripe
// is the one that there is.
package billing

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Provider is where subscriptions are paid.
type Provider interface {
	// Subscription returns what is known of a workspace. customerID is the one that was
	// found before; "": none was.
	Subscription(ctx context.Context, workspaceID, customerID string) (Subscription, error)
}

// Subscription is what a provider knows of a workspace.
type Subscription struct {
	CustomerID string // "": it has no customer for the workspace
	Status     record.SubscriptionStatus
	Tier       string // of what is paid for; "": the provider does not say
}

// Billing are the use cases of /v1/billing.
type Billing struct {
	core     *core.Core
	provider Provider // nil: none
	cfg      Config

	syncs chan struct{} // a place for each that runs
	mu    sync.Mutex
	began map[string]time.Time // by workspace: its last sync, for syncEvery
}

// Config configures Billing.
type Config struct {
	Provider Provider // nil: none
	// Every is about how often a loop asks about a workspace that the provider knows;
	// default one hour.
	Every  time.Duration
	Random func() float64 // from 0 to 1; default math/rand/v2
}

// New makes the use cases.
func New(c *core.Core, cfg Config) *Billing {
	if cfg.Every == 0 {
		cfg.Every = time.Hour
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	return &Billing{core: c, provider: cfg.Provider, cfg: cfg, syncs: make(chan struct{}, syncsAtOnce), began: map[string]time.Time{}}
}

// syncTimeout bounds what a provider is asked.
const syncTimeout = 30 * time.Second

// The bounds of what tenants make the provider be asked: it counts all as the operator's,
// and refuses the operator's own questions when there were too many.
const (
	syncEvery   = 10 * time.Second // at most so often about a workspace
	syncsAtOnce = 4                // in all; the others wait
)

// Sync makes the caller's workspace what the provider says of it. A workspace of which the
// provider knows nothing, and never did, is left as the operator has set it.
func (s *Billing) Sync(ctx context.Context, c core.Caller) (api.BillingSync, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.BillingSync{}, err
	}
	if s.provider == nil {
		return api.BillingSync{}, &apierror.Error{Code: apierror.ENotImplemented, Message: "billing is not set up", Detail: "the operator sets BERTH_STRIPE_KEY"}
	}
	w, ok := raftstore.Get(view, record.Workspaces, c.WorkspaceID)
	if !ok {
		return api.BillingSync{}, apierror.NotFound()
	}
	if err := s.mayAsk(w.ID); err != nil {
		return api.BillingSync{}, err
	}
	found, err := s.askInTurn(ctx, w)
	switch {
	case ctx.Err() != nil:
		return api.BillingSync{}, core.StoreError(ctx.Err())
	case err != nil:
		return api.BillingSync{}, &apierror.Error{Code: apierror.EBadGateway, Message: "billing provider unreachable", Detail: "nothing was changed; try again", RetryAfter: syncEvery, Err: err}
	}
	var out api.BillingSync
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w, err := s.write(tx, c.WorkspaceID, found)
		if err != nil {
			return err
		}
		out = api.BillingSync{
			SubscriptionStatus: string(w.SubscriptionStatus), Tier: s.core.Tiers.Name(w), Paused: s.core.Tiers.Month(tx, w, tx.Now()).Exhausted(),
		}
		return nil
	})
	return out, err
}

// mayAsk refuses a sync too soon after another of the same workspace.
func (s *Billing) mayAsk(id string) error {
	now := s.core.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.began, func(_ string, at time.Time) bool { return now.Sub(at) >= syncEvery })
	if at, soon := s.began[id]; soon {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "synced a moment ago", Detail: "the provider is asked about a workspace once in " + syncEvery.String(),
			RetryAfter: at.Add(syncEvery).Sub(now),
		}
	}
	s.began[id] = now
	return nil
}

// askInTurn asks the provider for a tenant.
func (s *Billing) askInTurn(ctx context.Context, w *record.Workspace) (Subscription, error) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	select {
	case s.syncs <- struct{}{}:
		defer func() { <-s.syncs }()
		return s.ask(ctx, w)
	case <-ctx.Done():
		return Subscription{}, ctx.Err()
	}
}

// ask asks the provider about a workspace.
func (s *Billing) ask(ctx context.Context, w *record.Workspace) (Subscription, error) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return s.provider.Subscription(ctx, w.ID, w.CustomerID)
}

// write makes a workspace what the provider says of it.
func (s *Billing) write(tx *raftstore.Tx, id string, found Subscription) (*record.Workspace, error) {
	w, ok := raftstore.Get(tx, record.Workspaces, id)
	if !ok {
		return nil, apierror.NotFound()
	}
	n, changed := s.apply(w, found)
	if changed {
		raftstore.Put(tx, record.Workspaces, n)
	}
	return n, nil
}

// apply is a workspace as a provider's answer makes it.
func (s *Billing) apply(w *record.Workspace, found Subscription) (*record.Workspace, bool) {
	if found.CustomerID == "" && w.CustomerID == "" {
		return w, false
	}
	n := w.Clone()
	n.CustomerID, n.SubscriptionStatus = found.CustomerID, found.Status
	if found.Status == "" && subscribed(w) {
		// Its customer was deleted, and with it the subscription, or has another in its place
		// that has none. It keeps the tier that was paid for, so without a status nothing
		// would bound what it creates.
		n.SubscriptionStatus = record.SubscriptionCanceled
	}
	paid := found.Status == record.SubscriptionActive || found.Status == record.SubscriptionTrialing
	if paid && found.Tier != "" && s.core.Tiers.Known(found.Tier) {
		n.Tier = found.Tier
	}
	return n, n.CustomerID != w.CustomerID || n.SubscriptionStatus != w.SubscriptionStatus || n.Tier != w.Tier
}

// subscribed reports whether a workspace has had a subscription: its customer's, or one that
// has ended.
func subscribed(w *record.Workspace) bool {
	switch w.SubscriptionStatus {
	case "":
		return false
	case record.SubscriptionPastDue, record.SubscriptionCanceled:
		return true
	}
	return w.CustomerID != ""
}

var (
	errProvider = errors.New("stripe")
	// errTooMuch is the provider's refusal because it was asked too much.
	errTooMuch = errors.New("asked too much")
)
