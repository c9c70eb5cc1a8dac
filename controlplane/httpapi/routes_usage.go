package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

var exampleUsage = api.Usage{
	WorkspaceID: "ws-q5t3nz7k", Month: "2026-11",
	Begins: api.Time{Time: time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)},
	Ends:   api.Time{Time: time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)},
	Lines: []api.UsageLine{
		{Product: "database", Resource: "memory_mib_seconds", Quantity: 3686400, CostMicroUSD: 7500},
		{Product: "sandbox", Resource: "cpu_seconds", Quantity: 720.5, CostMicroUSD: 5003},
	},
	CostMicroUSD: 12503, CreditMicroUSD: new(int64(5_400_000)),
}

var usageQuery = []parameter{
	{"month", "the month in UTC, YYYY-MM; default the present one", map[string]any{"type": "string", "pattern": `^[0-9]{4}-(0[1-9]|1[0-2])$`}, false},
	{"format", "csv for a line of CSV for each product and resource, as with Accept: text/csv", map[string]any{"enum": []string{"json", "csv"}}, false},
}

// usageRoutes are the routes of what workspaces use, and of what they pay.
func usageRoutes() []route {
	return []route{
		{get, "/v1/usage", workspace, (*API).usage, operation{
			id: "usage", tag: "Usage", summary: "Read what the workspace has used in a month, and what it cost",
			detail: "Hosts are asked once a minute: the last minute is not in it.",
			query:  usageQuery, status: 200, answer: exampleUsage, acceptType: "text/csv",
			failures: refusals(apierror.EInvalid, "invalid month", "invalid format"),
		}},
		{get, "/v1/admin/workspaces/:id/usage", operator, (*API).workspaceUsage, operation{
			id: "workspaceUsage", tag: "Administration", summary: "Read what a workspace has used in a month, also after it was deleted",
			query: usageQuery, status: 200, answer: exampleUsage, acceptType: "text/csv",
			failures: refusals(apierror.EInvalid, "invalid month", "invalid format"),
		}},
		{post, "/v1/billing/sync", workspace, (*API).syncBilling, operation{
			id: "syncBilling", tag: "Usage", summary: "Read the workspace's subscription from the provider of payments now",
			detail: "After an upgrade, so that a paused workspace need not wait.",
			body:   api.Empty{}, status: 200, answer: api.BillingSync{SubscriptionStatus: "active", Tier: "pro"},
			failures: []apierror.Error{
				{Code: apierror.ERateLimited, Message: "synced a moment ago", Detail: "the provider is asked about a workspace once in 10s"},
				{Code: apierror.ENotImplemented, Message: "billing is not set up", Detail: "the operator sets BERTH_STRIPE_KEY"},
				{Code: apierror.EBadGateway, Message: "billing provider unreachable"},
			},
		}},
	}
}
