// Package webhook sends the events of a workspace to the URLs that it has registered. The
// transaction in which an event happens also enqueues it, as one row for each endpoint
// that subscribes to it. A loop on the leader signs and sends the rows, and retries on a
// schedule. Each attempt is recorded before it is sent, so the next leader knows which
// attempts may have arrived and sends those again.
package webhook

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// DefaultMaxEndpoints is the maximum number of endpoints of a workspace unless the settings
// say otherwise.
const DefaultMaxEndpoints = 10

// defaultDelays returns the default delays between the attempts of a delivery. There is
// one attempt more than there are delays.
func defaultDelays() []time.Duration {
	return []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 8 * time.Hour}
}

// Config holds what webhooks need in addition to the core.
type Config struct {
	Delays  []time.Duration // default: defaultDelays
	Timeout time.Duration   // of one attempt, from the name lookup to the response; default 10 s

	MaxEndpoints int // of a workspace; default DefaultMaxEndpoints

	// AllowPrivate allows endpoints at any address and without TLS. It is for
	// development.
	AllowPrivate bool

	Resolver *net.Resolver              // resolves host names; nil: the system's
	Allowed  func(addr netip.Addr) bool // reports whether an address may be dialled; default: Public, or any with AllowPrivate
}

func (c *Config) defaults() {
	if len(c.Delays) == 0 {
		c.Delays = defaultDelays()
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.MaxEndpoints == 0 {
		c.MaxEndpoints = DefaultMaxEndpoints
	}
	switch {
	case c.Allowed != nil:
	case c.AllowPrivate:
		c.Allowed = func(netip.Addr) bool { return true }
	default:
		c.Allowed = Public
	}
}

// Webhooks implements the use cases of webhooks.
type Webhooks struct {
	core *core.Core
	cfg  Config
}

// New returns the use cases of webhooks.
func New(c *core.Core, cfg Config) *Webhooks {
	cfg.defaults()
	return &Webhooks{core: c, cfg: cfg}
}

// Create registers a URL and returns the endpoint with its signing secret.
func (s *Webhooks) Create(ctx context.Context, c core.Caller, in api.CreateWebhookEndpoint, i core.Idempotency) (api.NewWebhookEndpoint, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	if err := s.checkURL(in.URL); err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	events, err := eventNames(in.Events)
	if err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/webhooks/endpoints", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.NewWebhookEndpoint, error) {
			e, err := owned(view, c, key.ResourceID)
			if err != nil {
				return api.NewWebhookEndpoint{}, core.ErrKeyGone("webhook endpoint")
			}
			if e.Rotated { // the idempotency key entitles its holder to the first secret only
				return api.NewWebhookEndpoint{}, errRotated
			}
			return s.reveal(e)
		},
		func(keyID string) (out api.NewWebhookEndpoint, err error) {
			e := &record.WebhookEndpoint{Meta: record.Meta{ID: "we-" + core.RandomText(20)}, WorkspaceID: c.WorkspaceID, URL: in.URL, Events: events}
			if err := s.newSecret(e); err != nil {
				return api.NewWebhookEndpoint{}, err
			}
			err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
				if err := core.MayCreate(tx, c); err != nil {
					return err
				}
				if n := len(raftstore.Find(tx, record.WebhookEndpoints, "workspace", c.WorkspaceID)); n >= s.cfg.MaxEndpoints {
					return &apierror.Error{
						Code: apierror.ERateLimited, Message: "max webhook endpoints reached", Fields: map[string]any{"max": s.cfg.MaxEndpoints, "active": n},
					}
				}
				e := e.Clone()
				raftstore.Put(tx, record.WebhookEndpoints, e)
				if out, err = s.reveal(e); err != nil {
					return err
				}
				return core.ClaimAnswer(tx, s.core, i, keyID, e.ID, out)
			})
			return out, err
		})
}

var errRotated = &apierror.Error{
	Code: apierror.EConflict, Message: "secret was rotated", Detail: "the endpoint that this Idempotency-Key made has another secret by now: rotate it again to get one",
}

// Get returns one endpoint of the caller's workspace.
func (s *Webhooks) Get(ctx context.Context, c core.Caller, id string) (api.WebhookEndpoint, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.WebhookEndpoint{}, err
	}
	e, err := owned(view, c, id)
	if err != nil {
		return api.WebhookEndpoint{}, err
	}
	return show(e), nil
}

// List returns a page of the workspace's endpoints, newest first.
func (s *Webhooks) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.WebhookEndpoint, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.WebhookEndpoints, "workspace", c.WorkspaceID), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, show), next, nil
}

var errNoFields = &apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: url, events)"}

