package eventstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Kinds of what sandboxes belong to.
const (
	KindApp      = "app"
	KindDatabase = "database"
)

// Query selects events.
type Query struct {
	WorkspaceID string
	From, To    time.Time // whole days in UTC, both included
	Bucket      time.Duration
	// Kind is KindApp or KindDatabase: the events of their sandboxes, by app or database.
	// Empty: those of all sandboxes, by template.
	Kind  string
	Label string // one template, app or database; empty: all
	Most  int    // buckets; ErrTooMany beyond
}

// ErrTooMany means that a query has more buckets than it allows.
var ErrTooMany = errors.New("too many buckets")

// Day contains the metrics of one template's, app's or database's sandboxes in one
// bucket of time.
type Day struct {
	Date         time.Time // its beginning, in UTC
	Label        string
	Sandboxes    int // those that had an event
	Starts       int
	Wakes        int // of an app: the starts that are not a deployment's
	Hibernations int
	Forks        int // children that started
	Deaths       int
	Boot         Summary
	Wake         Summary
	Hibernate    Summary
}

// Summary is a distribution in milliseconds, its percentiles by nearest rank.
type Summary struct {
	Count              int
	P50, P90, P99, Max float64
}

// Sandboxes returns a Day for each bucket and label that has events, newest first.
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
		return strings.Compare(a.Label, b.Label)
	})
	return out, nil
}

type dayKey struct {
	bucket int64
	label  string
}

func (q *Query) bucketMS() int64 {
	if q.Bucket <= 0 {
		return dayMS
	}
	return q.Bucket.Milliseconds()
}

func (k dayKey) begins(q *Query) time.Time { return time.UnixMilli(k.bucket * q.bucketMS()).UTC() }

// args are $1 to $5 of selected, and $6 where there is a kind.
func (q *Query) args() []any {
	args := []any{q.WorkspaceID, q.From.UnixMilli() / dayMS, q.To.UnixMilli() / dayMS, q.Label, q.bucketMS()}
	if q.Kind != "" {
		args = append(args, q.Kind)
	}
	return args
}

// selected is a subquery of the events of a query. The start of an app's sandbox that no
// deployment has made is a wake.
func (q *Query) selected() string {
	if q.Kind == "" {
		return `(SELECT ts_ms / $5 AS bucket, template AS label, type, sandbox_id, ms FROM events
			WHERE workspace_id = $1 AND day >= $2 AND day <= $3 AND (template = $4 OR $4 = '')) AS s`
	}
	return `(SELECT e.ts_ms / $5 AS bucket, o.resource_id AS label,
			CASE WHEN e.type = '` + string(hostapi.EventRunning) + `' AND o.kind = '` + KindApp + `' AND o.deploys = 0 THEN '` + string(hostapi.EventWoken) + `' ELSE e.type END AS type,
			e.sandbox_id, e.ms
		FROM events e JOIN owned o ON o.sandbox_id = e.sandbox_id AND o.workspace_id = e.workspace_id
		WHERE e.workspace_id = $1 AND e.day >= $2 AND e.day <= $3 AND (o.resource_id = $4 OR $4 = '') AND o.kind = $6) AS s`
}

func (s *Store) count(ctx context.Context, q Query, days map[dayKey]*Day) error {
	is := func(types ...hostapi.EventType) string {
		quoted := make([]string, len(types))
		for i, t := range types {
			quoted[i] = "'" + string(t) + "'"
		}
		return "SUM(CASE WHEN type IN (" + strings.Join(quoted, ", ") + ") THEN 1 ELSE 0 END)"
	}
	query := `SELECT bucket, label, COUNT(DISTINCT sandbox_id), ` + strings.Join([]string{
		is(hostapi.EventRunning), is(hostapi.EventWoken), is(hostapi.EventHibernated),
		is(hostapi.EventForked, hostapi.EventWarmForked), is(hostapi.EventVMDied, hostapi.EventOrphaned),
	}, ", ") + ` FROM ` + q.selected() + ` GROUP BY bucket, label`
	if q.Most > 0 {
		query += fmt.Sprintf(" LIMIT %d", q.Most+1)
	}
	rows, err := s.asked.QueryContext(ctx, s.d.args(query), q.args()...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k dayKey
		var d Day
		if err := rows.Scan(&k.bucket, &k.label, &d.Sandboxes, &d.Starts, &d.Wakes, &d.Hibernations, &d.Forks, &d.Deaths); err != nil {
			return err
		}
		d.Date, d.Label = k.begins(&q), k.label
		days[k] = &d
	}
	if q.Most > 0 && len(days) > q.Most {
		return ErrTooMany
	}
	return rows.Err()
}

// ranked ranks the durations of a subquery with the columns bucket, label, type and ms in
// the database, so that ninety days of them need not be transferred.
func ranked(from, where string) string {
	return `WITH ranked AS (
			SELECT bucket, label, type, ms,
				ROW_NUMBER() OVER (PARTITION BY bucket, label, type ORDER BY ms) AS rank_,
				COUNT(*) OVER (PARTITION BY bucket, label, type) AS n
			FROM ` + from + ` WHERE ` + where + `
		)
		SELECT bucket, label, type, MAX(n),
			MAX(CASE WHEN rank_ = (n * 50 + 99) / 100 THEN ms END),
			MAX(CASE WHEN rank_ = (n * 90 + 99) / 100 THEN ms END),
			MAX(CASE WHEN rank_ = (n * 99 + 99) / 100 THEN ms END),
			MAX(ms)
		FROM ranked GROUP BY bucket, label, type`
}

func (s *Store) measure(ctx context.Context, q Query, days map[dayKey]*Day) error {
	types := fmt.Sprintf("type IN ('%s', '%s', '%s') AND ms IS NOT NULL", hostapi.EventRunning, hostapi.EventWoken, hostapi.EventHibernated)
	return s.summarize(ctx, ranked(q.selected(), types), q.args(), func(k dayKey, kind string, sum Summary) {
		d := days[k]
		switch {
		case d == nil: // the event arrived between the two queries
		case kind == string(hostapi.EventRunning):
			d.Boot = sum
		case kind == string(hostapi.EventHibernated):
			d.Hibernate = sum
		default:
			d.Wake = sum
		}
	})
}

func (s *Store) summarize(ctx context.Context, query string, args []any, each func(k dayKey, kind string, sum Summary)) error {
	rows, err := s.asked.QueryContext(ctx, s.d.args(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k dayKey
		var kind string
		var sum Summary
		var p50, p90, p99, highest sql.NullInt64
		if err := rows.Scan(&k.bucket, &k.label, &kind, &sum.Count, &p50, &p90, &p99, &highest); err != nil {
			return err
		}
		sum.P50, sum.P90, sum.P99, sum.Max = float64(p50.Int64), float64(p90.Int64), float64(p99.Int64), float64(highest.Int64)
		each(k, kind, sum)
	}
	return rows.Err()
}
