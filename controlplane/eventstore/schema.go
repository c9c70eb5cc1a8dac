package eventstore

import (
	"encoding/json"
	"regexp"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

const dayMS = 24 * 60 * 60 * 1000

// The same tables in both databases. day counts from 1970-01-01 in UTC, so that
// grouping by day needs no date function; ms is the one duration that an event
// of some types is about.
const tables = `
CREATE TABLE IF NOT EXISTS events (
	agent_id     TEXT NOT NULL,
	seq          BIGINT NOT NULL,
	ts_ms        BIGINT NOT NULL,
	day          BIGINT NOT NULL,
	sandbox_id   TEXT NOT NULL,
	workspace_id TEXT NOT NULL,
	template     TEXT NOT NULL,
	type         TEXT NOT NULL,
	code         TEXT NOT NULL,
	message      TEXT NOT NULL,
	metadata     TEXT NOT NULL,
	ms           BIGINT,
	PRIMARY KEY (agent_id, seq)
);
CREATE INDEX IF NOT EXISTS events_workspace ON events (workspace_id, day, template, type);
CREATE INDEX IF NOT EXISTS events_age ON events (ts_ms);
CREATE TABLE IF NOT EXISTS cursors (
	agent_id TEXT PRIMARY KEY,
	seq      BIGINT NOT NULL
)`

var placeholder = regexp.MustCompile(`\$([0-9]+)`)

var (
	sqliteDialect = dialect{name: "sqlite", args: func(q string) string {
		return placeholder.ReplaceAllString(q, "?$1")
	}}
	// Three replicas may make the tables at the same moment, which "IF NOT
	// EXISTS" alone does not make safe: they take turns. The number is ours alone.
	postgresDialect = dialect{name: "postgres", lock: "SELECT pg_advisory_xact_lock(5246817351972)", args: func(q string) string { return q }}
)

// measured is the duration that an event's metadata tells, in milliseconds; nil
// where its type has none.
func measured(e *hostapi.Event) any {
	key := map[hostapi.EventType]string{
		hostapi.EventRunning: "boot_ms", hostapi.EventWoken: "wake_ms", hostapi.EventHibernated: "snap_ms",
	}[e.Type]
	if key == "" {
		return nil
	}
	var values map[string]json.RawMessage
	var ms float64
	if json.Unmarshal(e.Metadata, &values) != nil || json.Unmarshal(values[key], &ms) != nil || ms < 0 || ms > 1e12 {
		return nil
	}
	return int64(ms)
}
