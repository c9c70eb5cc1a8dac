package core

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"unicode"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/redact"
)

// What an entry of the audit log says of its actor and its outcome.
const (
	ActorUser     = "user"
	ActorKey      = "key"
	ActorOperator = "operator"
	ActorAgent    = "agent"   // a host
	ActorReplica  = "replica" // the leader

	OutcomeOK      = "ok"      // it was done; what takes longer was begun
	OutcomeRefused = "refused" // nothing was done
	OutcomeFailed  = "failed"  // it was not done, not completely, or nobody knows
)

// maxAuditText limits each text of an entry, in bytes: paths and request ids are the
// client's.
const maxAuditText = 200

// Act is what a request does that the audit log has to tell. Core.Update writes its entry
// in the request's first transaction that writes anything, so that neither can be without
// the other.
type Act struct {
	who    string // whose share of the log it takes; "": none's
	tenant bool   // its actor is no operator

	mu      sync.Mutex
	entry   record.AuditEntry
	busy    bool // a transaction with the entry is under way
	written bool
}

// NewAct returns the act of a caller. resource is shortened as redact does.
func NewAct(c Caller, action, resource string) *Act {
	kind, id := actorOf(c)
	return &Act{who: answersFor(c), tenant: !c.Admin, entry: record.AuditEntry{
		Chain: cmp.Or(c.WorkspaceID, record.AuditOperators), ActorType: kind, ActorID: id,
		Action: action, Resource: auditText(resource), RequestID: auditText(c.RequestID),
	}}
}

// actorOf returns who a caller is. The id of a key becomes its prefix when the entry is
// written.
func actorOf(c Caller) (kind, id string) {
	switch {
	case c.Admin:
		return ActorOperator, auditText(strings.TrimPrefix(c.UserID, "operator:"))
	case c.KeyID != "":
		return ActorKey, c.KeyID
	}
	return ActorUser, c.UserID
}

// auditText is a text as entries have it: without the ids of sandboxes, which are
// credentials, and without what would break a line or command the terminal of who reads it.
func auditText(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(redact.Text(s), "?"))
	if len(s) > maxAuditText {
		s = strings.ToValidUTF8(s[:maxAuditText], "")
	}
	return s
}

type actKey struct{}

// WithAct returns a context for the work of a request that the audit log has to tell.
func WithAct(ctx context.Context, a *Act) context.Context { return context.WithValue(ctx, actKey{}, a) }

func actOf(ctx context.Context) *Act {
	a, _ := ctx.Value(actKey{}).(*Act)
	return a
}

// Concerns names what a request acts on, where its path does not. Without an act it does
// nothing.
func Concerns(ctx context.Context, resource string) {
	if a := actOf(ctx); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.entry.Resource = auditText(resource)
	}
}

// InWorkspace says to whose log a request belongs, if it is not the caller's workspace.
func InWorkspace(ctx context.Context, workspaceID string) {
	if a := actOf(ctx); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.entry.Chain = workspaceID
	}
}

// OfTenant reports whether the act's actor is no operator.
func (a *Act) OfTenant() bool { return a.tenant }

// Written reports whether the act is committed: with its entry, unless its actor does more
// than the log tells.
func (a *Act) Written() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.written
}

// Chain returns to whose log the act belongs.
func (a *Act) Chain() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entry.Chain
}

// claim reports whether the caller's transaction is to have the entry.
func (a *Act) claim() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy || a.written {
		return false
	}
	a.busy = true
	return true
}

func (a *Act) release(written bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy, a.written = false, written
}

// as returns an entry of the act.
func (a *Act) as(outcome, message string) record.AuditEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entry
	e.Outcome, e.Error = outcome, auditText(message)
	return e
}

// PutAudit writes an entry into the audit log, in the transaction of what it tells. Its id,
// time and place are set here and later.
func PutAudit(tx *raftstore.Tx, e record.AuditEntry) {
	e.Meta, e.Time = record.Meta{ID: "aud-" + RandomText(20)}, tx.Now()
	if !hasChain(tx, e.Chain) {
		e.Chain = record.AuditOperators // what does not exist must not get a log
	}
	if e.ActorType == ActorKey {
		if k, ok := raftstore.Get(tx.Snapshot(), record.APIKeys, e.ActorID); ok {
			e.ActorID = k.Prefix // by which people know it
		}
	}
	raftstore.Put(tx, record.AuditEntries, &e)
}

// hasChain reports whether a workspace exists, also one that the transaction creates or
// deletes. Where it did before, nothing is guarded: others may change it meanwhile.
func hasChain(tx *raftstore.Tx, workspaceID string) bool {
	if _, before := raftstore.Get(tx.Snapshot(), record.Workspaces, workspaceID); before {
		return true
	}
	_, now := raftstore.Get(tx, record.Workspaces, workspaceID)
	return now
}

// Announce writes the entry of what has no transaction of its own, before it is done: after
// it this replica may not lead any more.
func (c *Core) Announce(ctx context.Context) error {
	a := actOf(ctx)
	if a == nil || !a.claim() {
		return nil
	}
	err := c.Store.Update(ctx, func(tx *raftstore.Tx) error {
		PutAudit(tx, a.as(OutcomeOK, ""))
		return nil
	})
	a.release(err == nil)
	return StoreError(err)
}
