package eventstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Query says which events count.
type Query struct {
	WorkspaceID string
	From, To    time.Time // whole days in UTC, both included
	Template    string    // empty: every one
}

// Day is what happened on one day in the sandboxes of one template.
type Day struct {
	Date      time.Time // midnight in UTC
	Template  string
	Sandboxes int // that had an event
	Starts    int
	Wakes     int
	Forks     int // children that came to life
	Deaths    int
	Boot      Summary
	Wake      Summary
}

// Summary is a distribution in milliseconds, its percentiles by nearest rank.
type Summary struct {
	Count              int
	P50, P90, P99, Max float64
}

// Sandboxes returns one Day for each day and template that has events, the
// newest day first.
func (s *Store) Sandboxes(ctx context.Context, q Query) ([]Day, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	days := map[dayKey]*Day{}
	if err := s.count(ctx, q, days); err != nil {
		return nil, fmt.Errorf("count sandbox events: %w", err)
	}
	if err := s.measure(ctx, q, days); err != nil {
		return nil, fmt.Errorf("measure sandbox events: %w", err)
	}
	out := make([]Day, 0, len(days))
	for _, d := range days {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Day) int {
		if c := b.Date.Compare(a.Date); c != 0 {
			return c
		}
		return strings.Compare(a.Template, b.Template)
	})
	return out, nil
}

type dayKey struct {
	day      int64
	template string
}

func (q Query) args() []any {
	return []any{q.WorkspaceID, q.From.UnixMilli() / dayMS, q.To.UnixMilli() / dayMS, q.Template}
}

const selected = ` FROM events WHERE workspace_id = $1 AND day >= $2 AND day <= $3 AND (template = $4 OR $4 = '') `

func (s *Store) count(ctx context.Context, q Query, days map[dayKey]*Day) error {
	rows, err := s.db.QueryContext(ctx, s.d.args(`
		SELECT day, template, COUNT(DISTINCT sandbox_id),
			SUM(CASE WHEN type = $5 THEN 1 ELSE 0 END),
			SUM(CASE WHEN type = $6 THEN 1 ELSE 0 END),
			SUM(CASE WHEN type IN ($7, $8) THEN 1 ELSE 0 END),
			SUM(CASE WHEN type IN ($9, $10) THEN 1 ELSE 0 END)`+selected+`GROUP BY day, template`),
		append(q.args(), string(hostapi.EventRunning), string(hostapi.EventWoken),
			string(hostapi.EventForked), string(hostapi.EventWarmForked),
			string(hostapi.EventVMDied), string(hostapi.EventOrphaned))...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k dayKey
		var d Day
		if err := rows.Scan(&k.day, &k.template, &d.Sandboxes, &d.Starts, &d.Wakes, &d.Forks, &d.Deaths); err != nil {
			return err
		}
		d.Date, d.Template = time.UnixMilli(k.day*dayMS).UTC(), k.template
		days[k] = &d
	}
	return rows.Err()
}

// measure ranks the durations in the database: ninety days of them need not
// come over.
func (s *Store) measure(ctx context.Context, q Query, days map[dayKey]*Day) error {
	rows, err := s.db.QueryContext(ctx, s.d.args(`
		WITH ranked AS (
			SELECT day, template, type, ms,
				ROW_NUMBER() OVER (PARTITION BY day, template, type ORDER BY ms) AS rank_,
				COUNT(*) OVER (PARTITION BY day, template, type) AS n
			`+selected+`AND type IN ($5, $6) AND ms IS NOT NULL
		)
		SELECT day, template, type, MAX(n),
			MAX(CASE WHEN rank_ = (n * 50 + 99) / 100 THEN ms END),
			MAX(CASE WHEN rank_ = (n * 90 + 99) / 100 THEN ms END),
			MAX(CASE WHEN rank_ = (n * 99 + 99) / 100 THEN ms END),
			MAX(ms)
		FROM ranked GROUP BY day, template, type`),
		append(q.args(), string(hostapi.EventRunning), string(hostapi.EventWoken))...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k dayKey
		var kind string
		var sum Summary
		var p50, p90, p99, highest sql.NullInt64
		if err := rows.Scan(&k.day, &k.template, &kind, &sum.Count, &p50, &p90, &p99, &highest); err != nil {
			return err
		}
		sum.P50, sum.P90, sum.P99, sum.Max = float64(p50.Int64), float64(p90.Int64), float64(p99.Int64), float64(highest.Int64)
		d := days[k]
		switch {
		case d == nil: // it came in between the two queries
		case kind == string(hostapi.EventRunning):
			d.Boot = sum
		default:
			d.Wake = sum
		}
	}
	return rows.Err()
}
