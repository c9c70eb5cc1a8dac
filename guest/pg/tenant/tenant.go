// Package tenant makes the tenant's role and database, and rotates its password.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/guest/pgscram"
	"github.com/berth-cloud/berth/timescale"
)

// Errors of Set.
var (
	ErrBusy        = errors.New("credentials are being set already")
	ErrNameTaken   = errors.New("name is in use")
	ErrNotVerified = errors.New("no log-in with the new credentials; those of before are in force")
	ErrNone        = errors.New("no credentials were set yet")
	ErrDropped     = errors.New("the database that the broker uses was dropped")
)

// Limits on what PostgreSQL may take.
var (
	setLimit   = timescale.Limit(60 * time.Second)
	proofLimit = timescale.Limit(20 * time.Second)
	undoLimit  = timescale.Limit(20 * time.Second)
)

// attributes of the tenant's role. CREATEROLE is safe as of PostgreSQL 16: such a role
// rules only over the roles that it made, and gives no attribute and no predefined
// role that it does not have. What it makes may own nothing that is the platform's.
const attributes = "LOGIN NOSUPERUSER CREATEDB CREATEROLE INHERIT NOREPLICATION NOBYPASSRLS CONNECTION LIMIT -1 VALID UNTIL 'infinity'"

// Roles keeps the tenant's role and database.
type Roles struct {
	server *postgres.Server
	busy   sync.Mutex
}

// New returns the tenant's role and database of a server.
func New(server *postgres.Server) *Roles { return &Roles{server: server} }

// state is the tenant as the server knows it.
type state struct {
	role, database         uint32 // OIDs; 0: none
	roleName, databaseName string
	verifier               *string
}

// Current returns whose credentials are set.
func Current(ctx context.Context, conn *pgx.Conn) (pgapi.Tenant, error) {
	st, err := read(ctx, conn)
	switch {
	case err != nil:
	case st.role == 0:
		err = ErrNone
	case st.database == 0:
		err = ErrDropped
	}
	return pgapi.Tenant{Database: st.databaseName, Username: st.roleName}, err
}

func read(ctx context.Context, conn *pgx.Conn) (state, error) {
	var st state
	err := conn.QueryRow(ctx, `
		SELECT coalesce(r.oid, 0), coalesce(d.oid, 0), coalesce(r.rolname, ''), coalesce(d.datname, ''), r.rolpassword
		FROM berth.tenant t LEFT JOIN pg_authid r ON r.oid = t.role LEFT JOIN pg_database d ON d.oid = t.database`).
		Scan(&st.role, &st.database, &st.roleName, &st.databaseName, &st.verifier)
	if errors.Is(err, pgx.ErrNoRows) {
		return state{}, nil
	}
	return st, err
}

