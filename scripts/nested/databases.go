package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// databaseSettings have a database sleep, and be archived, soon.
var databaseSettings = []string{"BERTH_DB_IDLE=20s", "BERTH_DB_FIRST_BACKUP=10s", "BERTH_DB_ARCHIVE_INTERVAL=20s"}

// databaseLimit is what each change of a database may take. It is no variable, because
// the factor is read in the outer guest, after variables are set.
func databaseLimit() time.Duration { return timescale.Limit(2 * time.Minute) }

// databaseRun is one pass over the operations of a database.
type databaseRun struct {
	run
	db   *api.Database
	rows int // that were committed
}

// performDatabases runs the operations of a database.
func performDatabases(ctx context.Context, s *stack.Stack, t *table) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	r := &databaseRun{run: run{stack: s, client: client}}
	return t.perform(ctx, []operation{
		{"create a database", r.create},
		{"first statements, by the router with TLS", func(ctx context.Context) (string, error) {
			return "", r.holds(ctx, r.db, "CREATE TABLE t (n int)")
		}},
		{"sleep", r.sleep},
		{"wake, by a connection", r.write},
		{"kill -9 of the VMM: it starts from its disk", r.killVMM},
		{"kill -9 of hostd, and adoption", r.killHostd},
		{"rotate the credentials", r.rotate},
		{"first base backup", r.backup},
		{"clone", r.clone},
		{"failover, forced", r.failover},
		{"delete the database", func(ctx context.Context) (string, error) { return "", r.client.DeleteDatabase(ctx, r.db.ID) }},
	})
}

func (r *databaseRun) becomes(ctx context.Context, id string, want api.DatabaseStatus) (*api.Database, error) {
	return stack.AwaitDatabase(ctx, r.client, id, want, databaseLimit())
}

func (r *databaseRun) create(ctx context.Context) (string, error) {
	db, err := r.client.CreateDatabase(ctx, api.CreateDatabase{Label: "nested"}, "")
	if err == nil {
		r.db, err = r.becomes(ctx, db.ID, api.DatabaseRunning)
	}
	return "", err
}

// holds runs a statement that has no result in a database, adds a row, and counts the
// rows: all that were acknowledged must be there.
func (r *databaseRun) holds(ctx context.Context, db *api.Database, sql string) error {
	cfg, err := r.stack.DatabaseConfig(db)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, databaseLimit())
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return err
	}
	var n int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM t").Scan(&n); err != nil {
		return err
	}
	if n != r.rows {
		return fmt.Errorf("%d rows are there, and %d were committed", n, r.rows)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO t VALUES ($1)", n); err != nil {
		return err
	}
	r.rows++
	return nil
}

const nothing = "SELECT"

func (r *databaseRun) write(ctx context.Context) (string, error) {
	return "", r.holds(ctx, r.db, nothing)
}

func (r *databaseRun) sleep(ctx context.Context) (string, error) {
	_, err := r.becomes(ctx, r.db.ID, api.DatabaseHibernated)
	return "", err
}

func (r *databaseRun) killVMM(ctx context.Context) (string, error) {
	pid, err := r.vmmOf(ctx, r.db.ID)
	if err != nil {
		return "", err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return "", err
	}
	return "", await(ctx, "the database serves", func(ctx context.Context) error { return r.holds(ctx, r.db, nothing) })
}

func (r *databaseRun) killHostd(ctx context.Context) (string, error) {
	host := r.stack.HostProc[0]
	if err := errors.Join(host.Kill9(), host.Restart(ctx), r.stack.WaitHosts(ctx)); err != nil {
		return "", err
	}
	return "", await(ctx, "the database serves", func(ctx context.Context) error { return r.holds(ctx, r.db, nothing) })
}

func (r *databaseRun) rotate(ctx context.Context) (string, error) {
	if _, err := r.client.ResetDatabaseCredentials(ctx, r.db.ID); err != nil {
		return "", err
	}
	if err := r.holds(ctx, r.db, nothing); err == nil {
		return "", errors.New("the old password works")
	}
	db, err := r.client.GetDatabase(ctx, r.db.ID)
	if err != nil {
		return "", err
	}
	r.db = db
	return r.write(ctx)
}

func (r *databaseRun) backup(ctx context.Context) (string, error) {
	return "", await(ctx, "the archive has a base backup", func(ctx context.Context) error {
		a, err := r.client.GetDatabaseArchive(ctx, r.db.ID)
		if err == nil && a.FirstRestorable == nil {
			err = errors.New("it has none")
		}
		return err
	})
}

func (r *databaseRun) clone(ctx context.Context) (string, error) {
	before := r.rows
	c, err := r.client.CloneDatabase(ctx, r.db.ID, api.CloneDatabase{}, "")
	if err != nil {
		return "", err
	}
	if c, err = r.becomes(ctx, c.ID, api.DatabaseRunning); err != nil {
		return "", err
	}
	err = r.holds(ctx, c, nothing)
	r.rows = before // the clone's row is the clone's alone
	return "", errors.Join(err, r.client.DeleteDatabase(ctx, c.ID))
}

func (r *databaseRun) failover(ctx context.Context) (string, error) {
	if _, err := r.becomes(ctx, r.db.ID, api.DatabaseHibernated); err != nil { // all is archived
		return "", err
	}
	if err := r.holds(ctx, r.db, nothing); err != nil { // wakes it
		return "", err
	}
	if _, err := r.client.FailoverDatabase(ctx, r.db.ID, api.FailoverDatabase{Force: true}); err != nil {
		return "", err
	}
	db, err := r.becomes(ctx, r.db.ID, api.DatabaseRunning)
	if err != nil {
		return "", err
	}
	r.db = db
	return r.write(ctx)
}
