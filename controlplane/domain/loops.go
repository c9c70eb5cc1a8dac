package domain

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	loopLook = "domains in DNS"
	// atOnce bounds the looks into DNS under way.
	atOnce = 16
)

// Loops look for the records of domains, when each is due.
func (s *Domains) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{{Name: loopLook, Pass: func(ctx context.Context) { s.pass(ctx, t) }}}
}

func (s *Domains) pass(ctx context.Context, t *loops.Term) {
	view := t.Store.View()
	for _, d := range raftstore.UpTo(view, record.Domains, "due", record.DomainDue(t.Clock())) {
		if d.NextCheckAt.After(t.Clock()) {
			continue
		}
		t.Begin(loops.Job{What: loopLook, ID: d.ID}, atOnce, func() { s.check(ctx, t, d.ID) })
	}
}

// check looks for one domain's record. A leader that is lost before it commits what it
// has seen leaves the domain due, for the next one.
func (s *Domains) check(ctx context.Context, t *loops.Term, id string) {
	d, ok := raftstore.Get(t.Store.View(), record.Domains, id)
	if !ok || d.NextCheckAt.IsZero() || d.NextCheckAt.After(t.Clock()) {
		return // another pass has been faster
	}
	saw := s.look(ctx, d.Name)
	if ctx.Err() != nil {
		return
	}
	var after *record.Domain
	if !t.Update(ctx, loopLook, func(tx *raftstore.Tx) error {
		after = nil
		now, ok := raftstore.Get(tx, record.Domains, id)
		if !ok || now.ModifyIndex != d.ModifyIndex {
			return nil // what was seen may be older than what it is now
		}
		after, _ = s.settle(tx, now, saw)
		raftstore.Put(tx, record.Domains, after)
		return nil
	}) || after == nil || after.Status == d.Status {
		return
	}
	t.Logger.InfoContext(ctx, "domain has another status", "domain", d.Name, "app_id", d.AppID, "status", string(after.Status), "reason", after.Error)
}
