package api

import (
	"context"
	"net/url"
	"time"
)

// ListAudit returns one page of the audit log of all workspaces, newest first (operators
// only).
func (c *Client) ListAudit(ctx context.Context, q AuditQuery, p Page) ([]AuditEntry, string, error) {
	cl := get(Version, "admin", "audit")
	cl.query = q.query(p)
	if q.WorkspaceID != "" {
		cl.query.Set("workspace", q.WorkspaceID)
	}
	return pageOf[AuditEntry](ctx, c, cl)
}

// ListOrgAudit returns one page of the audit log of an organization, newest first (JWT of
// an owner or admin only).
func (c *Client) ListOrgAudit(ctx context.Context, orgID string, q AuditQuery, p Page) ([]AuditEntry, string, error) {
	cl := get(Version, "orgs", orgID, "audit")
	cl.query = q.query(p)
	return pageOf[AuditEntry](ctx, c, cl)
}

func (q AuditQuery) query(p Page) url.Values {
	out := p.query()
	if out == nil {
		out = url.Values{}
	}
	for name, v := range map[string]string{"actor": q.ActorID, "action": q.Action, "outcome": q.Outcome} {
		if v != "" {
			out.Set(name, v)
		}
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			out.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return out
}
