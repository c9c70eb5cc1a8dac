package record

import (
	"bytes"
	"slices"
	"time"
)

// WebhookEndpoint is a URL that a workspace's events are sent to.
type WebhookEndpoint struct {
	Meta
	WorkspaceID  string   `json:"workspace_id"`
	URL          string   `json:"url"`
	Events       []string `json:"events,omitempty"` // types; empty: all
	SecretSealed []byte   `json:"secret_sealed"`
	Rotated      bool     `json:"rotated,omitempty"` // the secret is not the first one
}

// Clone returns a deep copy.
func (e *WebhookEndpoint) Clone() *WebhookEndpoint {
	c := *e
	c.Events, c.SecretSealed = slices.Clone(e.Events), bytes.Clone(e.SecretSealed)
	return &c
}

// WebhookStatus is where a delivery stands.
type WebhookStatus string

// A delivery is pending until its first attempt has ended, and failed between two. A
// replay makes any of them pending again.
const (
	WebhookPending   WebhookStatus = "pending"
	WebhookDelivered WebhookStatus = "delivered"
	WebhookFailed    WebhookStatus = "failed"
	WebhookDead      WebhookStatus = "dead"
)

// Waiting reports whether another attempt is to come, or under way.
func (s WebhookStatus) Waiting() bool { return s == WebhookPending || s == WebhookFailed }

// WebhookDelivery is one event for one endpoint.
type WebhookDelivery struct {
	Meta
	EndpointID string        `json:"endpoint_id"`
	Type       string        `json:"type"`
	Body       []byte        `json:"body"` // as it is sent and signed, at each attempt
	Status     WebhookStatus `json:"status"`
	// Tries are the attempts that count: of the present round, and with a known end.
	Tries         int              `json:"tries,omitempty"`
	NextAttemptAt time.Time        `json:"next_attempt_at,omitzero"` // zero: there is none to come
	Attempts      []WebhookAttempt `json:"attempts,omitempty"`       // the latest last
	Error         string           `json:"error,omitempty"`          // why it was given up without another
}

// WebhookAttempt is written before its request is sent, and again when that has ended.
type WebhookAttempt struct {
	At         time.Time     `json:"at"`
	Ended      bool          `json:"ended,omitempty"`
	StatusCode int           `json:"status_code,omitempty"` // 0: no answer
	Error      string        `json:"error,omitempty"`       // why it was no success
	Duration   time.Duration `json:"duration_ns,omitempty"`
}

// Clone returns a deep copy.
func (d *WebhookDelivery) Clone() *WebhookDelivery {
	c := *d
	c.Body, c.Attempts = bytes.Clone(d.Body), slices.Clone(d.Attempts)
	return &c
}

// WebhookDue is the value of the index "due" of what is due at a time.
func WebhookDue(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

// due is when something is to be done for a delivery: at once where the end of an attempt
// is not known.
func (d *WebhookDelivery) due() []string {
	switch {
	case !d.Status.Waiting():
		return nil
	case d.Open() != nil:
		return []string{WebhookDue(time.Time{})}
	}
	return []string{WebhookDue(d.NextAttemptAt)}
}

// Open is the attempt whose end is not known; nil: there is none.
func (d *WebhookDelivery) Open() *WebhookAttempt {
	if n := len(d.Attempts); n > 0 && !d.Attempts[n-1].Ended {
		return &d.Attempts[n-1]
	}
	return nil
}
