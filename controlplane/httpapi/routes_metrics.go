package httpapi

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Metrics are the use cases of /v1/metrics.
type Metrics interface {
	Sandboxes(ctx context.Context, c core.Caller, q sandbox.MetricsQuery) ([]api.SandboxMetrics, error)
}

var exampleMetrics = api.SandboxMetrics{
	Day: "2026-11-20", Template: "base", Sandboxes: 214, Starts: 240, Wakes: 31, Forks: 48, Deaths: 1,
	Boot: api.Summary{Count: 240, P50: 124, P90: 171, P99: 402, Max: 611},
	Wake: api.Summary{Count: 31, P50: 131, P90: 166, P99: 240, Max: 240},
}

// metricsRoutes are what the event store answers.
func metricsRoutes() []route {
	day := map[string]any{"type": "string", "format": "date"}
	return []route{
		{get, "/v1/metrics/sandboxes", workspace, (*API).sandboxMetrics, operation{
			id: "sandboxMetrics", tag: "Metrics", summary: "Count and measure the workspace's sandboxes by day and template",
			detail: "The newest day first. Events are kept for 90 days, and counted a moment after they happen.",
			query: []parameter{
				{name: "from", description: "The first day, in UTC; 30 days unless given.", schema: day},
				{name: "to", description: "The last day, in UTC; today unless given.", schema: day},
				{name: "template", description: "Only this one; all when empty.", schema: aString},
			},
			status: 200, answer: []api.SandboxMetrics{exampleMetrics},
			failures: append(refusals(apierror.EInvalid, "invalid from", "invalid to", "invalid time range", "invalid query"),
				refusals(apierror.EUnavailable, "event store unavailable")...),
		}},
	}
}

func (a *API) sandboxMetrics(c *gin.Context) error {
	var q sandbox.MetricsQuery
	var err error
	if q.From, err = dayParam(c, "from"); err != nil {
		return err
	}
	if q.To, err = dayParam(c, "to"); err != nil {
		return err
	}
	q.Template = c.Query("template")
	days, err := a.cfg.Metrics.Sandboxes(c.Request.Context(), callerOf(c), q)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(days))
}

// dayParam reads a day of the query; the zero time where it is not given.
func dayParam(c *gin.Context, name string) (time.Time, error) {
	text, given := c.GetQuery(name)
	if !given {
		return time.Time{}, nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}, invalid("invalid "+name, "want a day such as 2026-11-20")
	}
	return day, nil
}
