package httpapi

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/webhook"
)

var _ Webhooks = (*webhook.Webhooks)(nil)

// fakeWebhooks has one endpoint, "we-1", with one delivery, "wd_1".
type fakeWebhooks struct {
	created api.CreateWebhookEndpoint
	patched api.PatchWebhookEndpoint
	key     core.Idempotency
}

func fakeEndpoint(id string) (api.NewWebhookEndpoint, error) {
	if id != "we-1" {
		return api.NewWebhookEndpoint{}, apierror.NotFound()
	}
	return api.NewWebhookEndpoint{WebhookEndpoint: api.WebhookEndpoint{ID: id, URL: "https://example.com", Events: []api.WebhookEventType{}}, Secret: "whsec_s"}, nil
}

func fakeDelivery(id, delivery string) (api.WebhookDelivery, error) {
	if _, err := fakeEndpoint(id); err != nil || delivery != "wd_1" {
		return api.WebhookDelivery{}, apierror.NotFound()
	}
	return api.WebhookDelivery{ID: delivery, Type: api.WebhookEndpointTest, Status: api.WebhookPending, Attempts: []api.WebhookAttempt{{}}}, nil
}

func (f *fakeWebhooks) Create(_ context.Context, _ core.Caller, in api.CreateWebhookEndpoint, i core.Idempotency) (api.NewWebhookEndpoint, error) {
	f.created, f.key = in, i
	return fakeEndpoint("we-1")
}

func (f *fakeWebhooks) Get(_ context.Context, _ core.Caller, id string) (api.WebhookEndpoint, error) {
	e, err := fakeEndpoint(id)
	return e.WebhookEndpoint, err
}

func (f *fakeWebhooks) List(context.Context, core.Caller, core.ListOptions) ([]api.WebhookEndpoint, string, error) {
	e, err := fakeEndpoint("we-1")
	return []api.WebhookEndpoint{e.WebhookEndpoint}, "next", err
}

func (f *fakeWebhooks) Patch(_ context.Context, _ core.Caller, id string, in api.PatchWebhookEndpoint) (api.WebhookEndpoint, error) {
	f.patched = in
	e, err := fakeEndpoint(id)
	return e.WebhookEndpoint, err
}

func (f *fakeWebhooks) Delete(_ context.Context, _ core.Caller, id string) error {
	_, err := fakeEndpoint(id)
	return err
}

func (f *fakeWebhooks) Rotate(_ context.Context, _ core.Caller, id string) (api.NewWebhookEndpoint, error) {
	return fakeEndpoint(id)
}

func (f *fakeWebhooks) Test(_ context.Context, _ core.Caller, id string) (api.WebhookDelivery, error) {
	return fakeDelivery(id, "wd_1")
}

func (f *fakeWebhooks) Deliveries(_ context.Context, _ core.Caller, id string, _ core.ListOptions) ([]api.WebhookDelivery, string, error) {
	d, err := fakeDelivery(id, "wd_1")
	return []api.WebhookDelivery{d}, "next", err
}

func (f *fakeWebhooks) Replay(_ context.Context, _ core.Caller, id, delivery string) (api.WebhookDelivery, error) {
	return fakeDelivery(id, delivery)
}

func TestWebhookRoutes(t *testing.T) {
	r := newRig(t)
	const endpoints = "/v1/webhooks/endpoints"
	for _, c := range []struct {
		method, path, body string
		status             int
		has                string
	}{
		{"POST", endpoints, `{"url":"https://example.com","events":["quota.warning"]}`, 201, `"secret":"whsec_s"`},
		{"GET", endpoints, "", 200, `[{"id":"we-1"`},
		{"GET", endpoints + "/we-1", "", 200, `"events":[]`},
		{"GET", endpoints + "/we-2", "", 404, "not found"},
		{"PATCH", endpoints + "/we-1", `{"events":[]}`, 200, `"id":"we-1"`},
		{"PATCH", endpoints + "/we-1", `{"url":7}`, 400, "invalid json"},
		{"DELETE", endpoints + "/we-1", "", 204, ""},
		{"DELETE", endpoints + "/we-2", "", 404, "not found"},
		{"POST", endpoints + "/we-1/rotate", "{}", 200, `"secret":"whsec_s"`},
		{"POST", endpoints + "/we-2/rotate", "{}", 404, "not found"},
		{"POST", endpoints + "/we-1/test", "{}", 202, `"id":"wd_1"`},
		{"GET", endpoints + "/we-1/deliveries", "", 200, `"status_code":null,"error":null,"duration_ms":null`},
		{"GET", endpoints + "/we-2/deliveries", "", 404, "not found"},
		{"POST", endpoints + "/we-1/deliveries/wd_1/replay", "{}", 202, `"status":"pending"`},
		{"POST", endpoints + "/we-1/deliveries/wd_2/replay", "{}", 404, "not found"},
		{"POST", endpoints + "/we-1/deliveries/%2F/replay", "{}", 404, "not found"},
		{"GET", "/v1/webhooks/events", "", 200, `"endpoint.test"`},
	} {
		w := r.call(c.method, c.path, "tenant", c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if next := w.Header().Get("Link") != ""; next != (c.status == 200 && c.method == "GET" && strings.HasPrefix(w.Body.String(), "[{")) {
			t.Errorf("%s %s: Link %q", c.method, c.path, w.Header().Get("Link"))
		}
	}
	if got := read[[]string](t, r.call("GET", "/v1/webhooks/events", "tenant", "").Body.String()); len(got) != 8 {
		t.Errorf("%d types of events: %q", len(got), got)
	}
	if diff := cmp.Diff(api.CreateWebhookEndpoint{URL: "https://example.com", Events: []api.WebhookEventType{"quota.warning"}}, r.webhooks.created); diff != "" {
		t.Error(diff)
	}
	if p := r.webhooks.patched; p.URL.Set || p.Events.Value == nil || len(*p.Events.Value) != 0 {
		t.Errorf("%+v", p)
	}
	if r.call("POST", endpoints, "tenant", `{"url":"https://example.com"}`, api.HeaderIdempotencyKey, "k"); r.webhooks.key.Key != "k" || len(r.webhooks.key.BodySHA256) == 0 {
		t.Errorf("%+v", r.webhooks.key)
	}
}
