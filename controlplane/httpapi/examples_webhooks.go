package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleCreateWebhookEndpoint = api.CreateWebhookEndpoint{
		URL: "https://hooks.example.com/berth", Events: []api.WebhookEventType{api.WebhookFailoverStarted, api.WebhookFailoverCompleted},
	}
	examplePatchWebhookEndpoint = api.PatchWebhookEndpoint{Events: api.SetTo([]api.WebhookEventType{api.WebhookFailoverStarted, api.WebhookFailoverCompleted})}
	exampleWebhookEndpoint      = api.WebhookEndpoint{
		ID: "we-k7m2qz4xw3v5n6a2j7p4", URL: exampleCreateWebhookEndpoint.URL, Events: exampleCreateWebhookEndpoint.Events, CreatedAt: exampleAt,
	}
	exampleNewWebhookEndpoint = api.NewWebhookEndpoint{
		WebhookEndpoint: exampleWebhookEndpoint, Secret: "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
	}
	exampleNewWebhookDelivery = api.WebhookDelivery{
		ID: "wd_k7m2qz4xw3v5n6a2j7p4t5r6", Type: api.WebhookEndpointTest, Status: api.WebhookPending, Attempts: []api.WebhookAttempt{},
		CreatedAt: exampleAt, NextAttemptAt: &exampleAt,
	}
	exampleWebhookDelivery = func() api.WebhookDelivery {
		d := exampleNewWebhookDelivery
		d.Type, d.Status = api.WebhookFailoverStarted, api.WebhookFailed
		d.Attempts = []api.WebhookAttempt{{At: exampleStarted, StatusCode: new(503), Error: new("the status is not 2xx"), DurationMS: new(int64(84))}}
		d.NextAttemptAt = &api.Time{Time: exampleStarted.Add(time.Minute)}
		return d
	}()
)