// Patch changes the URL or the events of an endpoint. Waiting deliveries go to the new URL.
func (s *Webhooks) Patch(ctx context.Context, c core.Caller, id string, in api.PatchWebhookEndpoint) (api.WebhookEndpoint, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.WebhookEndpoint{}, err
	}
	switch {
	case !in.URL.Set && !in.Events.Set:
		return api.WebhookEndpoint{}, errNoFields
	case in.Events.Set && in.Events.Value == nil:
		return api.WebhookEndpoint{}, apierror.Invalid("invalid events", "want an array; an empty one subscribes to all")
	case in.URL.Set:
		if err := s.checkURL(core.OrZero(in.URL.Value)); err != nil {
			return api.WebhookEndpoint{}, err
		}
	}
	events, err := eventNames(core.OrZero(in.Events.Value))
	if err != nil {
		return api.WebhookEndpoint{}, err
	}
	e, err := s.change(ctx, c, id, func(e *record.WebhookEndpoint) {
		if in.URL.Set {
			e.URL = *in.URL.Value
		}
		if in.Events.Set {
			e.Events = events
		}
	})
	if err != nil {
		return api.WebhookEndpoint{}, err
	}
	return show(e), nil
}

// Rotate gives an endpoint a new secret. A receiver that still verifies with the former
// secret refuses deliveries for the time being, and gets them again later.
func (s *Webhooks) Rotate(ctx context.Context, c core.Caller, id string) (api.NewWebhookEndpoint, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	fresh := &record.WebhookEndpoint{Meta: record.Meta{ID: id}}
	if err := s.newSecret(fresh); err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	e, err := s.change(ctx, c, id, func(e *record.WebhookEndpoint) { e.SecretSealed, e.Rotated = fresh.SecretSealed, true })
	if err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	return s.reveal(e)
}

// change writes an endpoint of the caller's workspace.
func (s *Webhooks) change(ctx context.Context, c core.Caller, id string, edit func(e *record.WebhookEndpoint)) (*record.WebhookEndpoint, error) {
	var out *record.WebhookEndpoint
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		e, err := owned(tx, c, id)
		if err != nil {
			return err
		}
		out = e.Clone()
		edit(out)
		raftstore.Put(tx, record.WebhookEndpoints, out)
		return nil
	})
	return out, err
}

// Delete removes an endpoint. From now on nothing is sent to it; a loop removes its
// deliveries.
func (s *Webhooks) Delete(ctx context.Context, c core.Caller, id string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if _, err := owned(tx, c, id); err != nil {
			return err
		}
		raftstore.Delete(tx, record.WebhookEndpoints, id)
		return nil
	})
}

// owned finds an endpoint of the caller's workspace. An endpoint of another workspace is
// not found either.
func owned(r raftstore.Reader, c core.Caller, id string) (*record.WebhookEndpoint, error) {
	e, ok := raftstore.Get(r, record.WebhookEndpoints, id)
	if !ok || e.WorkspaceID != c.WorkspaceID {
		return nil, apierror.NotFound()
	}
	return e, nil
}

func show(e *record.WebhookEndpoint) api.WebhookEndpoint {
	return api.WebhookEndpoint{
		ID: e.ID, URL: e.URL, CreatedAt: api.Time{Time: e.CreatedAt},
		Events: core.Each(e.Events, func(t string) api.WebhookEventType { return api.WebhookEventType(t) }),
	}
}

func (s *Webhooks) reveal(e *record.WebhookEndpoint) (api.NewWebhookEndpoint, error) {
	secret, err := openSecret(s.core.Sealer, e)
	if err != nil {
		return api.NewWebhookEndpoint{}, apierror.As(err)
	}
	return api.NewWebhookEndpoint{WebhookEndpoint: show(e), Secret: secret}, nil
}

// A secret is secretPrefix followed by secretBytes random bytes in base64, as Standard
// Webhooks specifies.
const (
	secretPrefix = "whsec_"
	secretBytes  = 32
)

func (s *Webhooks) newSecret(e *record.WebhookEndpoint) error {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails
	var err error
	if e.SecretSealed, err = s.core.Sealer.Seal([]byte(secretPrefix+base64.StdEncoding.EncodeToString(raw)), record.WebhookContext(e.ID)); err != nil {
		return apierror.As(fmt.Errorf("seal a signing secret: %w", err))
	}
	return nil
}

func openSecret(sealer core.Sealer, e *record.WebhookEndpoint) (string, error) {
	secret, err := sealer.Open(e.SecretSealed, record.WebhookContext(e.ID))
	if err != nil {
		return "", fmt.Errorf("open the signing secret of %s: %w", e.ID, err)
	}
	return string(secret), nil
}

// wants reports whether an endpoint subscribes to an event type.
func wants(e *record.WebhookEndpoint, t api.WebhookEventType) bool {
	return len(e.Events) == 0 || slices.Contains(e.Events, string(t))
}
