package api

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
)

// AppMetrics is the answer of GET /v1/apps/{id}/metrics: what all replicas together have
// counted of the requests to an app since each of them started.
type AppMetrics struct {
	AppID        string          `json:"app_id"`
	Status       AppStatus       `json:"status"`
	Replicas     []string        `json:"replicas"`      // whose counts these are
	Missing      []string        `json:"missing"`       // replicas that did not answer
	Since        *Time           `json:"since"`         // when the first of them began to count; null: none has seen a request
	OpenRequests int             `json:"open_requests"` // in progress, with those that wait for a wake
	Wakes        int64           `json:"wakes"`         // that requests have waited for
	Requests     RequestCounts   `json:"requests"`
	Minutes      []AppMinute     `json:"minutes"` // of the last hour, oldest first; those with a request
	Instances    []InstanceUsage `json:"instances"`
}

// RequestCounts are requests that have ended.
type RequestCounts struct {
	Count         int64        `json:"count"`
	Statuses      StatusCounts `json:"statuses"`
	Classes       []ClassCount `json:"classes"`
	Held          int64        `json:"held"`           // waited while the app woke
	ReceivedBytes int64        `json:"received_bytes"` // of bodies
	SentBytes     int64        `json:"sent_bytes"`     // of bodies; not those of a WebSocket
	Latency       Latency      `json:"latency"`
}

// StatusCounts counts requests by the first digit of their status.
type StatusCounts struct {
	None int64 `json:"none"` // the client left before an answer
	S1xx int64 `json:"1xx"`  // upgraded, to a WebSocket
	S2xx int64 `json:"2xx"`
	S3xx int64 `json:"3xx"`
	S4xx int64 `json:"4xx"`
	S5xx int64 `json:"5xx"`
}

// ClassCount counts requests of one class: real, served, quiet or monitor.
type ClassCount struct {
	Class string `json:"class"`
	Count int64  `json:"count"`
}

// Latency is how long it took until answers began.
type Latency struct {
	SumMS   int64           `json:"sum_ms"`
	P50MS   float64         `json:"p50_ms"` // estimated from the buckets, as the other two
	P95MS   float64         `json:"p95_ms"`
	P99MS   float64         `json:"p99_ms"`
	Buckets []LatencyBucket `json:"buckets"` // by rising bounds, which never change
}

// LatencyBucket counts what took longer than the bucket before has, and up to its bound.
type LatencyBucket struct {
	UpToMS *int64 `json:"up_to_ms"` // null: no bound
	Count  int64  `json:"count"`
}

// AppMinute is one minute of an app's requests.
type AppMinute struct {
	At            Time    `json:"at"` // its beginning
	Requests      int64   `json:"requests"`
	Errors        int64   `json:"errors"` // of them, with a status from 500
	P50MS         float64 `json:"p50_ms"`
	P95MS         float64 `json:"p95_ms"`
	ReceivedBytes int64   `json:"received_bytes"`
	SentBytes     int64   `json:"sent_bytes"`
}

// InstanceUsage is what one instance of an app uses, or why that is not known.
type InstanceUsage struct {
	SandboxID    string         `json:"sandbox_id"`
	DeploymentID string         `json:"deployment_id"`
	Error        string         `json:"error,omitempty"`
	Usage        *ResourceUsage `json:"usage"`
}

// AppRequest is a request to an app that has ended.
type AppRequest struct {
	At            Time   `json:"at"`         // when it began
	RequestID     string `json:"request_id"` // of its X-Request-Id
	Replica       string `json:"replica"`    // that has served it
	Method        string `json:"method"`
	Path          string `json:"path"`               // escaped as in a URL, without the query
	PathCut       bool   `json:"path_cut,omitempty"` // it was longer
	Status        int    `json:"status"`             // 0: the client left before an answer
	Class         string `json:"class"`
	Held          bool   `json:"held,omitempty"` // it waited while the app woke
	FirstByteMS   int64  `json:"first_byte_ms"`
	DurationMS    int64  `json:"duration_ms"`
	ReceivedBytes int64  `json:"received_bytes"`
	SentBytes     int64  `json:"sent_bytes"`
}

// GetAppMetrics returns the requests to an app, and what its instances use.
func (c *Client) GetAppMetrics(ctx context.Context, id string) (*AppMetrics, error) {
	return into[AppMetrics](ctx, c, get(Version, "apps", id, "metrics"))
}

// AppRequests returns the latest requests to an app, oldest first, at most so many.
func (c *Client) AppRequests(ctx context.Context, id string, tail int) ([]AppRequest, error) {
	out, err := into[[]AppRequest](ctx, c, appRequests(id, tail))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// FollowAppRequests calls each with the latest requests and then with those that end,
// until the app is deleted, ctx ends, each returns an error, or the stream breaks, which
// is an error.
func (c *Client) FollowAppRequests(ctx context.Context, id string, tail int, each func(AppRequest) error) error {
	cl := appRequests(id, tail)
	cl.query.Set("follow", "true")
	s, err := c.listen(ctx, cl)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case name == "error":
			return streamError(data)
		}
		var r AppRequest
		if err := decodeEvent(data, &r); err != nil {
			return err
		}
		if err := each(r); err != nil {
			return err
		}
	}
}

func appRequests(id string, tail int) call {
	cl := get(Version, "apps", id, "requests")
	cl.query = url.Values{"tail": {strconv.Itoa(tail)}}
	return cl
}
