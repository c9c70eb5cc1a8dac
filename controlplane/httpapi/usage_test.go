package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/billing"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/usage"
)

var (
	_ Usage   = (*usage.Usage)(nil)
	_ Billing = (*billing.Billing)(nil)
)

type fakeUsage struct{}

func (fakeUsage) Get(_ context.Context, c core.Caller, month string) (api.Usage, error) {
	return fakeUsage{}.OfWorkspace(context.Background(), c.WorkspaceID, month)
}

func (fakeUsage) OfWorkspace(_ context.Context, workspaceID, month string) (api.Usage, error) {
	switch month {
	case "", "2026-11":
	default:
		return api.Usage{}, apierror.Invalid("invalid month", "want YYYY-MM")
	}
	out := exampleUsage
	out.WorkspaceID = workspaceID
	return out, nil
}

type fakeBilling struct{}

func (fakeBilling) Sync(context.Context, core.Caller) (api.BillingSync, error) {
	return api.BillingSync{SubscriptionStatus: "active", Tier: "pro"}, nil
}

func TestUsageIsJSONOrCSV(t *testing.T) {
	r := newRig(t)
	const lines = "month,product,resource,quantity,cost_microusd"
	for _, c := range []struct {
		target, accept string
		status         int
		kind, has      string
	}{
		{"/v1/usage", "", 200, "application/json", `"cost_microusd":12503`},
		{"/v1/usage?month=2026-11", "application/json", 200, "application/json", `"quantity":720.5`},
		{"/v1/usage?format=csv", "", 200, "text/csv", lines},
		{"/v1/usage", "text/csv", 200, "text/csv", "sandbox,cpu_seconds,720.5,5003"},
		{"/v1/usage?format=json", "text/csv", 200, "application/json", `"lines"`},
		{"/v1/usage?format=xml", "", 400, "application/json", "invalid format"},
		{"/v1/usage?format=", "", 400, "application/json", "invalid format"},
		{"/v1/usage?month=", "", 400, "application/json", "invalid month"},
		{"/v1/usage?month=2026-13", "", 400, "application/json", "invalid month"},
	} {
		w := r.call("GET", c.target, "tenant", "", "Accept", c.accept)
		if w.Code != c.status || !strings.HasPrefix(w.Header().Get("Content-Type"), c.kind) || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s (%s): %d %s %s", c.target, c.accept, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
	if w := r.call("GET", "/v1/admin/workspaces/ws-9/usage?format=csv", "operator", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ws-9,2026-11") {
		t.Errorf("operators: %d %s", w.Code, w.Body)
	}
	if w := r.call("POST", "/v1/billing/sync", "tenant", "{}"); w.Code != http.StatusOK {
		t.Errorf("sync: %d %s", w.Code, w.Body)
	}
}
