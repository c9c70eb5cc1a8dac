package eventstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Owned is a sandbox of an app or a database.
type Owned struct {
	SandboxID, WorkspaceID string
	Kind, ResourceID       string
	Deploys                bool // a deployment has made it
	CreatedAt              time.Time
}

// Deployment is a deployment of an app that has ended.
type Deployment struct {
	ID, WorkspaceID, AppID string
	EndedAt                time.Time
	Failed                 bool
	Took                   time.Duration
}

// Note stores what belongs to apps and databases, and events that no host can tell. What is
// stored already stays as it is.
func (s *Store) Note(ctx context.Context, owned []Owned, deployments []Deployment, events []hostapi.Event) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("note resources: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	for _, o := range owned {
		_, err := tx.ExecContext(ctx, s.d.args(`
			INSERT INTO owned (sandbox_id, workspace_id, kind, resource_id, deploys, ts_ms) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (sandbox_id) DO NOTHING`), o.SandboxID, o.WorkspaceID, o.Kind, o.ResourceID, number(o.Deploys), o.CreatedAt.UnixMilli())
		if err != nil {
			return fmt.Errorf("note a sandbox: %w", err)
		}
	}
	for _, d := range deployments {
		at := d.EndedAt.UnixMilli()
		_, err := tx.ExecContext(ctx, s.d.args(`
			INSERT INTO deployments (id, workspace_id, app_id, ts_ms, day, failed, ms) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (id) DO NOTHING`), d.ID, d.WorkspaceID, d.AppID, at, at/dayMS, number(d.Failed), max(d.Took.Milliseconds(), 0))
		if err != nil {
			return fmt.Errorf("note a deployment: %w", err)
		}
	}
	if len(events) > 0 {
		for i := range events {
			events[i].Seq = notedSeq(&events[i])
		}
		if err := s.insert(ctx, tx, events); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("note resources: %w", err)
	}
	return nil
}

// notedSeq is the Seq of an event that no host has numbered: the same in each replica, and
// above all that hosts give.
func notedSeq(e *hostapi.Event) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%d", e.SandboxID, e.Type, e.Time.UnixMilli())
	return 1<<62 | h.Sum64()>>2
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Deployed contains the deployments of one app that ended in one bucket of time.
type Deployed struct {
	Date        time.Time // its beginning, in UTC
	AppID       string
	Deployments int
	Failed      int
	Took        Summary // of those that went live
}

// Deployments returns a Deployed for each bucket and app that has any, in any order. The
// query's kind has no meaning.
func (s *Store) Deployments(ctx context.Context, q Query) ([]Deployed, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	q.Kind = ""
	const from = `(SELECT ts_ms / $5 AS bucket, app_id AS label, CASE WHEN failed = 1 THEN 'failed' ELSE 'live' END AS type, ms FROM deployments
		WHERE workspace_id = $1 AND day >= $2 AND day <= $3 AND (app_id = $4 OR $4 = '')) AS s`
	found := map[dayKey]*Deployed{}
	err := s.summarize(ctx, ranked(from, "ms IS NOT NULL"), q.args(), func(k dayKey, kind string, sum Summary) {
		d := found[k]
		if d == nil {
			d = &Deployed{Date: k.begins(&q), AppID: k.label}
			found[k] = d
		}
		d.Deployments += sum.Count
		if kind == "failed" {
			d.Failed = sum.Count
		} else {
			d.Took = sum
		}
	})
	if err != nil {
		return nil, fmt.Errorf("count deployments: %w", err)
	}
	if q.Most > 0 && len(found) > q.Most {
		return nil, ErrTooMany
	}
	out := make([]Deployed, 0, len(found))
	for _, d := range found {
		out = append(out, *d)
	}
	return out, nil
}
