// Package eventstore keeps the events of sandboxes for ninety days and computes
// metrics from them. It uses an embedded SQLite file on each replica, or one
// PostgreSQL database for all replicas. Events are too many for the Raft log.
//
// Every host sends its events to every replica (hostapi.PathEvents), starting where
// the replica's store ends. With SQLite, each replica so has all events, including
// those from while it was down. With PostgreSQL the replicas share one store, and
// the first one that receives an event writes it.
package eventstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// DefaultRetention is how long an event is kept unless the settings say otherwise.
const DefaultRetention = 90 * 24 * time.Hour

// Config says where events are stored.
type Config struct {
	// DSN is a PostgreSQL connection URL (postgres://…). Empty: SQLite in File.
	DSN string
	// File is the path of the SQLite database. It is created with its directory.
	File      string
	Retention time.Duration // how long an event is kept; default DefaultRetention
	Clock     func() time.Time
}

// Store contains events. It is safe for concurrent use.
type Store struct {
	db    *sql.DB
	asked *sql.DB // the same database, for tenants' questions, which may take long
	d     dialect
	clock func() time.Time
	keep  time.Duration

	mu    sync.Mutex
	ready bool // the tables exist
}

// dialect contains the differences between the databases.
type dialect struct {
	name string
	lock string // statement after which other replicas wait until the transaction ends
	// args converts placeholders such as $1 to the database's form.
	args func(query string) string
}

const (
	// A replica needs few connections: for one host's batch, and the pruning. Questions
	// have others, or one tenant's could keep hosts from telling what happens to all.
	maxConnections = 2
	maxQuestions   = 4
)

// openTimeout limits the first connection and the creation of the tables.
var openTimeout = timescale.Limit(10 * time.Second)

// Open checks the settings. It does not connect yet, because a replica must work
// while its event store is unavailable.
func Open(cfg Config) (*Store, error) {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	s := &Store{clock: cfg.Clock, keep: cmp.Or(cfg.Retention, DefaultRetention)}
	var err error
	open := func() (*sql.DB, error) { return openPostgres(cfg.DSN) }
	if s.d = postgresDialect; cfg.DSN == "" {
		s.d, open = sqliteDialect, func() (*sql.DB, error) { return openSQLite(cfg.File) }
	}
	if s.db, err = open(); err == nil {
		s.asked, err = open()
	}
	if err != nil {
		return nil, fmt.Errorf("open the event store: %w", err)
	}
	s.db.SetMaxOpenConns(maxConnections)
	s.asked.SetMaxOpenConns(maxQuestions)
	return s, nil
}

func openPostgres(dsn string) (*sql.DB, error) {
	if u, err := url.Parse(dsn); err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, errors.New("the DSN is no postgres:// URL") // the DSN contains a password
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return nil, errors.New("the DSN cannot be read")
	}
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

func openSQLite(file string) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	// With WAL a query does not wait while a batch is written. If a power failure
	// reverts a batch, it also reverts the cursor, and the host sends the batch
	// again.
	dsn := (&url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"_pragma": {"journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(10000)"},
		"_txlock": {"immediate"},
	}.Encode()}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	return db, nil
}

// Close closes the connections.
func (s *Store) Close() error { return errors.Join(s.asked.Close(), s.db.Close()) }

// Kind returns "sqlite" or "postgres".
func (s *Store) Kind() string { return s.d.name }

// open creates missing tables, once.
func (s *Store) open(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("open the event store (%s): %w", s.d.name, err)
	}
	s.ready = true
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	for _, statement := range append([]string{s.d.lock}, strings.Split(tables, ";")...) {
		if statement == "" {
			continue
		}
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
	}
	return tx.Commit()
}

// Cursor returns the Seq up to which a host's events are stored; 0 for none.
func (s *Store) Cursor(ctx context.Context, agentID string) (uint64, error) {
	if err := s.open(ctx); err != nil {
		return 0, err
	}
	var seq int64
	err := s.db.QueryRowContext(ctx, s.d.args("SELECT seq FROM cursors WHERE agent_id = $1"), agentID).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the cursor of host %s: %w", agentID, err)
	}
	return uint64(seq), nil
}

// Unowned returns the last limit events of a host after since that belong to no
// workspace's sandbox, oldest first.
func (s *Store) Unowned(ctx context.Context, agentID string, since time.Time, limit int) ([]hostapi.Event, error) {
	found, err := s.last(ctx, "workspace_id = '' AND agent_id = $1 AND ts_ms > $2 ORDER BY seq DESC LIMIT $3", agentID, since.UnixMilli(), limit)
	if err != nil {
		return nil, fmt.Errorf("read the events of host %s: %w", agentID, err)
	}
	return found, nil
}

// MaxHistory limits the messages and metadata that OfSandbox returns, in bytes. A host
// keeps as much of a sandbox.
const MaxHistory = 2 << 20

