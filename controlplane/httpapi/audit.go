package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Audit is the log of who did what.
type Audit interface {
	// Record writes the entry of an act that no transaction wrote.
	Record(ctx context.Context, act *core.Act, outcome, message string) error
	List(ctx context.Context, q api.AuditQuery, o core.ListOptions) (page []api.AuditEntry, next string, err error)
	ListOf(ctx context.Context, c core.Caller, orgID string, q api.AuditQuery, o core.ListOptions) (page []api.AuditEntry, next string, err error)
}

// told are the operations that the audit log tells beside those that audited derives.
var told = map[string]bool{
	"backup":           true, // it contains everything
	"failoverDatabase": true, "resetCredentials": true, "rotateWebhookSecret": true,
	"promote":     true, // it may delete siblings
	"createToken": true, "createOrg": true, "patchOrg": true, "inviteMember": true, "patchMember": true, "acceptInvitation": true,
}

// untold are the deletes of what is inside a sandbox, where the commands that it runs can
// delete as much.
var untold = map[string]bool{"removeFile": true, "removePort": true, "deleteCommand": true}

// audited reports whether the audit log tells a request to the route: what operators
// change, what tenants destroy, and what concerns keys and people.
func (rt *route) audited() bool {
	switch {
	case rt.doc.proxied:
		return false // a tenant's program decides what it means
	case rt.access == operator && rt.method != get:
		return true
	case rt.method == del && (rt.access == workspace || rt.access == jwtOnly):
		return !untold[rt.doc.id]
	}
	return told[rt.doc.id]
}

// resourcePath returns what a request acts on: the path up to its last parameter. Tokens
// in it are secrets.
func (rt *route) resourcePath(c *gin.Context) string {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(rt.path, "/v1/"), "admin/"), "/")
	end := 0
	for i, p := range parts {
		name, ok := strings.CutPrefix(p, ":")
		switch {
		case !ok:
			continue
		case name == "token":
			return ""
		}
		parts[i], end = c.Param(name), i+1
	}
	return strings.Join(parts[:end], "/")
}

// actOf returns the request as an act, or nil if the audit log does not tell it.
func (rt *route) actOf(c *gin.Context) *core.Act {
	if !rt.audited() || c.Request.Method != rt.method { // a HEAD of a backup reads nothing
		return nil
	}
	caller := callerOf(c)
	if caller.RequestID == "" {
		return nil // nobody in particular
	}
	if rt.access == operator && caller.Admin && strings.HasPrefix(rt.path, "/v1/admin/workspaces/:id") {
		caller.WorkspaceID = c.Param("id")
	}
	return core.NewAct(caller, rt.doc.id, rt.resourcePath(c))
}

// perform runs the route's handler. If the audit log tells the request, its first
// transaction writes the entry; what had none, or ended in an error, gets one here.
func (a *API) perform(c *gin.Context, rt *route) error {
	act := rt.actOf(c)
	if act == nil {
		return rt.handle(a, c)
	}
	c.Request = c.Request.WithContext(core.WithAct(c.Request.Context(), act))
	err := rt.handle(a, c)
	switch {
	case err == nil && !act.Written():
		a.record(c, act, core.OutcomeOK, "")
	case err != nil:
		a.recordError(c, rt, act, err)
	}
	return err
}

// recordError records what went wrong. Of tenants' mistakes only what they may not do is
// told.
func (a *API) recordError(c *gin.Context, rt *route, act *core.Act, err error) {
	e, status := classify(c.Request.Context(), err)
	unbegun := act.OfTenant() && !act.Written()
	switch {
	case status == http.StatusTooManyRequests:
	case unbegun && callerOf(c).WorkspaceID == "": // there is none whose log would tell it, and the operators' is not for strangers to fill
	case unbegun && status == statusClientGone: // it has no effect without its entry, and costs its sender nothing
	case act.Written() || status >= 499:
		a.record(c, act, core.OutcomeFailed, e.Message)
	case rt.access == operator || e.Code == apierror.EForbidden:
		a.record(c, act, core.OutcomeRefused, e.Message)
	}
}

// recordPatience limits the time for an entry after the answer is known.
const recordPatience = 5 * time.Second

