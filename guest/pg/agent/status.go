package agent

import (
	"context"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// activity is what was last seen of the tenant's sessions.
type activity struct {
	at       time.Time
	sessions int64 // that ever began, as the server counts them
}

func (a *Agent) getStatus(w http.ResponseWriter, r *http.Request) error {
	answer(w, http.StatusOK, a.status(r.Context()))
	return nil
}

// statusLimit is long because a guest does not know how slow its host is: a session that
// is given up is begun again, and takes as long as the one before.
var statusLimit = timescale.Limit(20 * time.Second)

func (a *Agent) status(ctx context.Context) pgapi.Status {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	v, _ := a.server.View()
	st := pgapi.Status{
		Version: a.cfg.Version, PostgresVersion: a.version, State: v.State, StartedAt: v.StartedAt, Restarts: v.Restarts,
		Archive: a.archive.Status(), Volume: a.volume(),
	}
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	if r != nil {
		view := r.view()
		st.Restore = &view
		if view.Phase != pgapi.RestoreDone {
			st.State = pgapi.StateRecovering
		}
		if view.Phase == pgapi.RestoreFailed {
			st.State, st.Error = pgapi.StateFailed, view.Error
		}
	}
	if v.Err != nil && st.Error == "" {
		st.Error = v.Err.Error() + ": " + fatal(v.LogTail)
	}
	if v.State == pgapi.StateReady || v.State == pgapi.StateRecovering {
		server, t, err := a.ask(ctx, &st.Archive)
		if err != nil && st.Error == "" {
			st.Error = "PostgreSQL does not answer: " + err.Error()
		} else if err == nil {
			st.Server, st.Tenant = &server, t
			st.Ready = v.State == pgapi.StateReady && st.State == v.State && !server.InRecovery
		}
	}
	if st.Error != "" {
		st.LogTail = v.LogTail
	}
	return st
}

// statusQuery counts by where a session comes from, which no client chooses: by TCP
// are the tenant's, by the local socket the platform's. The checkpointer looks at
// archive_timeout (CheckArchiveTimeout) before each of these two waits, which are no longer
// than what is left of it.
const statusQuery = `
SELECT pg_is_in_recovery(), s.system_identifier::text,
  CASE WHEN pg_is_in_recovery() THEN c.timeline_id ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
  CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text ELSE '' END,
  coalesce(pg_last_wal_replay_lsn()::text, ''),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND client_addr IS NOT NULL),
  (SELECT count(*) FROM pg_stat_activity a WHERE backend_type = 'walsender' AND NOT EXISTS (SELECT FROM pg_stat_progress_basebackup b WHERE b.pid = a.pid)),
  (SELECT count(*) FROM pg_stat_progress_basebackup),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'),
  (SELECT coalesce(sum(sessions), 0)::int8 FROM pg_stat_database WHERE datname NOT IN ('postgres', 'template0', 'template1')),
  (SELECT max(greatest(state_change, backend_start)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND client_addr IS NOT NULL),
  coalesce(w.last_archived_wal, ''), w.last_archived_time,
  coalesce((SELECT wait_event IN ('CheckpointerMain', 'CheckpointWriteDelay') FROM pg_stat_activity WHERE backend_type = 'checkpointer'), false)
FROM pg_control_system() s, pg_control_checkpoint() c, pg_stat_archiver w`

func (a *Agent) ask(ctx context.Context, archive *pgapi.ArchiveStatus) (pgapi.ServerStatus, *pgapi.Tenant, error) {
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return pgapi.ServerStatus{}, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var (
		st         pgapi.ServerStatus
		sessions   int64
		changed    *time.Time
		archived   string
		archivedAt *time.Time
		inTime     bool
	)
	err = conn.QueryRow(ctx, statusQuery, pgx.QueryExecModeSimpleProtocol).Scan(&st.InRecovery, &st.SystemID, &st.Timeline, &st.WriteLSN, &st.ReplayLSN,
		&st.Clients, &st.WALSenders, &st.BaseBackups, &st.AutovacuumWorkers, &sessions, &changed, &archived, &archivedAt, &inTime)
	if err != nil {
		return st, nil, err
	}
	if archive.LastArchived == "" && archivedAt != nil { // by a guestpg before
		archive.LastArchived, archive.LastArchivedAt = archived, archivedAt.UTC()
	}
	st.SwitchesInTime = &inTime
	st.BrokerSessionsBusy = a.broker.Busy()
	st.LastActivityAt = a.activity(st.Clients, sessions, changed)
	if t, err := tenant.Current(ctx, conn); err == nil {
		return st, &t, nil
	}
	return st, nil, nil
}

// activity returns when the tenant was last seen to do something: a session that came
// and went between two looks is known by the server's count.
func (a *Agent) activity(clients int, sessions int64, changed *time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.seen.at.IsZero()
	switch {
	case first || a.seen.sessions != sessions:
		a.seen.at = time.Now()
	case clients > 0 && changed != nil && changed.After(a.seen.at):
		a.seen.at = *changed
	}
	a.seen.sessions = sessions
	if used := a.broker.LastUsed(); used.After(a.seen.at) {
		a.seen.at = used
	}
	return a.seen.at.UTC()
}
