package httpapi

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

var (
	exampleResourceUsage = api.ResourceUsage{
		At: exampleAt, Since: exampleAt, CPU: 1, CPUSeconds: 12.84, MemoryBytes: 187 << 20, MemoryLimitBytes: 512 << 20, DiskBytes: 96 << 20, DiskLimitBytes: 4096 << 20,
		NetworkReceivedBytes: 18432101, NetworkSentBytes: 402113, IntervalSeconds: 10,
		History: []api.UsageSample{{
			At: exampleAt, Seconds: 10, CPUSeconds: 1.204, MemoryBytes: 187 << 20, DiskBytes: 96 << 20, NetworkReceivedBytes: 80211, NetworkSentBytes: 3021,
		}},
	}
	exampleClients, exampleLag = 3, 12.5
)

// defaultUsageMinutes is how much history is returned unless the query says otherwise.
const defaultUsageMinutes = 10

// statsRoutes are the routes of what hosts measure now.
func statsRoutes() []route {
	minutes := []parameter{{name: "minutes", description: "How much history; 10 unless given.", schema: anInteger(0, api.MaxUsageMinutes)}}
	away := apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	bad := apierror.Error{Code: apierror.EInvalid, Message: "invalid minutes", Detail: "minutes must be an integer from 0 to 60"}
	return []route{
		{get, "/v1/sandboxes/:id/metrics", workspace, (*API).showSandboxUsage, operation{
			id: "sandboxUsage", tag: "Metrics", summary: "Measure what a sandbox uses and has used",
			detail: "In any status, and without waking it. The totals go on over hibernations; the history has a sample every ten seconds " +
				"while it runs, for an hour.",
			query: minutes, status: 200, answer: api.SandboxUsage{SandboxID: exampleSandbox.ID, Status: api.SandboxRunning, Usage: exampleResourceUsage},
			failures: []apierror.Error{
				bad, {Code: apierror.ENotFound, Message: "sandbox not found or not running", Detail: "its status is starting"},
				{Code: apierror.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"}, away,
			},
		}},
		{get, "/v1/databases/:id/metrics", workspace, (*API).showDatabaseUsage, operation{
			id: "databaseUsage", tag: "Metrics", summary: "Measure what a database uses and has used",
			detail: "In any status, and without waking it.",
			query:  minutes, status: 200, answer: api.DatabaseUsage{
				DatabaseID: exampleDatabase.ID, Status: api.DatabaseRunning, Clients: &exampleClients, ArchiveLagSeconds: &exampleLag, Usage: &exampleResourceUsage,
			},
			failures: []apierror.Error{bad, away},
		}},
	}
}

// historyParam returns how much history the query asks for.
func historyParam(c *gin.Context) (time.Duration, error) {
	q, err := queryOf(c, "minutes")
	if err != nil {
		return 0, err
	}
	minutes, err := integerOf(q, "minutes", 0, api.MaxUsageMinutes)
	if minutes == nil {
		return defaultUsageMinutes * time.Minute, err
	}
	return time.Duration(*minutes) * time.Minute, nil
}

func (a *API) showSandboxUsage(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	history, err := historyParam(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Metrics.Sandbox(c.Request.Context(), callerOf(c), id, history)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) showDatabaseUsage(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	history, err := historyParam(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Metrics.Database(c.Request.Context(), callerOf(c), id, history)
	if err != nil {
		return err
	}
	return ok(c, out)
}
