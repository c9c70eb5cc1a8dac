package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/stats"
)

var (
	exampleBound      = int64(100)
	exampleAppMetrics = api.AppMetrics{
		AppID: exampleApp.ID, Status: api.AppRunning, Replicas: []string{"r1", "r2"}, Missing: []string{}, Since: &exampleStarted, OpenRequests: 2, Wakes: 1,
		Requests: api.RequestCounts{
			Count: 1204, Statuses: api.StatusCounts{S2xx: 1180, S3xx: 12, S4xx: 10, S5xx: 2}, Classes: []api.ClassCount{{Class: "real", Count: 1204}},
			Held: 3, ReceivedBytes: 48213, SentBytes: 9104822,
			Latency: api.Latency{SumMS: 38211, P50MS: 18.5, P95MS: 84.1, P99MS: 96.8, Buckets: []api.LatencyBucket{{UpToMS: &exampleBound, Count: 1204}}},
		},
		Minutes:   []api.AppMinute{{At: exampleAt, Requests: 42, P50MS: 17.9, P95MS: 80.2, SentBytes: 318220}},
		Instances: []api.InstanceUsage{{SandboxID: exampleSandbox.ID, DeploymentID: exampleDeploymentID, Usage: &exampleResourceUsage}},
	}
	exampleAppRequest = api.AppRequest{
		At: exampleAt, RequestID: "req_3f2a7j4xw5v6n2m3q4z5", Replica: "r1", Method: "GET", Path: "/orders/42", Status: 200, Class: "real",
		FirstByteMS: 18, DurationMS: 19, SentBytes: 5120,
	}
)

// defaultRequests is how many requests are returned unless the query says otherwise.
const defaultRequests = 100

// trafficRoutes are the routes of the requests to an app.
func trafficRoutes() []route {
	busy := apierror.Error{Code: apierror.ERateLimited, Message: "too many questions at once"}
	return []route{
		{get, "/v1/apps/:id/metrics", workspace, ofApp((*API).showAppMetrics), operation{
			id: "appMetrics", tag: "Metrics", summary: "Count and measure the requests to an app, and what its instances use",
			detail: "Counted by the replicas that serve them, each since it started, and added up. Nothing of it is stored: a replica that restarts begins anew.",
			status: 200, answer: exampleAppMetrics, failures: []apierror.Error{busy},
		}},
		{get, "/v1/apps/:id/requests", workspace, ofApp((*API).showAppRequests), operation{
			id: "appRequests", tag: "Metrics", summary: "Read the latest requests to an app",
			detail: "Oldest first. Each replica keeps the latest 200 of an app in memory; they are gone when it restarts. " +
				"With `follow` server-sent events named `request`, also of those that end from now on, about a second late.",
			query: []parameter{
				{name: "tail", description: "At most so many of those that are there; 100 unless given.", schema: anInteger(1, stats.MaxRequests)},
				toFollow,
			},
			status: 200, answer: []api.AppRequest{exampleAppRequest}, acceptType: typeEvents,
			events:   map[string]any{"request": api.AppRequest{}, "error": api.ErrorBody{}},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid follow"), busy, apierror.Error{Code: apierror.ERateLimited, Message: "too many streams at once"}),
		}},
	}
}

func (a *API) showAppMetrics(c *gin.Context, id string) error {
	out, err := a.cfg.Metrics.App(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) showAppRequests(c *gin.Context, id string) error {
	q, err := queryOf(c, "tail", "follow")
	if err != nil {
		return err
	}
	tail := defaultRequests
	switch n, err := integerOf(q, "tail", 1, stats.MaxRequests); {
	case err != nil:
		return err
	case n != nil:
		tail = *n
	}
	following, err := booleanOf(q, "follow")
	if err != nil {
		return err
	}
	if !following {
		found, err := a.cfg.Metrics.Requests(c.Request.Context(), callerOf(c), id, tail)
		if err != nil {
			return err
		}
		return ok(c, orEmpty(found))
	}
	requests, err := a.cfg.Metrics.FollowRequests(c.Request.Context(), callerOf(c), id, tail)
	if err != nil {
		return err
	}
	return follow(c, requests, func(e *events, r api.AppRequest) error { return e.send("request", "", r) })
}