// Set puts credentials into force: it makes or renames what is missing, cuts the
// sessions of those before, and proves the new by a log-in. When it fails, those of
// before are in force, or the new. The same credentials may be set again.
func (r *Roles) Set(ctx context.Context, c pgapi.Credentials) (pgapi.CredentialsApplied, error) {
	if err := check(c); err != nil {
		return pgapi.CredentialsApplied{}, err
	}
	if !r.busy.TryLock() {
		return pgapi.CredentialsApplied{}, ErrBusy
	}
	defer r.busy.Unlock()
	// A caller that goes away leaves no half of it: what was begun is ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setLimit)
	defer cancel()
	conn, err := r.server.Connect(ctx)
	if err != nil {
		return pgapi.CredentialsApplied{}, fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	before, err := read(ctx, conn)
	if err != nil {
		return pgapi.CredentialsApplied{}, fmt.Errorf("read the tenant: %w", err)
	}
	secret := c.Verifier
	if secret == "" {
		if secret, err = pgscram.Verifier(c.Password); err != nil {
			return pgapi.CredentialsApplied{}, err
		}
	}
	cut, err := r.put(ctx, conn, c.Tenant(), secret)
	if err != nil {
		return pgapi.CredentialsApplied{}, err
	}
	if err := r.prove(ctx, c); err != nil {
		return pgapi.CredentialsApplied{}, errors.Join(fmt.Errorf("%w: %w", ErrNotVerified, err), r.undo(ctx, before))
	}
	return pgapi.CredentialsApplied{Tenant: c.Tenant(), SessionsCut: cut}, nil
}

// undo puts the names and the verifier of before back.
func (r *Roles) undo(ctx context.Context, before state) error {
	if before.role == 0 || before.database == 0 || before.verifier == nil {
		return nil // the first ones: there is nothing to go back to
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	conn, err := r.server.Connect(ctx)
	if err != nil {
		return fmt.Errorf("put the credentials of before back: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := r.put(ctx, conn, pgapi.Tenant{Database: before.databaseName, Username: before.roleName}, *before.verifier); err != nil {
		return fmt.Errorf("put the credentials of before back: %w", err)
	}
	return nil
}

// put makes the role and the database what they should be and ends the role's
// sessions. A session of the tenant's may hold a lock on either: then it is ended
// first.
func (r *Roles) put(ctx context.Context, conn *pgx.Conn, t pgapi.Tenant, secret string) (cut int, err error) {
	for {
		err = putOnce(ctx, conn, t, secret)
		if err == nil {
			break
		}
		if !blocked(err) || ctx.Err() != nil {
			return cut, err
		}
		n, err := end(ctx, conn, "client_addr IS NOT NULL OR usesysid IN (SELECT role FROM berth.tenant)")
		if err != nil {
			return cut, err
		}
		cut += n
	}
	n, err := end(ctx, conn, "usesysid IN (SELECT role FROM berth.tenant)")
	return cut + n, err
}

// blocked says whether an error is that a session was in the way.
func blocked(err error) bool {
	switch sqlState(err) {
	case "55P03", "55006", "57014", "40P01": // lock_not_available, object_in_use, query_canceled, deadlock_detected
		return true
	}
	return false
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func putOnce(ctx context.Context, conn *pgx.Conn, t pgapi.Tenant, secret string) error {
	if err := dropRest(ctx, conn, t.Database); err != nil {
		return err
	}
	st, err := read(ctx, conn)
	if err != nil {
		return err
	}
	if oid, err := oidOf(ctx, conn, "SELECT oid FROM pg_roles WHERE rolname = $1", t.Username); err != nil {
		return err
	} else if oid != 0 && oid != st.role {
		return fmt.Errorf("%w: %s", ErrNameTaken, t.Username)
	}
	// Another database of that name is the tenant's, too, which alone makes any: it dropped
	// or renamed the one that was made for it, and put this one in its place.
	replaced, err := oidOf(ctx, conn, "SELECT oid FROM pg_database WHERE datname = $1", t.Database)
	switch {
	case err != nil:
		return err
	case replaced == st.database:
		replaced = 0
	case replaced != 0:
		st.database, st.databaseName = replaced, t.Database
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	role, database := quote(t.Username), quote(t.Database)
	var steps []string
	if st.role == 0 {
		steps = append(steps, "CREATE ROLE "+role)
	} else if st.roleName != t.Username {
		steps = append(steps, "ALTER ROLE "+quote(st.roleName)+" RENAME TO "+role)
	}
	steps = append(steps,
		"ALTER ROLE "+role+" WITH "+attributes+" PASSWORD "+literal(secret),
		// A tenant can set it, and a library that is not there lets nobody in.
		"ALTER ROLE "+role+" RESET local_preload_libraries",
		`INSERT INTO berth.tenant (role, database) VALUES (`+literal(role)+`::regrole, 0)
		   ON CONFLICT (one) DO UPDATE SET role = excluded.role`)
	if replaced != 0 {
		steps = append(steps, fmt.Sprintf("UPDATE berth.tenant SET database = %d", replaced))
	}
	if st.database != 0 {
		if st.databaseName != t.Database {
			steps = append(steps, "ALTER DATABASE "+quote(st.databaseName)+" RENAME TO "+database)
		}
		steps = append(steps, open(role, database)...)
	}
	for _, sql := range steps {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return sanitized(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if st.database != 0 {
		return nil
	}
	return makeDatabase(ctx, conn, role, database)
}

// dropRest drops what a crash has left of a database in the middle of a DROP DATABASE of the
// tenant's: nothing else can be done with it.
func dropRest(ctx context.Context, conn *pgx.Conn, database string) error {
	const invalid = "SELECT oid FROM pg_database WHERE datname = $1 AND datconnlimit = -2"
	if oid, err := oidOf(ctx, conn, invalid, database); err != nil || oid == 0 {
		return err
	}
	_, err := conn.Exec(ctx, "DROP DATABASE "+quote(database))
	return err
}

// oidOf returns the OID that a query finds for a name, 0 if there is none.
func oidOf(ctx context.Context, conn *pgx.Conn, sql, name string) (oid uint32, err error) {
	if err = conn.QueryRow(ctx, sql, name).Scan(&oid); errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return oid, err
}

// makeDatabase makes the tenant's database, or finds the one that was made before a
// crash, and notes it.
func makeDatabase(ctx context.Context, conn *pgx.Conn, role, database string) error {
	_, err := conn.Exec(ctx, "CREATE DATABASE "+database+" OWNER "+role)
	if err != nil && sqlState(err) != "42P04" { // duplicate_database
		return err
	}
	steps := append(open(role, database), "UPDATE berth.tenant SET database = (SELECT oid FROM pg_database WHERE datname = "+literal(unquote(database))+")")
	for _, sql := range steps {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// open undoes what an owner may have done to its database so that it cannot be
// entered.
func open(role, database string) []string {
	return []string{
		"ALTER DATABASE " + database + " WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1",
		"ALTER DATABASE " + database + " RESET local_preload_libraries",
		"ALTER ROLE " + role + " IN DATABASE " + database + " RESET local_preload_libraries",
		"GRANT CONNECT ON DATABASE " + database + " TO " + role,
	}
}

// end ends the sessions that meet a condition, and waits until they are gone.
func end(ctx context.Context, conn *pgx.Conn, where string) (int, error) {
	const sessions = " FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND "
	var first int
	for round := 0; ; round++ {
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(pg_terminate_backend(pid))"+sessions+"("+where+")").Scan(&n); err != nil {
			return first, fmt.Errorf("end the sessions of before: %w", err)
		}
		if round == 0 {
			first = n
		}
		if n == 0 {
			return first, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return first, fmt.Errorf("end the sessions of before: %d are left: %w", n, context.Cause(ctx))
		}
	}
}

// prove logs in as a client would.
func (r *Roles) prove(ctx context.Context, c pgapi.Credentials) error {
	ctx, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	for {
		conn, err := r.server.Config().LogIn(ctx, c.Username, c.Database, c.Password)
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT").ReadAll()
			conn.Close(context.WithoutCancel(ctx))
		}
		switch state := sqlState(err); {
		case err == nil:
			return nil
		case !strings.HasPrefix(state, "53") && !strings.HasPrefix(state, "57"): // no room for one more; starting or stopping
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// sanitized keeps of PostgreSQL's error what cannot hold a verifier.
func sanitized(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return &pgconn.PgError{Severity: pg.Severity, Code: pg.Code, Message: pg.Message}
	}
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func unquote(name string) string { return strings.ReplaceAll(strings.Trim(name, `"`), `""`, `"`) }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