func (a *API) record(c *gin.Context, act *core.Act, outcome, message string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), recordPatience) // the client may be gone
	defer cancel()
	if err := a.cfg.Audit.Record(ctx, act, outcome, message); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "an entry of the audit log was not written",
			slog.String("request_id", requestID(c)), slog.String("route", routeOf(c)), slog.String("outcome", outcome), slog.Any("error", err))
	}
}

var auditParameters = []parameter{
	{"actor", "only what this actor did: an entry's actor_id", aString, false},
	{"action", "only this action: an operationId, or signUp, signIn, firstUseOfToken, moreActs, joinAgent", aString, false},
	{"outcome", "only what ended so", map[string]any{"enum": []string{core.OutcomeOK, core.OutcomeRefused, core.OutcomeFailed}}, false},
	{"since", "only this and later", map[string]any{"type": "string", "format": "date-time"}, false},
	{"until", "only earlier", map[string]any{"type": "string", "format": "date-time"}, false},
}

// auditQuery reads the filters, and returns them also for the link to the next page.
func auditQuery(c *gin.Context) (in api.AuditQuery, filters []string, err error) {
	names := []string{"workspace", "actor", "action", "outcome", "since", "until"}
	q, err := queryOf(c, names...)
	if err != nil {
		return in, nil, err
	}
	in = api.AuditQuery{WorkspaceID: q.Get("workspace"), ActorID: q.Get("actor"), Action: q.Get("action"), Outcome: q.Get("outcome")}
	switch in.Outcome {
	case core.OutcomeOK, core.OutcomeRefused, core.OutcomeFailed:
	default:
		if q.Has("outcome") {
			return in, nil, invalid("invalid outcome", "outcome is ok, refused or failed")
		}
	}
	if in.Since, err = timeOf(q, "since"); err != nil {
		return in, nil, err
	}
	if in.Until, err = timeOf(q, "until"); err != nil {
		return in, nil, err
	}
	for _, name := range names {
		if q.Has(name) {
			filters = append(filters, name, q.Get(name))
		}
	}
	return in, filters, nil
}

func (a *API) listAudit(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	q, filters, err := auditQuery(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Audit.List(c.Request.Context(), q, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next, filters...)
}

func (a *API) listOrgAudit(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	q, filters, err := auditQuery(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Audit.ListOf(c.Request.Context(), callerOf(c), c.Param("id"), q, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next, filters...)
}

var exampleAudit = func() api.AuditEntry {
	e := api.AuditEntry{
		Sequence: 1, Time: api.Time{Time: time.Date(2026, time.November, 1, 9, 30, 0, 0, time.UTC)}, WorkspaceID: exampleOrg.ID,
		ActorType: core.ActorUser, ActorID: exampleMember.UserID, Action: "deleteDatabase",
		Resource: "databases/3f0c9a52-7c1e-4d0b-9a55-6d6a3f0b2c11", RequestID: "req_k3v7q2xax5n2w7jq4mz6", Outcome: core.OutcomeOK,
	}
	e.Hash = e.Digest()
	return e
}()

// auditRoutes are the routes of the audit log.
func auditRoutes() []route {
	failures := refusals(apierror.EInvalid, "invalid outcome", "invalid since", "invalid until")
	const detail = "Each entry has the hash of the one before it in its log, so that a changed or a missing one shows. Entries of the last second may have no place yet."
	return []route{
		{get, "/v1/admin/audit", operator, (*API).listAudit, operation{
			id: "listAudit", tag: "Administration", summary: "List who did what in all workspaces, newest first", detail: detail, list: true,
			query:  append([]parameter{{"workspace", "only the log of this workspace; operators: what concerns none", aString, false}}, auditParameters...),
			status: 200, answer: []api.AuditEntry{exampleAudit}, failures: failures,
		}},
		{get, "/v1/orgs/:id/audit", jwtOnly, (*API).listOrgAudit, operation{
			action: managing, id: "listOrgAudit", tag: "Organizations", summary: "List who did what in an organization, newest first", detail: detail, list: true,
			query: auditParameters, status: 200, answer: []api.AuditEntry{exampleAudit}, failures: failures,
		}},
	}
}
