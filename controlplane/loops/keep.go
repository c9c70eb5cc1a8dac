package loops

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// countEvery is how much of the time after a restore is written off at once.
const countEvery = time.Minute

// countDown brings the time to its end in which what hosts have and a restored
// backup does not know is left alone. Each leader counts what passes while it
// leads, so that no clock is compared with another one's.
func (l *Loops) countDown(ctx context.Context) {
	last := l.cfg.Clock()
	for {
		view := l.cfg.Store.View()
		keep := kept(view)
		step := min(keep, countEvery)
		if keep == 0 {
			last = l.cfg.Clock()
		} else if passed := l.cfg.Clock().Sub(last); passed >= step {
			if l.update(ctx, "keep", func(tx *raftstore.Tx) error {
				row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
				if !ok || row.ModifyIndex > view.Index() {
					return nil // restored again, or accepted
				}
				row = row.Clone()
				row.Keep = max(0, row.Keep-passed)
				raftstore.Put(tx, record.Clusters, row)
				return nil
			}) {
				last = l.cfg.Clock()
			}
		}
		if !pause(ctx, min(l.cfg.Every, max(step, time.Millisecond)), nil) {
			return
		}
	}
}

// kept is how much longer nothing without a row is deleted.
func kept(r raftstore.Reader) time.Duration {
	row, ok := raftstore.Get(r, record.Clusters, record.ClusterID)
	if !ok {
		return 0
	}
	return row.Keep
}

// keeping reports whether something without a row is left alone, and says so
// once of each.
func (l *Loops) keeping(ctx context.Context, first bool, what, id, agentID string) bool {
	if kept(l.cfg.Store.View()) == 0 {
		return false
	}
	if first {
		l.cfg.Logger.WarnContext(ctx, "what the restored backup does not know is kept for now", "what", what, "id", id, "agent_id", agentID)
	}
	return true
}

// sure reports whether a heartbeat is younger than the last change of a row that
// it does not agree with: of an older one nothing follows.
func (l *Loops) sure(table string, row *record.Meta, session hosts.Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := table + "/" + row.ID
	s, ok := l.rows[key]
	if !ok || s.index != row.ModifyIndex {
		s = sight{index: row.ModifyIndex, since: l.cfg.Clock()}
		l.rows[key] = s
	}
	return session.LastSeen.Sub(s.since) > l.cfg.OrphanGrace
}

// forgetRows drops what sure remembers of rows that were agreed on long since.
func (l *Loops) forgetRows() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, s := range l.rows {
		if l.cfg.Clock().Sub(s.since) > 10*expiryEvery {
			delete(l.rows, key)
		}
	}
}
