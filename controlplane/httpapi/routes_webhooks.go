package httpapi

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Webhooks are the use cases of /v1/webhooks.
type Webhooks interface {
	Create(ctx context.Context, c core.Caller, in api.CreateWebhookEndpoint, i core.Idempotency) (api.NewWebhookEndpoint, error)
	Get(ctx context.Context, c core.Caller, id string) (api.WebhookEndpoint, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.WebhookEndpoint, next string, err error)
	Patch(ctx context.Context, c core.Caller, id string, in api.PatchWebhookEndpoint) (api.WebhookEndpoint, error)
	Delete(ctx context.Context, c core.Caller, id string) error
	Rotate(ctx context.Context, c core.Caller, id string) (api.NewWebhookEndpoint, error)
	Test(ctx context.Context, c core.Caller, id string) (api.WebhookDelivery, error)
	Deliveries(ctx context.Context, c core.Caller, id string, o core.ListOptions) (page []api.WebhookDelivery, next string, err error)
	Replay(ctx context.Context, c core.Caller, id, deliveryID string) (api.WebhookDelivery, error)
}

// webhookRoutes are of outbound webhooks.
func webhookRoutes() []route {
	badURL := []apierror.Error{
		{Code: apierror.EInvalid, Message: "url is required"},
		{Code: apierror.EInvalid, Message: "invalid url", Detail: "it must begin with https://; for local development, BERTH_WEBHOOK_ALLOW_PRIVATE=true in the control plane's environment allows http:// too"},
		{Code: apierror.EInvalid, Message: "url is not public", Detail: "internal and private-network addresses are refused; for local development, BERTH_WEBHOOK_ALLOW_PRIVATE=true in the control plane's environment allows them"},
		{Code: apierror.EInvalid, Message: "unknown event type", Detail: "GET /v1/webhooks/events lists those that there are"},
	}
	return []route{
		{post, "/v1/webhooks/endpoints", workspace, (*API).createWebhookEndpoint, operation{
			free: true, id: "createWebhookEndpoint", tag: "Webhooks", summary: "Register a URL that events are sent to",
			detail:     "At most 10 a workspace. The answer has the secret that deliveries are signed with.",
			idempotent: true, body: exampleCreateWebhookEndpoint, status: 201, answer: exampleNewWebhookEndpoint,
			failures: append(badURL,
				apierror.Error{Code: apierror.EForbidden, Message: "account suspended"},
				apierror.Error{Code: apierror.EConflict, Message: "secret was rotated", Detail: "the endpoint that this Idempotency-Key made has another secret by now: rotate it again to get one"},
				apierror.Error{Code: apierror.ERateLimited, Message: "max webhook endpoints reached", Fields: map[string]any{"max": 10, "active": 10}}),
		}},
		{get, "/v1/webhooks/endpoints", workspace, (*API).listWebhookEndpoints, operation{
			id: "listWebhookEndpoints", tag: "Webhooks", summary: "List endpoints, newest first, without their secrets", list: true,
			status: 200, answer: []api.WebhookEndpoint{exampleWebhookEndpoint},
		}},
		{get, "/v1/webhooks/endpoints/:id", workspace, (*API).getWebhookEndpoint, operation{
			id: "getWebhookEndpoint", tag: "Webhooks", summary: "Read one endpoint, without its secret", status: 200, answer: exampleWebhookEndpoint,
		}},
		{patch, "/v1/webhooks/endpoints/:id", workspace, (*API).patchWebhookEndpoint, operation{
			id: "patchWebhookEndpoint", tag: "Webhooks", summary: "Change the URL or the events of an endpoint",
			detail: "What waits to be sent goes to the new URL.",
			body:   examplePatchWebhookEndpoint, status: 200, answer: exampleWebhookEndpoint,
			failures: append(badURL, apierror.Error{Code: apierror.EInvalid, Message: "invalid events", Detail: "want an array; an empty one subscribes to all"},
				apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: url, events)"}),
		}},
		{del, "/v1/webhooks/endpoints/:id", workspace, (*API).deleteWebhookEndpoint, operation{
			id: "deleteWebhookEndpoint", tag: "Webhooks", summary: "Delete an endpoint and its deliveries, also those to come", status: 204,
		}},
		{post, "/v1/webhooks/endpoints/:id/rotate", workspace, (*API).rotateWebhookSecret, operation{
			id: "rotateWebhookSecret", tag: "Webhooks", summary: "Rotate the signing secret of an endpoint",
			detail: "Every attempt from now on is signed with it. What the receiver refuses until it knows the secret is sent again.",
			body:   api.Empty{}, status: 200, answer: exampleNewWebhookEndpoint,
		}},
		{get, "/v1/webhooks/events", workspace, (*API).listWebhookEvents, operation{
			id: "listWebhookEvents", tag: "Webhooks", summary: "List the types of events that there are", status: 200, answer: api.WebhookEventTypes(),
		}},
		{get, "/v1/webhooks/endpoints/:id/deliveries", workspace, (*API).listWebhookDeliveries, operation{
			id: "listWebhookDeliveries", tag: "Webhooks", summary: "List the deliveries to an endpoint, newest first",
			detail: "The latest 100 that have ended within 7 days, and those that wait.",
			list:   true, status: 200, answer: []api.WebhookDelivery{exampleWebhookDelivery},
		}},
		{post, "/v1/webhooks/endpoints/:id/test", workspace, (*API).testWebhookEndpoint, operation{
			id: "testWebhookEndpoint", tag: "Webhooks", summary: "Send endpoint.test to an endpoint",
			detail: "Whatever it subscribes to. The answer is the delivery, before its first attempt.",
			body:   api.Empty{}, status: 202, answer: exampleNewWebhookDelivery, failures: []apierror.Error{manyWait},
		}},
		{post, "/v1/webhooks/endpoints/:id/deliveries/:delivery/replay", workspace, (*API).replayWebhookDelivery, operation{
			id: "replayWebhookDelivery", tag: "Webhooks", summary: "Replay a delivery",
			detail: "At once, and on the schedule of a new one, whether it has arrived, is dead or waits for its next attempt.",
			body:   api.Empty{}, status: 202, answer: exampleNewWebhookDelivery,
			failures: []apierror.Error{{Code: apierror.EConflict, Message: "delivery is pending", Detail: "an attempt is under way, or is made in a moment"}, manyWait},
		}},
	}
}

