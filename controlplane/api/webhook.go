package api

// WebhookEventType is what a webhook tells of.
type WebhookEventType string

// The types, each with what its data is.
const (
	WebhookDeploymentBuilding  WebhookEventType = "deployment.building"         // WebhookDeployment
	WebhookDeploymentSucceeded WebhookEventType = "deployment.succeeded"        // WebhookDeployment
	WebhookDeploymentFailed    WebhookEventType = "deployment.failed"           // WebhookDeployment
	WebhookFailoverStarted     WebhookEventType = "database.failover.started"   // WebhookFailover
	WebhookFailoverCompleted   WebhookEventType = "database.failover.completed" // WebhookFailover
	WebhookQuotaWarning        WebhookEventType = "quota.warning"               // WebhookQuota
	WebhookQuotaExhausted      WebhookEventType = "quota.exhausted"             // WebhookQuota
	WebhookEndpointTest        WebhookEventType = "endpoint.test"               // WebhookTest
)

// WebhookEventTypes lists every type.
func WebhookEventTypes() []WebhookEventType {
	return []WebhookEventType{
		WebhookDeploymentBuilding, WebhookDeploymentSucceeded, WebhookDeploymentFailed, WebhookFailoverStarted, WebhookFailoverCompleted,
		WebhookQuotaWarning, WebhookQuotaExhausted, WebhookEndpointTest,
	}
}

// WebhookEndpoint is a URL that events of a workspace are sent to.
type WebhookEndpoint struct {
	ID        string             `json:"id"`
	URL       string             `json:"url"`
	Events    []WebhookEventType `json:"events"` // that are sent; empty: all
	CreatedAt Time               `json:"created_at"`
}

// NewWebhookEndpoint is an endpoint with its signing secret, which is shown when it is
// made and when it is changed.
type NewWebhookEndpoint struct {
	WebhookEndpoint
	Secret string `json:"secret"` // whsec_…
}

// CreateWebhookEndpoint is the body of POST /v1/webhooks/endpoints.
type CreateWebhookEndpoint struct {
	URL    string             `json:"url" minLength:"1" maxLength:"2048"` // https, of a host on the public internet
	Events []WebhookEventType `json:"events,omitempty"`                   // default and empty: all
}

// PatchWebhookEndpoint is the body of PATCH /v1/webhooks/endpoints/{id}. What is absent
// stays as it is.
type PatchWebhookEndpoint struct {
	URL    Patch[string]             `json:"url,omitzero" minLength:"1" maxLength:"2048"`
	Events Patch[[]WebhookEventType] `json:"events,omitzero"` // empty: all
}

// WebhookStatus is where a delivery stands.
type WebhookStatus string

// A delivery is pending until its first attempt has ended, and failed while another one
// is to come. After the last one it is dead, until it is replayed.
const (
	WebhookPending   WebhookStatus = "pending"
	WebhookDelivered WebhookStatus = "delivered"
	WebhookFailed    WebhookStatus = "failed"
	WebhookDead      WebhookStatus = "dead"
)

// WebhookDelivery is one event on its way to one endpoint.
type WebhookDelivery struct {
	ID            string           `json:"id"` // wd_…, the id of the event
	Type          WebhookEventType `json:"type"`
	Status        WebhookStatus    `json:"status"`
	Attempts      []WebhookAttempt `json:"attempts"` // oldest first, of them the last 20
	CreatedAt     Time             `json:"created_at"`
	NextAttemptAt *Time            `json:"next_attempt_at"` // null: there is none to come
	Error         *string          `json:"error"`           // why it is dead without another attempt
}

// WebhookAttempt is one request to an endpoint.
type WebhookAttempt struct {
	At         Time    `json:"at"`
	StatusCode *int    `json:"status_code"` // null: there was no answer
	Error      *string `json:"error"`       // why it was no success
	DurationMS *int64  `json:"duration_ms"` // null: it is under way, or was interrupted
}

// WebhookEvent is the body of a delivery.
type WebhookEvent struct {
	ID        string           `json:"id"` // the same at each attempt: an event that was received already has a known one
	Type      WebhookEventType `json:"type"`
	CreatedAt Time             `json:"created_at"`
	Workspace string           `json:"workspace"` // id of the workspace in which it happened
	Data      Object           `json:"data"`      // of the type that its event has
}

// WebhookDeployment is the data of deployment.building, deployment.succeeded and
// deployment.failed.
type WebhookDeployment struct {
	DeploymentID string `json:"deployment_id"`
	AppID        string `json:"app_id"`
	Status       string `json:"status"` // building, live or failed
	GitCommit    string `json:"git_commit"`
	Error        string `json:"error,omitempty"` // of deployment.failed
}

// WebhookFailover is the data of database.failover.started and
// database.failover.completed.
type WebhookFailover struct {
	DatabaseID string         `json:"database_id"`
	Label      string         `json:"label"`
	Status     DatabaseStatus `json:"status"`             // restoring, then running
	Forced     bool           `json:"forced"`             // it was running, and was stopped for it
	Detail     string         `json:"detail,omitempty"`   // of what is started: what it is restored from, and what is lost
	AgentID    string         `json:"agent_id,omitempty"` // of what is completed: the host that it is on now
}

// WebhookQuota is the data of quota.warning and quota.exhausted.
type WebhookQuota struct {
	CreditUSD   float64 `json:"credit_usd"`    // included in a month
	CostUSDUsed float64 `json:"cost_usd_used"` // so far
	PeriodEnd   Time    `json:"period_end"`    // when the next month's credit begins
}

// WebhookTest is the data of endpoint.test.
type WebhookTest struct {
	EndpointID string `json:"endpoint_id"`
}
