package httpapi

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/stats"
)

// Metrics are the use cases of /v1/metrics, and of the metrics of one resource.
type Metrics interface {
	Sandboxes(ctx context.Context, c core.Caller, q stats.Query) ([]api.SandboxMetrics, error)
	DatabasesOverTime(ctx context.Context, c core.Caller, q stats.Query) ([]api.DatabaseMetrics, error)
	AppsOverTime(ctx context.Context, c core.Caller, q stats.Query) ([]api.AppsMetrics, error)
	FunctionsOverTime(ctx context.Context, c core.Caller, q stats.Query) ([]api.FunctionMetrics, error)
	Sandbox(ctx context.Context, c core.Caller, id string, history time.Duration) (api.SandboxUsage, error)
	Database(ctx context.Context, c core.Caller, id string, history time.Duration) (api.DatabaseUsage, error)
	App(ctx context.Context, c core.Caller, id string) (api.AppMetrics, error)
	Requests(ctx context.Context, c core.Caller, id string, tail int) ([]api.AppRequest, error)
	FollowRequests(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[api.AppRequest], error)
}

var (
	exampleDay     = api.Time{Time: time.Date(2026, time.November, 20, 0, 0, 0, 0, time.UTC)}
	exampleMetrics = api.SandboxMetrics{
		At: exampleDay, Day: "2026-11-20", Template: "base", Sandboxes: 214, Starts: 240, Wakes: 31, Hibernations: 35, Forks: 48, Deaths: 1,
		Boot:      api.Summary{Count: 240, P50: 124, P90: 171, P99: 402, Max: 611},
		Wake:      api.Summary{Count: 31, P50: 131, P90: 166, P99: 240, Max: 240},
		Hibernate: api.Summary{Count: 35, P50: 210, P90: 380, P99: 612, Max: 612},
	}
	exampleDatabaseMetrics = api.DatabaseMetrics{
		At: exampleDay, DatabaseID: exampleDatabase.ID, Hibernations: 4, Wakes: 4,
		Hibernate: api.Summary{Count: 4, P50: 512, P90: 733, P99: 733, Max: 733},
		Wake:      api.Summary{Count: 4, P50: 298, P90: 402, P99: 402, Max: 402},
	}
	exampleAppsMetrics = api.AppsMetrics{
		At: exampleDay, AppID: exampleApp.ID, Deployments: 5, FailedDeployments: 1, Wakes: 12,
		Deploy: api.Summary{Count: 4, P50: 41200, P90: 66120, P99: 66120, Max: 66120},
		Wake:   api.Summary{Count: 12, P50: 310, P90: 402, P99: 655, Max: 655},
		Requests: api.AppsRequests{
			Count: 1204, Statuses: api.StatusCounts{S2xx: 1180, S3xx: 12, S4xx: 10, S5xx: 2}, P50MS: 18.5, P95MS: 84.1, P99MS: 96.8,
		},
	}
	exampleFunctionMetrics = api.FunctionMetrics{
		At: exampleDay, FunctionID: exampleFunction.ID, Deployments: 2, Wakes: 40,
		Deploy: api.Summary{Count: 2, P50: 9120, P90: 9804, P99: 9804, Max: 9804},
		Wake:   api.Summary{Count: 40, P50: 288, P90: 391, P99: 602, Max: 602},
	}
)

// metricsRoutes are the routes that the event store answers.
func metricsRoutes() []route {
	day := map[string]any{"type": "string", "format": "date"}
	query := func(of, what string) []parameter {
		return []parameter{
			{name: "from", description: "The first day, in UTC; 30 days unless given, or 2 with hours.", schema: day},
			{name: "to", description: "The last day, in UTC; today unless given.", schema: day},
			{name: "bucket", description: "`day`, unless given, for at most 92 days; or `hour`, for at most 7.", schema: map[string]any{"type": "string", "enum": []any{"day", "hour"}}},
			{name: of, description: "Only this " + what + "; all when empty.", schema: aString},
		}
	}
	const kept = "The newest first; what had no event in a day or an hour is not there. Events are kept for 90 days, and counted a moment after they happen."
	failures := append(refusals(apierror.EInvalid, "invalid from", "invalid to", "invalid bucket", "invalid time range", "too many rows", "invalid query"),
		append(refusals(apierror.ERateLimited, "too many questions at once"), refusals(apierror.EUnavailable, "event store unavailable")...)...)
	return []route{
		{get, "/v1/metrics/sandboxes", workspace, (*API).sandboxMetrics, operation{
			id: "sandboxMetrics", tag: "Metrics", summary: "Count and measure the workspace's sandboxes by time and template",
			detail: kept, query: query("template", "template"), status: 200, answer: []api.SandboxMetrics{exampleMetrics}, failures: failures,
		}},
		{get, "/v1/metrics/databases", workspace, (*API).databaseMetrics, operation{
			id: "databaseMetrics", tag: "Metrics", summary: "Count and measure what the workspace's databases do, by time and database",
			detail: kept, query: query("database", "database"), status: 200, answer: []api.DatabaseMetrics{exampleDatabaseMetrics}, failures: failures,
		}},
		{get, "/v1/metrics/apps", workspace, (*API).appsMetrics, operation{
			id: "appsMetrics", tag: "Metrics", summary: "Count and measure deployments, wakes and requests of the workspace's apps, by time and app",
			detail: kept + " Requests are those of whole hours, a minute after they were answered at the latest.", query: query("app", "app"), status: 200, answer: []api.AppsMetrics{exampleAppsMetrics}, failures: failures,
		}},
		{get, "/v1/metrics/functions", workspace, (*API).functionMetrics, operation{
			id: "functionMetrics", tag: "Metrics", summary: "Count and measure deployments and wakes of the workspace's functions, by time and function",
			detail: kept, query: query("function", "function"), status: 200, answer: []api.FunctionMetrics{exampleFunctionMetrics}, failures: failures,
		}},
	}
}

func (a *API) sandboxMetrics(c *gin.Context) error {
	return overTime(c, "template", a.cfg.Metrics.Sandboxes)
}

func (a *API) databaseMetrics(c *gin.Context) error {
	return overTime(c, "database", a.cfg.Metrics.DatabasesOverTime)
}

func (a *API) appsMetrics(c *gin.Context) error {
	return overTime(c, "app", a.cfg.Metrics.AppsOverTime)
}

func (a *API) functionMetrics(c *gin.Context) error {
	return overTime(c, "function", a.cfg.Metrics.FunctionsOverTime)
}

// overTime answers with what a query over time finds. of is the parameter that selects
// one of what is counted.
func overTime[T any](c *gin.Context, of string, find func(ctx context.Context, c core.Caller, q stats.Query) ([]T, error)) error {
	var q stats.Query
	var err error
	if q.From, err = dayParam(c, "from"); err != nil {
		return err
	}
	if q.To, err = dayParam(c, "to"); err != nil {
		return err
	}
	switch bucket, given := c.GetQuery("bucket"); {
	case bucket == "hour":
		q.Hourly = true
	case given && bucket != "day":
		return invalid("invalid bucket", "want day or hour")
	}
	if q.Label = c.Query(of); len(q.Label) > maxID {
		return invalid("invalid "+of, "it is too long")
	}
	rows, err := find(c.Request.Context(), callerOf(c), q)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(rows))
}

// dayParam returns a day from the query, or the zero time if it is absent.
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
