package main

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
)

// planeWebhooks has at most one endpoint, with one delivery.
type planeWebhooks struct {
	httpapi.Webhooks
	one *api.NewWebhookEndpoint
}

func (p *planeWebhooks) Create(_ context.Context, _ core.Caller, in api.CreateWebhookEndpoint, _ core.Idempotency) (api.NewWebhookEndpoint, error) {
	if in.URL == "https://localhost" {
		return api.NewWebhookEndpoint{}, apierror.Invalid("url is not public", "internal and private-network addresses are refused")
	}
	if len(in.Events) == 1 && in.Events[0] == "nonsense" {
		return api.NewWebhookEndpoint{}, apierror.Invalid("unknown event type", "GET /v1/webhooks/events lists those that there are")
	}
	p.one = &api.NewWebhookEndpoint{
		WebhookEndpoint: api.WebhookEndpoint{ID: "we-1", URL: in.URL, Events: in.Events, CreatedAt: api.Time{Time: time.Now()}}, Secret: "whsec_first",
	}
	return *p.one, nil
}

func (p *planeWebhooks) List(context.Context, core.Caller, core.ListOptions) ([]api.WebhookEndpoint, string, error) {
	if p.one == nil {
		return nil, "", nil
	}
	return []api.WebhookEndpoint{p.one.WebhookEndpoint}, "", nil
}

func (p *planeWebhooks) find(id string) error {
	if p.one == nil || id != p.one.ID {
		return apierror.NotFound()
	}
	return nil
}

func (p *planeWebhooks) Patch(_ context.Context, _ core.Caller, id string, in api.PatchWebhookEndpoint) (api.WebhookEndpoint, error) {
	if err := p.find(id); err != nil {
		return api.WebhookEndpoint{}, err
	}
	if in.URL.Set {
		p.one.URL = *in.URL.Value
	}
	if in.Events.Set {
		p.one.Events = *in.Events.Value
	}
	return p.one.WebhookEndpoint, nil
}

func (p *planeWebhooks) Delete(_ context.Context, _ core.Caller, id string) error {
	err := p.find(id)
	p.one = nil
	return err
}

func (p *planeWebhooks) Rotate(_ context.Context, _ core.Caller, id string) (api.NewWebhookEndpoint, error) {
	if err := p.find(id); err != nil {
		return api.NewWebhookEndpoint{}, err
	}
	p.one.Secret = "whsec_second"
	return *p.one, nil
}

func (p *planeWebhooks) delivery(id string, attempts ...api.WebhookAttempt) (api.WebhookDelivery, error) {
	return api.WebhookDelivery{
		ID: "wd_1", Type: api.WebhookEndpointTest, Status: api.WebhookFailed, Attempts: append([]api.WebhookAttempt{}, attempts...), CreatedAt: api.Time{Time: time.Now()},
	}, p.find(id)
}

func (p *planeWebhooks) Test(_ context.Context, _ core.Caller, id string) (api.WebhookDelivery, error) {
	return p.delivery(id)
}

func (p *planeWebhooks) Deliveries(_ context.Context, _ core.Caller, id string, _ core.ListOptions) ([]api.WebhookDelivery, string, error) {
	first, err := p.delivery(id, api.WebhookAttempt{}, api.WebhookAttempt{StatusCode: new(503), Error: new("the status is not 2xx")})
	second, _ := p.delivery(id, api.WebhookAttempt{Error: new("the connection was refused")})
	third, _ := p.delivery(id)
	return []api.WebhookDelivery{first, second, third}, "", err
}

func (p *planeWebhooks) Replay(_ context.Context, _ core.Caller, id, delivery string) (api.WebhookDelivery, error) {
	if delivery != "wd_1" {
		return api.WebhookDelivery{}, &apierror.Error{Code: apierror.EConflict, Message: "delivery is pending"}
	}
	return p.delivery(id)
}
