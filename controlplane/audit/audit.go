// Package audit is the log of who did what: it lists the entries that core.Update and
// others write, gives each its place in the chain of its workspace, and removes the
// oldest. A chain is one workspace's, so that what happens in one does not wait for
// another, and so that its owners can verify it by themselves.
package audit

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config bounds the log. Zero is the default.
type Config struct {
	MaxPerWorkspace int // entries of one workspace; default 5,000
	Max             int // entries in all; default 50,000
}

// Log are the use cases of the audit log.
type Log struct {
	core *core.Core
	cfg  Config

	mu       sync.Mutex
	hour     time.Time
	refusals map[string]int // in that hour, by chain: entries of what was not done
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Log {
	cfg.MaxPerWorkspace = cmp.Or(cfg.MaxPerWorkspace, 5_000)
	cfg.Max = cmp.Or(cfg.Max, 50_000)
	return &Log{core: c, cfg: cfg, refusals: map[string]int{}}
}

// Joined writes that a host has joined, in the transaction that uses up its token.
func Joined(tx *raftstore.Tx, hostID string) {
	core.PutAudit(tx, record.AuditEntry{
		Chain: record.AuditOperators, ActorType: core.ActorAgent, ActorID: hostID, Action: "joinAgent", Resource: "agents/" + hostID, Outcome: core.OutcomeOK,
	})
}

// maxRefusals limits what the log has of one workspace in an hour of what was not done: it
// was refused, or has failed before it began. Whoever may do nothing in it must not be able
// to push out of it what others did.
const maxRefusals = 60

// Record writes the entry of an act that had no transaction, or that ended otherwise than
// its transaction said. What fails of operators' is always told.
func (l *Log) Record(ctx context.Context, act *core.Act, outcome, message string) error {
	undone := outcome == core.OutcomeRefused || outcome == core.OutcomeFailed && act.OfTenant() && !act.Written()
	if undone && !l.mayRefuse(act.Chain()) {
		return nil
	}
	return l.core.Tell(ctx, act, outcome, message)
}

func (l *Log) mayRefuse(chain string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.core.Clock(); now.Sub(l.hour) >= time.Hour || now.Before(l.hour) {
		l.hour = now
		clear(l.refusals)
	}
	l.refusals[chain]++
	return l.refusals[chain] <= maxRefusals
}

// List returns entries, newest first (operators).
func (l *Log) List(ctx context.Context, q api.AuditQuery, o core.ListOptions) (page []api.AuditEntry, next string, err error) {
	view, err := l.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	var rows []*record.AuditEntry
	if q.WorkspaceID != "" {
		rows = raftstore.Find(view, record.AuditEntries, "chain", q.WorkspaceID)
	} else {
		rows = raftstore.All(view, record.AuditEntries)
	}
	found := rows[:0:0]
	for _, e := range rows {
		if selects(q, e) {
			found = append(found, e)
		}
	}
	found, next, err = core.Paginate(found, o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(found, show), next, nil
}

// ListOf is List for the log of one workspace. Only its owners and admins may read it.
func (l *Log) ListOf(ctx context.Context, c core.Caller, orgID string, q api.AuditQuery, o core.ListOptions) (page []api.AuditEntry, next string, err error) {
	if c.WorkspaceID != orgID || orgID == "" {
		return nil, "", apierror.NotFound()
	}
	q.WorkspaceID = orgID
	return l.List(ctx, q, o)
}

func selects(q api.AuditQuery, e *record.AuditEntry) bool {
	return (q.ActorID == "" || q.ActorID == e.ActorID) && (q.Action == "" || q.Action == e.Action) && (q.Outcome == "" || q.Outcome == e.Outcome) &&
		!e.Time.Before(q.Since) && (q.Until.IsZero() || e.Time.Before(q.Until))
}

func show(e *record.AuditEntry) api.AuditEntry {
	out := api.AuditEntry{
		Sequence: e.Sequence, Time: api.Time{Time: e.Time}, WorkspaceID: e.Chain, ActorType: e.ActorType, ActorID: e.ActorID,
		Action: e.Action, Resource: e.Resource, RequestID: e.RequestID, Outcome: e.Outcome, Error: e.Error, Previous: e.Previous, Hash: e.Hash,
	}
	if e.Chain == record.AuditOperators {
		out.WorkspaceID = ""
	}
	return out
}