var manyWait = apierror.Error{
	Code: apierror.ERateLimited, Message: "too many deliveries wait", Detail: "the endpoint has yet to take those that wait", Fields: map[string]any{"max": 100, "active": 100},
}

func (a *API) createWebhookEndpoint(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateWebhookEndpoint](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) listWebhookEndpoints(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Webhooks.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getWebhookEndpoint(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) patchWebhookEndpoint(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, _, err := bind[api.PatchWebhookEndpoint](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Patch(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deleteWebhookEndpoint(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if err := a.cfg.Webhooks.Delete(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	return noContent(c)
}

// bareID is the id in the path of a POST that says no more.
func bareID(c *gin.Context) (string, error) {
	id, err := pathID(c, "id")
	if err != nil {
		return "", err
	}
	_, _, err = bind[api.Empty](c, maxJSONBody)
	return id, err
}

func (a *API) rotateWebhookSecret(c *gin.Context) error {
	id, err := bareID(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Rotate(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) listWebhookEvents(c *gin.Context) error { return ok(c, api.WebhookEventTypes()) }

func (a *API) listWebhookDeliveries(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Webhooks.Deliveries(c.Request.Context(), callerOf(c), id, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) testWebhookEndpoint(c *gin.Context) error {
	id, err := bareID(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Test(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return accepted(c, out)
}

func (a *API) replayWebhookDelivery(c *gin.Context) error {
	delivery, err := pathID(c, "delivery")
	if err != nil {
		return err
	}
	id, err := bareID(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Webhooks.Replay(c.Request.Context(), callerOf(c), id, delivery)
	if err != nil {
		return err
	}
	return accepted(c, out)
}