// OfSandbox returns the last limit events of a workspace's sandbox after since, oldest
// first, also of one that was deleted.
func (s *Store) OfSandbox(ctx context.Context, workspaceID, sandboxID string, since time.Time, limit int) ([]hostapi.Event, error) {
	found, err := s.last(ctx, "workspace_id = $1 AND sandbox_id = $2 AND ts_ms > $3 ORDER BY ts_ms DESC, seq DESC LIMIT $4",
		workspaceID, sandboxID, since.UnixMilli(), limit)
	if err != nil {
		return nil, fmt.Errorf("read the events of a sandbox: %w", err)
	}
	return found, nil
}

// last returns the events of a condition that puts the newest first, oldest first, and
// not more than MaxHistory.
func (s *Store) last(ctx context.Context, condition string, args ...any) ([]hostapi.Event, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	rows, err := s.asked.QueryContext(ctx, s.d.args("SELECT agent_id, seq, ts_ms, sandbox_id, type, code, message, metadata FROM events WHERE "+condition), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []hostapi.Event
	for size := 0; rows.Next(); {
		var e hostapi.Event
		var at int64
		var metadata string
		if err := rows.Scan(&e.HostID, &e.Seq, &at, &e.SandboxID, &e.Type, &e.Code, &e.Message, &metadata); err != nil {
			return nil, err
		}
		if size += len(e.Message) + len(metadata); size > MaxHistory {
			break
		}
		e.Time, e.Metadata = time.UnixMilli(at).UTC(), json.RawMessage(metadata)
		out = append(out, e)
	}
	slices.Reverse(out)
	return out, rows.Err()
}

// Append stores the events of a batch that are new, all or none, and returns the new
// cursor.
func (s *Store) Append(ctx context.Context, b hostapi.EventBatch) (cursor uint64, err error) {
	if err := s.open(ctx); err != nil {
		return 0, err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("append events: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	for i := range b.Events {
		b.Events[i].HostID = b.HostID
		cursor = max(cursor, b.Events[i].Seq)
	}
	if err := s.insert(ctx, tx, b.Events); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, s.d.args(`
		INSERT INTO cursors (agent_id, seq) VALUES ($1, $2)
		ON CONFLICT (agent_id) DO UPDATE SET seq = CASE WHEN excluded.seq > cursors.seq THEN excluded.seq ELSE cursors.seq END
		RETURNING seq`), b.HostID, int64(cursor)).Scan(&cursor)
	if err != nil {
		return 0, fmt.Errorf("move the cursor of host %s: %w", b.HostID, err)
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("append events: %w", err)
	}
	return cursor, nil
}

// insert stores the events that are new.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, events []hostapi.Event) error {
	insert, err := tx.PrepareContext(ctx, s.d.args(`
		INSERT INTO events (agent_id, seq, ts_ms, day, sandbox_id, workspace_id, template, type, code, message, metadata, ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (agent_id, seq) DO NOTHING`))
	if err != nil {
		return fmt.Errorf("append events: %w", err)
	}
	defer insert.Close()
	for i := range events {
		e := &events[i]
		at := e.Time.UnixMilli()
		metadata := string(e.Metadata)
		if metadata == "" {
			metadata = "{}"
		}
		_, err = insert.ExecContext(ctx, e.HostID, int64(e.Seq), at, at/dayMS, e.SandboxID, e.WorkspaceID, e.Template,
			string(e.Type), string(e.Code), text(e.Message), text(metadata), measured(e))
		if err != nil {
			return fmt.Errorf("append event %d of host %s: %w", e.Seq, e.HostID, err)
		}
	}
	return nil
}

// text makes s acceptable to PostgreSQL: UTF-8 without NUL.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Prune removes events that are older than the retention and returns their number.
func (s *Store) Prune(ctx context.Context) (int64, error) {
	if err := s.open(ctx); err != nil {
		return 0, err
	}
	before := s.clock().Add(-s.keep).UnixMilli()
	total := int64(0)
	for _, table := range []string{"events", "deployments", "requests"} {
		res, err := s.db.ExecContext(ctx, s.d.args("DELETE FROM "+table+" WHERE ts_ms < $1"), before)
		if err != nil {
			return 0, fmt.Errorf("prune %s: %w", table, err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return 0, fmt.Errorf("prune %s: %w", table, err)
		}
		total += n
	}
	// A sandbox may be older than its latest events, but for them it has no use.
	_, err := s.db.ExecContext(ctx, s.d.args(`
		DELETE FROM owned WHERE ts_ms < $1 AND NOT EXISTS (
			SELECT 1 FROM events e WHERE e.workspace_id = owned.workspace_id AND e.sandbox_id = owned.sandbox_id)`), before)
	if err != nil {
		return 0, fmt.Errorf("prune owned: %w", err)
	}
	return total, nil
}
