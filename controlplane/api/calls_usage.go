package api

import (
	"context"
	"net/url"
)

// Usage returns what the workspace has used in a month, "2006-01"; "": in this one.
func (c *Client) Usage(ctx context.Context, month string) (*Usage, error) {
	return into[Usage](ctx, c, usageCall(month, Version, "usage"))
}

// WorkspaceUsage returns what a workspace has used in a month (operators only).
func (c *Client) WorkspaceUsage(ctx context.Context, id, month string) (*Usage, error) {
	return into[Usage](ctx, c, usageCall(month, Version, "admin", "workspaces", id, "usage"))
}

func usageCall(month string, segments ...string) call {
	cl := get(segments...)
	if month != "" {
		cl.query = url.Values{"month": {month}}
	}
	return cl
}

// SyncBilling reads the workspace's subscription from the provider of payments now.
func (c *Client) SyncBilling(ctx context.Context) (*BillingSync, error) {
	cl, err := post(Empty{}, Version, "billing", "sync")
	if err != nil {
		return nil, err
	}
	return into[BillingSync](ctx, c, cl)
}
