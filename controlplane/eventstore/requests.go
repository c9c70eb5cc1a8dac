package eventstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/traffic"
)

// Requested is what one run of a replica has counted of an app in one hour, so far.
type Requested struct {
	Replica, Epoch     string
	AppID, WorkspaceID string
	Hour               time.Time
	traffic.Counts
}

// requestColumns are the columns of counts, with what is between them: statuses by their
// first digit, the buckets of durations, and the sum of durations.
func requestColumns(between string) string {
	var c traffic.Counts
	names := make([]string, 0, len(c.Statuses)+len(c.Buckets)+1)
	for i := range c.Statuses {
		names = append(names, fmt.Sprint("s", i))
	}
	for i := range c.Buckets {
		names = append(names, fmt.Sprint("b", i))
	}
	return strings.Join(append(names, "sum_ms"), between)
}

// requestValues are where the values of requestColumns are.
func requestValues(c *traffic.Counts) (out []*int64) {
	for i := range c.Statuses {
		out = append(out, &c.Statuses[i])
	}
	for i := range c.Buckets {
		out = append(out, &c.Buckets[i])
	}
	return append(out, &c.SumMS)
}

// NoteRequests stores what was counted. An hour that is stored already is replaced by what
// has more: counts only grow.
func (s *Store) NoteRequests(ctx context.Context, all []Requested) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	columns := strings.Split(requestColumns(","), ",")
	const fixed = 7 // columns before those
	var values, sets []string
	for i := range fixed + len(columns) {
		values = append(values, fmt.Sprint("$", i+1))
	}
	for _, c := range append(columns, "total") {
		sets = append(sets, c+" = excluded."+c)
	}
	query := s.d.args(`INSERT INTO requests (replica, epoch, app_id, workspace_id, ts_ms, day, total, ` + strings.Join(columns, ", ") + `)
		VALUES (` + strings.Join(values, ", ") + `)
		ON CONFLICT (replica, epoch, app_id, ts_ms) DO UPDATE SET ` + strings.Join(sets, ", ") + ` WHERE excluded.total > requests.total`)
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("note requests: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	for _, r := range all {
		at, total := r.Hour.UnixMilli(), int64(0)
		for _, n := range r.Statuses {
			total += n
		}
		args := []any{r.Replica, r.Epoch, r.AppID, r.WorkspaceID, at, at / dayMS, total}
		for _, v := range requestValues(&r.Counts) {
			args = append(args, *v)
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("note requests to an app: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("note requests: %w", err)
	}
	return nil
}

// RequestedIn contains the requests to one app in one bucket of time. Of its counts those of
// statuses and durations are set.
type RequestedIn struct {
	Date  time.Time // its beginning, in UTC
	AppID string
	traffic.Counts
}

// Requests returns a RequestedIn for each bucket and app that has any, in any order. The
// query's kind has no meaning.
func (s *Store) Requests(ctx context.Context, q Query) ([]RequestedIn, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	q.Kind = ""
	query := `SELECT ts_ms / $5, app_id, SUM(` + requestColumns("), SUM(") + `) FROM requests
		WHERE workspace_id = $1 AND day >= $2 AND day <= $3 AND (app_id = $4 OR $4 = '') GROUP BY 1, 2`
	if q.Most > 0 {
		query += fmt.Sprintf(" LIMIT %d", q.Most+1)
	}
	rows, err := s.asked.QueryContext(ctx, s.d.args(query), q.args()...)
	if err != nil {
		return nil, fmt.Errorf("count requests: %w", err)
	}
	defer rows.Close()
	var out []RequestedIn
	for rows.Next() {
		var k dayKey
		var one RequestedIn
		to := []any{&k.bucket, &k.label}
		for _, v := range requestValues(&one.Counts) {
			to = append(to, v)
		}
		if err := rows.Scan(to...); err != nil {
			return nil, fmt.Errorf("count requests: %w", err)
		}
		one.Date, one.AppID = k.begins(&q), k.label
		out = append(out, one)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("count requests: %w", err)
	}
	if q.Most > 0 && len(out) > q.Most {
		return nil, ErrTooMany
	}
	return out, nil
}
