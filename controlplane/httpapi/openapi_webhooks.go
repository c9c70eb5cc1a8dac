package httpapi

import (
	"fmt"
	"net/http"

	"github.com/swaggest/openapi-go/openapi31"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
)

// webhookData is an example of what each event says.
var webhookData = map[api.WebhookEventType]any{
	api.WebhookDeploymentBuilding:  exampleDeployment("building", ""),
	api.WebhookDeploymentSucceeded: exampleDeployment("live", ""),
	api.WebhookDeploymentFailed:    exampleDeployment("failed", "the build command ended with code 1"),
	api.WebhookFailoverStarted: api.WebhookFailover{
		DatabaseID: exampleDatabase.ID, Label: exampleDatabase.Label, Status: api.DatabaseRestoring,
		Detail: "it is restored from its archive, which ends at LSN 0/5000060, 2026-11-20T13:04:41.120Z",
	},
	api.WebhookFailoverCompleted: api.WebhookFailover{
		DatabaseID: exampleDatabase.ID, Label: exampleDatabase.Label, Status: api.DatabaseRunning, AgentID: "host-b",
	},
	api.WebhookQuotaWarning:   api.WebhookQuota{CreditUSD: 5.4, CostUSDUsed: 4.32, PeriodEnd: exampleExpires},
	api.WebhookQuotaExhausted: api.WebhookQuota{CreditUSD: 5.4, CostUSDUsed: 5.4, PeriodEnd: exampleExpires},
	api.WebhookEndpointTest:   api.WebhookTest{EndpointID: exampleWebhookEndpoint.ID},
}

func exampleDeployment(status, err string) api.WebhookDeployment {
	return api.WebhookDeployment{
		DeploymentID: "dep-7j5dz2q4m6w2", AppID: "app-4k6t2r7p3x5n", Status: status, GitCommit: "4f2c1d7e9b0a8c6d5e4f3a2b1c0d9e8f7a6b5c4d", Error: err,
	}
}

// addWebhooks describes what endpoints are sent: an event, whose data is of a type of
// its own.
func addWebhooks(r *openapi31.Reflector) error {
	envelope, err := component(r, api.WebhookEvent{})
	if err != nil {
		return err
	}
	for _, t := range api.WebhookEventTypes() {
		data := webhookData[t]
		if data == nil {
			return fmt.Errorf("%s has no example", t)
		}
		of, err := component(r, data)
		if err != nil {
			return err
		}
		example := toAny(api.WebhookEvent{ID: exampleWebhookDelivery.ID, Type: t, CreatedAt: exampleAt, Workspace: "ws-2j7p4t5r6sdk", Data: api.Object(core.Marshal(data))})
		o := openapi31.Operation{}
		o.WithTags("Webhooks").WithID(string(t)).WithSummary(string(t)).
			WithDescription("Signed in X-Service-Signature. Any 2xx within 10 seconds is success.")
		o.RequestBodyEns().RequestBodyEns().WithRequired(true).WithContentItem("application/json", openapi31.MediaType{
			Schema: map[string]any{"allOf": []any{envelope, map[string]any{"properties": map[string]any{
				"type": map[string]any{"const": t}, "data": of,
			}}}},
			Example: &example,
		})
		if err := r.SpecEns().AddWebhook(http.MethodPost, string(t), o); err != nil {
			return err
		}
	}
	return nil
}
