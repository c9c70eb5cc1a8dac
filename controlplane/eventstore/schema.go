package eventstore

import (
	"encoding/json"
	"regexp"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

const dayMS = 24 * 60 * 60 * 1000

// Both databases have the same tables. day is the number of days since 1970-01-01 in
// UTC, so that grouping by day needs no date function. ms is the duration that an
// event reports, if its type has one. owned says which sandboxes are those of an app or
// a database, also of ones that are gone; deploys is 1 if a deployment has made it. requests
// has what one run of a replica has counted of an app in one hour.
var tables = `
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
CREATE INDEX IF NOT EXISTS events_sandbox ON events (sandbox_id, ts_ms);
CREATE INDEX IF NOT EXISTS events_age ON events (ts_ms);
CREATE TABLE IF NOT EXISTS owned (
	sandbox_id   TEXT PRIMARY KEY,
	workspace_id TEXT NOT NULL,
	kind         TEXT NOT NULL,
	resource_id  TEXT NOT NULL,
	deploys      BIGINT NOT NULL,
	ts_ms        BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS owned_age ON owned (ts_ms);
CREATE TABLE IF NOT EXISTS deployments (
	id           TEXT PRIMARY KEY,
	workspace_id TEXT NOT NULL,
	app_id       TEXT NOT NULL,
	ts_ms        BIGINT NOT NULL,
	day          BIGINT NOT NULL,
	failed       BIGINT NOT NULL,
	ms           BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS deployments_workspace ON deployments (workspace_id, day);
CREATE INDEX IF NOT EXISTS deployments_age ON deployments (ts_ms);
CREATE TABLE IF NOT EXISTS requests (
	replica      TEXT NOT NULL,
	epoch        TEXT NOT NULL,
	app_id       TEXT NOT NULL,
	workspace_id TEXT NOT NULL,
	ts_ms        BIGINT NOT NULL,
	day          BIGINT NOT NULL,
	total        BIGINT NOT NULL,
	` + requestColumns(" BIGINT NOT NULL, ") + ` BIGINT NOT NULL,
	PRIMARY KEY (replica, epoch, app_id, ts_ms)
);
CREATE INDEX IF NOT EXISTS requests_workspace ON requests (workspace_id, day);
CREATE INDEX IF NOT EXISTS requests_age ON requests (ts_ms);
CREATE TABLE IF NOT EXISTS cursors (
	agent_id TEXT PRIMARY KEY,
	seq      BIGINT NOT NULL
)`

var placeholder = regexp.MustCompile(`\$([0-9]+)`)

var (
	sqliteDialect = dialect{name: "sqlite", args: func(q string) string {
		return placeholder.ReplaceAllString(q, "?$1")
	}}
	// Three replicas may create the tables at the same moment, for which "IF NOT
	// EXISTS" alone is not safe, so they take a lock. The number is arbitrary.
	postgresDialect = dialect{name: "postgres", lock: "SELECT pg_advisory_xact_lock(5246817351972)", args: func(q string) string { return q }}
)

// measured returns the duration in an event's metadata, in milliseconds, or nil if
// its type has none.
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
