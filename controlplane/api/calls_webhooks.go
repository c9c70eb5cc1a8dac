package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
)

// CreateWebhookEndpoint registers a URL for events, and returns it with the secret that
// they are signed with. The idempotency key may be empty, as in CreateSandbox.
func (c *Client) CreateWebhookEndpoint(ctx context.Context, in CreateWebhookEndpoint, idempotencyKey string) (*NewWebhookEndpoint, error) {
	return create[NewWebhookEndpoint](ctx, c, in, idempotencyKey, Version, "webhooks", "endpoints")
}

// GetWebhookEndpoint reads one endpoint, without its secret.
func (c *Client) GetWebhookEndpoint(ctx context.Context, id string) (*WebhookEndpoint, error) {
	return into[WebhookEndpoint](ctx, c, get(Version, "webhooks", "endpoints", id))
}

// ListWebhookEndpoints reads one page, newest first, and the cursor of the next: empty
// after the last.
func (c *Client) ListWebhookEndpoints(ctx context.Context, p Page) ([]WebhookEndpoint, string, error) {
	return page[WebhookEndpoint](ctx, c, p, Version, "webhooks", "endpoints")
}

// WebhookEndpoints reads every endpoint, newest first.
func (c *Client) WebhookEndpoints(ctx context.Context) iter.Seq2[WebhookEndpoint, error] {
	return all(func(p Page) ([]WebhookEndpoint, string, error) { return c.ListWebhookEndpoints(ctx, p) })
}

// PatchWebhookEndpoint changes the URL or the events of an endpoint.
func (c *Client) PatchWebhookEndpoint(ctx context.Context, id string, in PatchWebhookEndpoint) (*WebhookEndpoint, error) {
	b, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return into[WebhookEndpoint](ctx, c, call{
		method: http.MethodPatch, path: join([]string{Version, "webhooks", "endpoints", id}),
		header: http.Header{"Content-Type": {"application/json"}}, body: b, safe: true,
	})
}

// DeleteWebhookEndpoint removes an endpoint and its deliveries, also those to come.
func (c *Client) DeleteWebhookEndpoint(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "webhooks", "endpoints", id))
}

// RotateWebhookSecret gives an endpoint another secret, with which every attempt from now
// on is signed.
func (c *Client) RotateWebhookSecret(ctx context.Context, id string) (*NewWebhookEndpoint, error) {
	cl, err := post(struct{}{}, Version, "webhooks", "endpoints", id, "rotate")
	if err != nil {
		return nil, err
	}
	return into[NewWebhookEndpoint](ctx, c, cl)
}

// TestWebhookEndpoint sends endpoint.test to an endpoint, whatever it subscribes to.
func (c *Client) TestWebhookEndpoint(ctx context.Context, id string) (*WebhookDelivery, error) {
	cl, err := post(struct{}{}, Version, "webhooks", "endpoints", id, "test")
	if err != nil {
		return nil, err
	}
	return into[WebhookDelivery](ctx, c, cl)
}

// ListWebhookEvents reads the types of events that there are.
func (c *Client) ListWebhookEvents(ctx context.Context) ([]WebhookEventType, error) {
	out, err := into[[]WebhookEventType](ctx, c, get(Version, "webhooks", "events"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// ListWebhookDeliveries reads one page of an endpoint's deliveries, newest first.
func (c *Client) ListWebhookDeliveries(ctx context.Context, id string, p Page) ([]WebhookDelivery, string, error) {
	return page[WebhookDelivery](ctx, c, p, Version, "webhooks", "endpoints", id, "deliveries")
}

// WebhookDeliveries reads every delivery that is kept of an endpoint, newest first.
func (c *Client) WebhookDeliveries(ctx context.Context, id string) iter.Seq2[WebhookDelivery, error] {
	return all(func(p Page) ([]WebhookDelivery, string, error) { return c.ListWebhookDeliveries(ctx, id, p) })
}

// ReplayWebhookDelivery sends a delivery again, with all attempts before it.
func (c *Client) ReplayWebhookDelivery(ctx context.Context, id, deliveryID string) (*WebhookDelivery, error) {
	cl, err := post(struct{}{}, Version, "webhooks", "endpoints", id, "deliveries", deliveryID, "replay")
	if err != nil {
		return nil, err
	}
	return into[WebhookDelivery](ctx, c, cl)
}
