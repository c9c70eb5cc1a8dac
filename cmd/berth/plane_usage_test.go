package main

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// planeBill is the same usage of every workspace, and what a provider of payments says.
type planeBill struct{}

func (planeBill) Get(ctx context.Context, c core.Caller, month string) (api.Usage, error) {
	return planeBill{}.OfWorkspace(ctx, c.WorkspaceID, month)
}

func (planeBill) OfWorkspace(_ context.Context, workspaceID, month string) (api.Usage, error) {
	switch month {
	case "", "2026-11":
	default:
		return api.Usage{}, apierror.Invalid("invalid month", "want YYYY-MM")
	}
	credit := int64(5_400_000)
	return api.Usage{
		WorkspaceID: workspaceID, Month: "2026-11", CostMicroUSD: 12_503, CreditMicroUSD: &credit, Paused: true,
		Lines: []api.UsageLine{{Product: "sandbox", Resource: "cpu_seconds", Quantity: 720.5, CostMicroUSD: 12_503}},
	}, nil
}

func (planeBill) Sync(context.Context, core.Caller) (api.BillingSync, error) {
	return api.BillingSync{SubscriptionStatus: "active", Tier: "pro"}, nil
}
