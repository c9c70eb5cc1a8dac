package core

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ActionMore is the action of the entry which says that an actor does more in this hour
// than the log tells.
const ActionMore = "moreActs"

// Of what one actor does in a workspace in an hour, the log tells toldOfAll acts, and
// beyond those still toldOfKind of each kind. The log of a workspace has a bounded number
// of entries, and even the key with the fewest rights can do something again and again:
// create and delete, or rotate a secret. It must not push out what others did, and nothing
// may be refused for it, least of all a delete.
const (
	toldOfAll  = 100
	toldOfKind = 10
)

// telling is how the log tells an act.
type telling int

const (
	toldWhole telling = iota
	toldMore          // by the entry that there are more, the only one in the hour
	toldNot           // by this replica's log of lines alone
)

// shares counts, in the leader's memory, what actors have done in an hour.
type shares struct {
	mu    sync.Mutex
	hour  time.Time
	told  map[string]int  // by actor, and by actor and kind
	ended map[string]bool // by actor: the log says that there are more
}

// take says how an act is told. who is its actor in its workspace.
func (s *shares) take(now time.Time, who, kind string) telling {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.hour) >= time.Hour || now.Before(s.hour) || s.told == nil {
		s.hour, s.told, s.ended = now, map[string]int{}, map[string]bool{}
	}
	of := who + "\x00" + kind
	switch {
	case s.told[who] < toldOfAll, s.told[of] < toldOfKind:
		s.told[who]++
		s.told[of]++
		return toldWhole
	case !s.ended[who]:
		s.ended[who] = true
		return toldMore
	}
	return toldNot
}

// answersFor returns whose share of the log the acts of a caller take: a person's also by
// the keys that the person made, which may be any number. "": an operator's, who has no
// share, because everything that operators do is told.
func answersFor(c Caller) string {
	switch {
	case c.Admin:
		return ""
	case c.UserID != "" && c.UserID != ByOperator:
		return c.UserID
	}
	return c.KeyID
}

// telling says how the log tells an entry of who.
func (c *Core) telling(who string, e record.AuditEntry) telling {
	if who == "" {
		return toldWhole
	}
	return c.shares.take(c.Clock(), e.Chain+"\x00"+who, e.Action+" "+e.Outcome)
}

// putTold writes an entry as the log tells it.
func putTold(tx *raftstore.Tx, how telling, e record.AuditEntry) {
	switch how {
	case toldMore:
		e.Action, e.Resource, e.Outcome, e.Error = ActionMore, "", OutcomeOK, ""
	case toldNot:
		return
	}
	PutAudit(tx, e)
}

// PutShare is PutAudit for what the log tells of a key beside the acts of its requests. It
// takes a share of whoever answers for the key.
func (c *Core) PutShare(ctx context.Context, tx *raftstore.Tx, k *record.APIKey, e record.AuditEntry) {
	how := c.telling(answersFor(Caller{UserID: k.CreatedBy, KeyID: k.ID}), e)
	putTold(tx, how, e)
	c.logUntold(ctx, how, e)
}

// Tell writes the entry of an act that had no transaction, or that ended otherwise than
// its transaction said. What was not done at all takes no share of its actor's.
func (c *Core) Tell(ctx context.Context, a *Act, outcome, message string) error {
	e, how := a.as(outcome, message), toldWhole
	if a.Written() || outcome == OutcomeOK {
		how = c.telling(a.who, e)
	}
	err := c.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if a.OfTenant() && !hasChain(tx, e.Chain) {
			return nil // there is no log of theirs, and strangers must not fill the operators'
		}
		putTold(tx, how, e)
		return nil
	})
	if err == nil {
		c.logUntold(ctx, how, e)
	}
	return StoreError(err)
}

// logUntold logs an act that the audit log does not tell, so that whoever collects the
// logs has it.
func (c *Core) logUntold(ctx context.Context, how telling, e record.AuditEntry) {
	if how == toldWhole {
		return
	}
	c.Logger.LogAttrs(ctx, slog.LevelInfo, "an act is not in the audit log, because its actor does too much",
		slog.String("chain", e.Chain), slog.String("actor_type", e.ActorType), slog.String("actor_id", e.ActorID), slog.String("action", e.Action),
		slog.String("resource", e.Resource), slog.String("request_id", e.RequestID), slog.String("outcome", e.Outcome), slog.String("cause", e.Error))
}
