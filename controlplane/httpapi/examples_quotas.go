package httpapi

import (
	"slices"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/limits"
)

// quotaRefusals are what a workspace's quotas refuse to an operation.
func quotaRefusals(id string) []apierror.Error {
	most := func(what string, n int) apierror.Error {
		return apierror.Error{Code: apierror.ERateLimited, Message: "max " + what + " reached", Fields: map[string]any{"max": n, "active": n}}
	}
	switch id {
	case "createSandbox", "forkSandbox", "forkTree":
		return []apierror.Error{
			most("sandboxes", 10),
			{
				Code: apierror.ERateLimited, Message: "workspace resource quota exceeded",
				Fields: map[string]any{"cpu_used": 16, "cpu_max": 16, "memory_mb_used": 8192, "memory_mb_max": 16384},
			},
			limits.DiskRefusal(),
			{Code: apierror.ERateLimited, Message: "hourly create limit exceeded", Fields: map[string]any{"limit_per_hr": 200, "used_last_hr": 200}},
		}
	case "createSnapshot":
		return []apierror.Error{most("snapshots", 20), limits.DiskRefusal()}
	case "createVolume", "createDatabase", "cloneDatabase":
		return []apierror.Error{limits.DiskRefusal()}
	}
	return nil
}

// spentRefusals are what a month that is spent refuses: message, where the free credit is.
func spentRefusals(message string) []apierror.Error {
	return append([]apierror.Error{{
		Code: apierror.EQuota, Message: message, Fields: map[string]any{"credit_usd": 5.4, "cost_usd_used": 5.41},
		Detail: "the month's free credit of 5.40 USD is spent: the workspace is paused until it is upgraded or the next month begins, and nothing is deleted",
	}}, ceilingRefusals()...)
}

// ceilingRefusals are what the ceilings of a month refuse.
func ceilingRefusals() []apierror.Error {
	return []apierror.Error{
		{
			Code: apierror.ERateLimited, Message: "monthly cpu-seconds quota exceeded", Detail: "what runs goes on",
			Fields: map[string]any{"cpu_seconds_used": 3600, "cpu_seconds_max": 3600},
		},
		{
			Code: apierror.ERateLimited, Message: "monthly budget exceeded", Detail: "what runs goes on",
			Fields: map[string]any{"budget_usd": 20.0, "cost_usd_used": 20.01},
		},
	}
}

// runs reports whether an operation needs something that runs, and would wake it.
func runs(id string, failures []apierror.Error) bool {
	switch id {
	case "resumeSandbox", "wakeSandbox", "wakeDatabase", "queryDatabase", "batchDatabase", "transactDatabase", "databaseSchema":
		return true
	case "forkSandbox", "forkTree", "createSnapshot": // they wake nothing
		return false
	}
	return slices.ContainsFunc(failures, func(e apierror.Error) bool { return e.Message == errAsleep })
}

// errAsleep is what routes that need a running sandbox answer for a paused one.
const errAsleep = "sandbox not running (paused or hibernated) — resume/wake it first"
