package api

import (
	"context"
	"net/url"
)

// SandboxMetrics is one row of GET /v1/metrics/sandboxes: one template in one bucket of
// time.
type SandboxMetrics struct {
	At           Time    `json:"at"`  // the beginning of the bucket
	Day          string  `json:"day"` // its day in UTC, 2006-01-02
	Template     string  `json:"template"`
	Sandboxes    int     `json:"sandboxes"` // that had an event
	Starts       int     `json:"starts"`    // sandbox.running
	Wakes        int     `json:"wakes"`
	Hibernations int     `json:"hibernations"`
	Forks        int     `json:"forks"`  // children that started
	Deaths       int     `json:"deaths"` // failures: VMs that ended by themselves, or were lost
	Boot         Summary `json:"boot_ms"`
	Wake         Summary `json:"wake_ms"`
	Hibernate    Summary `json:"hibernate_ms"`
}

// DatabaseMetrics is one row of GET /v1/metrics/databases: one database in one bucket of
// time.
type DatabaseMetrics struct {
	At           Time    `json:"at"`
	DatabaseID   string  `json:"database_id"`
	Starts       int     `json:"starts"` // of its virtual machine: its create, and failovers
	Hibernations int     `json:"hibernations"`
	Wakes        int     `json:"wakes"`
	Deaths       int     `json:"deaths"`
	Boot         Summary `json:"boot_ms"`
	Hibernate    Summary `json:"hibernate_ms"`
	Wake         Summary `json:"wake_ms"`
}

// AppsMetrics is one row of GET /v1/metrics/apps: one app in one bucket of time.
type AppsMetrics struct {
	At                Time    `json:"at"`
	AppID             string  `json:"app_id"`
	Deployments       int     `json:"deployments"`        // that ended
	FailedDeployments int     `json:"failed_deployments"` // of them
	Wakes             int     `json:"wakes"`              // instances that were started for requests
	Deaths            int     `json:"deaths"`             // of instances
	Deploy            Summary `json:"deploy_ms"`          // of those that went live, from the start of the build
	Wake              Summary `json:"wake_ms"`

	Requests AppsRequests `json:"requests"`
}

// AppsRequests are the requests to one app in one bucket of time, as all replicas have
// counted them. Times are until the answer began.
type AppsRequests struct {
	Count    int64        `json:"count"`
	Statuses StatusCounts `json:"statuses"`
	P50MS    float64      `json:"p50_ms"`
	P95MS    float64      `json:"p95_ms"`
	P99MS    float64      `json:"p99_ms"`
}

// FunctionMetrics is one row of GET /v1/metrics/functions: one function in one bucket of
// time.
type FunctionMetrics struct {
	At                Time    `json:"at"`
	FunctionID        string  `json:"function_id"`
	Deployments       int     `json:"deployments"`        // that ended
	FailedDeployments int     `json:"failed_deployments"` // of them
	Wakes             int     `json:"wakes"`              // instances that were started for invocations
	Deaths            int     `json:"deaths"`             // of instances
	Deploy            Summary `json:"deploy_ms"`          // of those that went live, from the start of the build
	Wake              Summary `json:"wake_ms"`
}

// Summary is a distribution in milliseconds; all zero if nothing was measured.
type Summary struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// MetricsQuery selects what is counted. The zero value selects the last 30 days.
type MetricsQuery struct {
	From, To string // days such as 2006-01-02, both included
	Bucket   string // "day", the default, or "hour"
	Of       string // one template, database, app or function; empty: all
}

// SandboxMetrics returns counts and times of the workspace's sandboxes by day and
// template. from and to are days such as 2006-01-02; by default, the last 30 days.
func (c *Client) SandboxMetrics(ctx context.Context, from, to, template string) ([]SandboxMetrics, error) {
	return c.QuerySandboxMetrics(ctx, MetricsQuery{From: from, To: to, Of: template})
}

// QuerySandboxMetrics returns counts and times of the workspace's sandboxes by time and
// template.
func (c *Client) QuerySandboxMetrics(ctx context.Context, q MetricsQuery) ([]SandboxMetrics, error) {
	return rowsOf[SandboxMetrics](ctx, c, q, "sandboxes", "template")
}

// DatabaseMetrics returns counts and times of the workspace's databases.
func (c *Client) DatabaseMetrics(ctx context.Context, q MetricsQuery) ([]DatabaseMetrics, error) {
	return rowsOf[DatabaseMetrics](ctx, c, q, "databases", "database")
}

// AppsMetrics returns counts and times of the workspace's apps.
func (c *Client) AppsMetrics(ctx context.Context, q MetricsQuery) ([]AppsMetrics, error) {
	return rowsOf[AppsMetrics](ctx, c, q, "apps", "app")
}

// FunctionMetrics returns counts and times of the workspace's functions.
func (c *Client) FunctionMetrics(ctx context.Context, q MetricsQuery) ([]FunctionMetrics, error) {
	return rowsOf[FunctionMetrics](ctx, c, q, "functions", "function")
}

func rowsOf[T any](ctx context.Context, c *Client, q MetricsQuery, kind, of string) ([]T, error) {
	cl := get(Version, "metrics", kind)
	cl.query = url.Values{}
	for name, v := range map[string]string{"from": q.From, "to": q.To, "bucket": q.Bucket, of: q.Of} {
		if v != "" {
			cl.query.Set(name, v)
		}
	}
	out, err := into[[]T](ctx, c, cl)
	if err != nil {
		return nil, err
	}
	return *out, nil
}
