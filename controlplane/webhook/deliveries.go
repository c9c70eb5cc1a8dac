package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// maxData limits the data of one event, in bytes, because the rows of all events are in
// memory. maxText limits one text in the data, in bytes of JSON.
const (
	maxData = 4 << 10
	maxText = 3 << 10
)

// Text shortens s so that it fits into an event together with ids and short words. It
// returns the beginning of s, followed by "…" if anything was cut.
func Text(s string) string {
	room := maxText
	for i, r := range s {
		if r < ' ' || strings.ContainsRune("\"\\<>&\u2028\u2029\uFFFD", r) {
			room -= len(`\u0000`) // at most
		} else {
			room -= utf8.RuneLen(r)
		}
		if room < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// Enqueue adds a delivery of an event to a transaction for each endpoint of the workspace
// that subscribes to the event. The deliveries are sent if and only if the transaction is
// committed. data has the type that package api names next to the event type. The caller
// limits the texts in data; see Text.
func Enqueue(tx *raftstore.Tx, workspaceID string, t api.WebhookEventType, data any) error {
	for _, e := range raftstore.Find(tx, record.WebhookEndpoints, "workspace", workspaceID) {
		if wants(e, t) {
			if _, err := enqueueFor(tx, e, t, data); err != nil {
				return err
			}
		}
	}
	return nil
}

func enqueueFor(tx *raftstore.Tx, e *record.WebhookEndpoint, t api.WebhookEventType, data any) (*record.WebhookDelivery, error) {
	raw, err := json.Marshal(data)
	if err == nil && len(raw) > maxData {
		err = fmt.Errorf("%d bytes, at most %d", len(raw), maxData)
	}
	if err != nil {
		return nil, fmt.Errorf("data of %s: %w", t, err)
	}
	d := &record.WebhookDelivery{
		Meta: record.Meta{ID: "wd_" + core.RandomText(24)}, EndpointID: e.ID, Type: string(t), Status: record.WebhookPending, NextAttemptAt: tx.Now(),
	}
	if d.Body, err = json.Marshal(api.WebhookEvent{
		ID: d.ID, Type: t, CreatedAt: api.Time{Time: tx.Now()}, Workspace: e.WorkspaceID, Data: api.Object(raw),
	}); err != nil {
		return nil, fmt.Errorf("envelope of %s: %w", t, err)
	}
	raftstore.Put(tx, record.WebhookDeliveries, d)
	return d, nil
}

// Test sends endpoint.test to one endpoint, whatever events it subscribes to.
func (s *Webhooks) Test(ctx context.Context, c core.Caller, id string) (api.WebhookDelivery, error) {
	return s.deliver(ctx, c, func(tx *raftstore.Tx) (*record.WebhookDelivery, error) {
		e, err := owned(tx, c, id)
		if err != nil {
			return nil, err
		}
		if err := mayWait(tx, id); err != nil {
			return nil, err
		}
		return enqueueFor(tx, e, api.WebhookEndpointTest, api.WebhookTest{EndpointID: id})
	})
}

// Replay starts another round of attempts of a delivery, whatever the outcome of the last
// round. It returns EConflict if the delivery is pending or an attempt is under way.
func (s *Webhooks) Replay(ctx context.Context, c core.Caller, id, deliveryID string) (api.WebhookDelivery, error) {
	return s.deliver(ctx, c, func(tx *raftstore.Tx) (*record.WebhookDelivery, error) {
		if _, err := owned(tx, c, id); err != nil {
			return nil, err
		}
		d, ok := raftstore.Get(tx, record.WebhookDeliveries, deliveryID)
		switch {
		case !ok || d.EndpointID != id:
			return nil, apierror.NotFound()
		case d.Status == record.WebhookPending || d.Open() != nil:
			return nil, &apierror.Error{Code: apierror.EConflict, Message: "delivery is pending", Detail: "an attempt is under way, or is made in a moment"}
		}
		if !d.Status.Waiting() {
			if err := mayWait(tx, id); err != nil {
				return nil, err
			}
		}
		d = d.Clone()
		d.Status, d.Tries, d.NextAttemptAt, d.Error = record.WebhookPending, 0, s.core.Clock(), ""
		raftstore.Put(tx, record.WebhookDeliveries, d)
		return d, nil
	})
}

// mayWait refuses a requested delivery while maxWaiting deliveries of the endpoint wait:
// one more would push out an event.
func mayWait(tx *raftstore.Tx, endpointID string) error {
	waiting := 0
	for _, d := range raftstore.Find(tx, record.WebhookDeliveries, "endpoint", endpointID) {
		if d.Status.Waiting() {
			waiting++
		}
	}
	if waiting < maxWaiting {
		return nil
	}
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: "too many deliveries wait", Fields: map[string]any{"max": maxWaiting, "active": waiting},
		Detail: "the endpoint has yet to take those that wait",
	}
}

func (s *Webhooks) deliver(ctx context.Context, c core.Caller, write func(tx *raftstore.Tx) (*record.WebhookDelivery, error)) (api.WebhookDelivery, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.WebhookDelivery{}, err
	}
	var d *record.WebhookDelivery
	err := s.core.Update(ctx, func(tx *raftstore.Tx) (err error) {
		d, err = write(tx)
		return err
	})
	if err != nil {
		return api.WebhookDelivery{}, err
	}
	return showDelivery(d), nil
}

// Deliveries returns a page of an endpoint's deliveries, newest first.
func (s *Webhooks) Deliveries(ctx context.Context, c core.Caller, id string, o core.ListOptions) (page []api.WebhookDelivery, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	if _, err := owned(view, c, id); err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.WebhookDeliveries, "endpoint", id), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, showDelivery), next, nil
}

func showDelivery(d *record.WebhookDelivery) api.WebhookDelivery {
	return api.WebhookDelivery{
		ID: d.ID, Type: api.WebhookEventType(d.Type), Status: api.WebhookStatus(d.Status), CreatedAt: api.Time{Time: d.CreatedAt},
		NextAttemptAt: api.NewTime(d.NextAttemptAt), Error: core.OrNull(d.Error),
		Attempts: core.Each(d.Attempts, func(a record.WebhookAttempt) api.WebhookAttempt {
			return api.WebhookAttempt{
				At: api.Time{Time: a.At}, StatusCode: core.OrNull(a.StatusCode), Error: core.OrNull(a.Error), DurationMS: milliseconds(a),
			}
		}),
	}
}

func milliseconds(a record.WebhookAttempt) *int64 {
	if a.Duration == 0 {
		return nil
	}
	ms := a.Duration.Milliseconds()
	return &ms
}
