package tenant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/guest/pgscram"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var first = pgapi.Credentials{Database: "app", Username: "app_owner", Password: "first-password-1"}

func set(t *testing.T, r *Roles, c pgapi.Credentials) pgapi.CredentialsApplied {
	t.Helper()
	applied, err := r.Set(pgtest.Context(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return applied
}

func logIn(t *testing.T, s *postgres.Server, c pgapi.Credentials) *pgconn.PgConn {
	t.Helper()
	conn, err := s.Config().LogIn(pgtest.Context(t), c.Username, c.Database, c.Password)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgconn.PgConn, sql string) error {
	t.Helper()
	_, err := conn.Exec(pgtest.Context(t), sql).ReadAll()
	return err
}

func with(c pgapi.Credentials, change func(*pgapi.Credentials)) pgapi.Credentials {
	change(&c)
	return c
}

func TestAVerifierIsPostgreSQLs(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	conn, err := s.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	v, err := pgscram.Verifier("a password")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^SCRAM-SHA-256\$4096:[A-Za-z0-9+/=]{24}\$[A-Za-z0-9+/=]{44}:[A-Za-z0-9+/=]{44}$`).MatchString(v) {
		t.Errorf("%s", v)
	}
	if other, _ := pgscram.Verifier("a password"); other == v {
		t.Error("two verifiers have one salt")
	}
	// PostgreSQL stores one as it is, and takes anything else for a password.
	if _, err := conn.Exec(ctx, "CREATE ROLE a PASSWORD "+literal(v)); err != nil {
		t.Fatal(err)
	}
	var stored string
	if err := conn.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = 'a'").Scan(&stored); err != nil || stored != v {
		t.Errorf("stored %s, %v", stored, err)
	}
}

func TestCredentials(t *testing.T) {
	tier.Slow(t)
	c := pgtest.Config(t)
	var log strings.Builder
	var mu sync.Mutex
	c.Output = writer(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(p) })
	s := pgtest.Run(t, c)
	r := New(s)
	ctx := pgtest.Context(t)

	t.Run("the first make role and database", func(t *testing.T) {
		set(t, r, first)
		if err := exec(t, logIn(t, s, first), "CREATE TABLE a AS SELECT 1 AS b; CREATE EXTENSION pg_trgm; CREATE EXTENSION hstore; SELECT count(*) FROM pg_stat_statements"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the same again change nothing", func(t *testing.T) {
		set(t, r, first)
		if err := exec(t, logIn(t, s, first), "SELECT b FROM a"); err != nil {
			t.Error(err)
		}
	})
	second := with(first, func(c *pgapi.Credentials) { c.Password = "second-password-'2\\" })
	t.Run("others cut the sessions of before", func(t *testing.T) {
		old := logIn(t, s, first)
		applied := set(t, r, second)
		if applied.SessionsCut != 1 {
			t.Errorf("%d sessions were cut", applied.SessionsCut)
		}
		if err := exec(t, old, "SELECT 1"); err == nil {
			t.Error("a session of before lives on")
		}
		if _, err := s.Config().LogIn(ctx, first.Username, first.Database, first.Password); sqlState(err) != "28P01" {
			t.Errorf("the old password: %v", err)
		}
		logIn(t, s, second)
	})
	third := pgapi.Credentials{Database: "other", Username: "other_owner", Password: "third-password-3"}
	t.Run("names change with what is in them", func(t *testing.T) {
		old := logIn(t, s, second)
		if err := exec(t, old, "CREATE ROLE berth_spare"); err != nil {
			t.Error(err)
		}
		set(t, r, third)
		if err := exec(t, logIn(t, s, third), "SELECT b FROM a"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a session with a lock is not in the way", func(t *testing.T) {
		blocker := logIn(t, s, third)
		if err := exec(t, blocker, "BEGIN; ALTER ROLE other_owner PASSWORD 'mine'; ALTER ROLE other_owner SET work_mem = '5MB'"); err != nil {
			t.Fatal(err)
		}
		set(t, r, with(third, func(c *pgapi.Credentials) { c.Password = "fourth-password-4" }))
		set(t, r, third)
	})
	t.Run("what a tenant did to shut itself out is undone", func(t *testing.T) {
		conn := logIn(t, s, third)
		for _, sql := range []string{
			"ALTER ROLE other_owner SET local_preload_libraries = 'gone'", "ALTER DATABASE other SET local_preload_libraries = 'gone'",
			"REVOKE CONNECT ON DATABASE other FROM PUBLIC, other_owner", "ALTER DATABASE other CONNECTION LIMIT 0", "ALTER DATABASE other ALLOW_CONNECTIONS false",
			"ALTER ROLE other_owner PASSWORD NULL",
		} {
			if err := exec(t, conn, sql); err != nil {
				t.Logf("%s: %v", sql, err)
			}
		}
		set(t, r, third)
		logIn(t, s, third)
	})
	t.Run("a database that the tenant dropped is made again", func(t *testing.T) {
		conn := logIn(t, s, third)
		if err := exec(t, conn, "CREATE DATABASE spare"); err != nil {
			t.Fatal(err)
		}
		spare := logIn(t, s, with(third, func(c *pgapi.Credentials) { c.Database = "spare" }))
		conn.Close(ctx)
		if err := exec(t, spare, "DROP DATABASE other WITH (FORCE)"); err != nil {
			t.Fatal(err)
		}
		set(t, r, third)
		logIn(t, s, third)
	})
	t.Run("a name of another role is refused", func(t *testing.T) {
		if _, err := r.Set(ctx, with(third, func(c *pgapi.Credentials) { c.Username = "berth_spare" })); !errors.Is(err, ErrNameTaken) {
			t.Error(err)
		}
		logIn(t, s, third)
	})
	t.Run("no secret is in the log", func(t *testing.T) {
		mu.Lock()
		defer mu.Unlock()
		for _, secret := range []string{"SCRAM-SHA-256$", "password-"} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("%s is in the log:\n%s", secret, log.String())
			}
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestAFailedRotationLeavesTheCredentialsOfBefore(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	r := New(s)
	set(t, r, first)
	// Nobody is let in but the platform, so the proof fails.
	if _, err := s.Reload(pgtest.Settings(), postgres.Mode{Closed: true}); err != nil {
		t.Fatal(err)
	}
	ctx := pgtest.Context(t)
	for {
		if _, err := c.LogIn(ctx, first.Username, first.Database, first.Password); sqlState(err) == "28000" {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	second := pgapi.Credentials{Database: "new", Username: "new_owner", Password: "second-password-2"}
	if _, err := r.Set(ctx, second); !errors.Is(err, ErrNotVerified) {
		t.Errorf("%v", err)
	}
	if _, err := s.Reload(pgtest.Settings(), postgres.Mode{}); err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := c.LogIn(ctx, first.Username, first.Database, first.Password)
		if err == nil {
			conn.Close(ctx)
			break
		}
		if ctx.Err() != nil || sqlState(err) != "28000" {
			t.Fatalf("the credentials of before: %v", err)
		}
	}
	if _, err := c.LogIn(ctx, second.Username, second.Database, second.Password); err == nil {
		t.Error("the new credentials work, too")
	}
}

// Who checks log-ins before they reach PostgreSQL has the same verifier.
func TestAVerifierThatIsGivenIsKept(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	c := first
	var err error
	if c.Verifier, err = pgscram.Verifier(c.Password); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := New(s).Set(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := s.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var stored string
	if err := conn.QueryRow(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", c.Username).Scan(&stored); err != nil || stored != c.Verifier {
		t.Errorf("stored %s, %v; want %s", stored, err, c.Verifier)
	}
}

// A tenant that replaces its database, as a reset or a swap of two does, would otherwise
// have one that is never rotated, cloned or restored again.
func TestADatabaseThatTheTenantPutInTheOthersPlace(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	r := New(s)
	ctx := pgtest.Context(t)
	set(t, r, first)
	owner := logIn(t, s, first)
	if err := exec(t, owner, "CREATE DATABASE beside"); err != nil {
		t.Fatal(err)
	}
	owner.Close(ctx)
	beside := with(first, func(c *pgapi.Credentials) { c.Database = "beside" })
	for name, steps := range map[string][]string{
		"dropped and made again": {"DROP DATABASE app WITH (FORCE)", "CREATE DATABASE app"},
		"renamed, and another":   {"ALTER DATABASE app RENAME TO before", "CREATE DATABASE app"},
		"its owner another role": {"CREATE ROLE made", "DROP DATABASE app WITH (FORCE)", "CREATE DATABASE app OWNER made"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := logIn(t, s, beside)
			for _, sql := range steps {
				if err := exec(t, conn, sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			there := logIn(t, s, first)
			if err := exec(t, there, "CREATE SCHEMA there"); err != nil {
				t.Fatal(err)
			}
			there.Close(ctx)
			set(t, r, first)
			after := logIn(t, s, first)
			if err := exec(t, after, "DROP SCHEMA there"); err != nil {
				t.Error(err)
			}
			after.Close(ctx)
			admin, err := s.Connect(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close(ctx)
			if now, err := Current(ctx, admin); err != nil || now != first.Tenant() {
				t.Errorf("%+v, %v", now, err)
			}
		})
	}
}

// A crash in the middle of DROP DATABASE leaves one that can only be dropped again.
func TestADatabaseThatWasBeingDropped(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	r := New(s)
	ctx := pgtest.Context(t)
	set(t, r, first)
	admin, err := s.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'app'"); err != nil { // as dropdb does
		t.Fatal(err)
	}
	set(t, r, first)
	logIn(t, s, first)
}

func TestRotationsThatOverlapAreRefused(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	r := New(s)
	r.busy.Lock()
	if _, err := r.Set(pgtest.Context(t), first); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	r.busy.Unlock()
	set(t, r, first)
}

func TestCredentialsThatAreNone(t *testing.T) {
	for name, change := range map[string]func(*pgapi.Credentials){
		"no database":              func(c *pgapi.Credentials) { c.Database = "" },
		"the platform's role":      func(c *pgapi.Credentials) { c.Username = "berth" },
		"the platform's database":  func(c *pgapi.Credentials) { c.Database = "postgres" },
		"a predefined role":        func(c *pgapi.Credentials) { c.Username = "pg_monitor" },
		"a quote":                  func(c *pgapi.Credentials) { c.Username = `a"b` },
		"a name that is too long":  func(c *pgapi.Credentials) { c.Username = strings.Repeat("a", 64) },
		"capitals":                 func(c *pgapi.Credentials) { c.Username = "App" },
		"a keyword of pg_hba.conf": func(c *pgapi.Credentials) { c.Database = "replication" },
		"a short password":         func(c *pgapi.Credentials) { c.Password = "short" },
		"a long password":          func(c *pgapi.Credentials) { c.Password = strings.Repeat("a", 257) },
		"a password with a space":  func(c *pgapi.Credentials) { c.Password = "with a space in it" },
		"a password with a NUL":    func(c *pgapi.Credentials) { c.Password = "with-a-nul-\x00-in-it" },
		"another password's verifier": func(c *pgapi.Credentials) {
			c.Verifier, _ = pgscram.Verifier("another-password")
		},
		"a verifier that is none":   func(c *pgapi.Credentials) { c.Verifier = "md5abc" },
		"a password with an umlaut": func(c *pgapi.Credentials) { c.Password = "mit-ümläuten-drin" },
	} {
		_, err := New(nil).Set(context.Background(), with(first, change))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "password-1") {
			t.Errorf("%s: the error has the password: %v", name, err)
		}
	}
}

func TestWhatATenantMayNotDo(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	set(t, New(s), first)
	conn := logIn(t, s, first)
	for _, sql := range []string{
		"CREATE ROLE made LOGIN CREATEROLE PASSWORD 'made'", "CREATE DATABASE second", "CREATE SCHEMA s",
		"CREATE EXTENSION pgcrypto", `CREATE EXTENSION "uuid-ossp"`, "CREATE EXTENSION citext", "LISTEN a", "SET work_mem = '8MB'",
		"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'", "GRANT made TO app_owner",
	} {
		if err := exec(t, conn, sql); err != nil {
			t.Errorf("a tenant may not: %s: %v", sql, err)
		}
	}
	for _, sql := range []string{
		// More power.
		"ALTER ROLE app_owner SUPERUSER", "ALTER ROLE app_owner REPLICATION", "ALTER ROLE app_owner BYPASSRLS", "CREATE ROLE x SUPERUSER", "CREATE ROLE x REPLICATION", "CREATE ROLE x BYPASSRLS",
		"SET ROLE berth", "SET SESSION AUTHORIZATION berth", "GRANT berth TO app_owner",
		"GRANT pg_execute_server_program TO app_owner", "GRANT pg_read_server_files TO made", "GRANT pg_write_server_files TO app_owner", "GRANT pg_read_all_data TO made",
		"GRANT pg_signal_backend TO app_owner", "GRANT pg_use_reserved_connections TO app_owner", "CREATE ROLE x IN ROLE pg_monitor", "CREATE ROLE x ADMIN berth",
		"SET createrole_self_grant = 'set'; CREATE ROLE x IN ROLE berth",
		// What is the platform's.
		"DROP ROLE berth", "ALTER ROLE berth PASSWORD 'x'", "ALTER ROLE berth NOLOGIN", "ALTER ROLE berth SET search_path = public", "DROP DATABASE postgres", "ALTER DATABASE postgres RENAME TO x",
		"CREATE DATABASE x TEMPLATE postgres", "ALTER DATABASE template1 SET search_path = public", "REASSIGN OWNED BY berth TO app_owner", "DROP OWNED BY berth",
		"DROP EXTENSION pg_stat_statements", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'berth' OR backend_type = 'checkpointer'",
		"COMMENT ON ROLE berth IS 'x'", "DELETE FROM pg_authid", "UPDATE pg_database SET datallowconn = false", "LOCK TABLE pg_authid", "LOCK TABLE pg_database IN ROW EXCLUSIVE MODE",
		// Settings.
		"ALTER SYSTEM SET archive_mode = off", "ALTER SYSTEM SET work_mem = '1GB'", "SELECT pg_reload_conf()", "SET archive_command = 'x'", "SET temp_file_limit = -1", "SET log_statement = 'all'",
		"SET zero_damaged_pages = on", "SET session_preload_libraries = 'x'", "SET session_replication_role = replica", "SET allow_system_table_mods = on", "ALTER ROLE app_owner SET log_min_messages = debug5",
		"GRANT ALTER SYSTEM ON PARAMETER work_mem TO app_owner",
		// Files, programs, code.
		"COPY (SELECT 1) TO PROGRAM 'id'", "COPY pg_class FROM PROGRAM 'id'", "COPY (SELECT 1) TO '/tmp/x'", "CREATE TABLE p (a text); COPY p FROM '/etc/passwd'",
		"SELECT lo_import('/etc/passwd')", "SELECT lo_export(1, '/tmp/x')", "SELECT pg_read_file('PG_VERSION')", "SELECT pg_read_binary_file('PG_VERSION')", "SELECT pg_ls_dir('.')", "SELECT pg_stat_file('PG_VERSION')",
		"SELECT pg_ls_waldir()", "SELECT * FROM pg_hba_file_rules", "SELECT * FROM pg_file_settings", "SELECT * FROM pg_authid", "SELECT * FROM pg_shadow",
		"CREATE FUNCTION c() RETURNS int LANGUAGE c AS 'libc', 'getpid'", "CREATE FUNCTION i() RETURNS int LANGUAGE internal AS 'pg_backend_pid'", "LOAD 'auto_explain'", "LOAD '$libdir/plugins/x'",
		"CREATE EXTENSION file_fdw", "CREATE EXTENSION dblink", "CREATE EXTENSION adminpack", "CREATE EXTENSION pageinspect", "CREATE EXTENSION plpython3u", "CREATE EXTENSION pltclu", "CREATE LANGUAGE plpgsql2 HANDLER plpgsql_call_handler",
		"CREATE TABLESPACE x LOCATION '/tmp'", "CREATE EVENT TRIGGER x ON ddl_command_start EXECUTE FUNCTION f()", "CREATE SUBSCRIPTION x CONNECTION 'host=127.0.0.1' PUBLICATION y",
		// WAL, backup, recovery.
		"CHECKPOINT", "SELECT pg_switch_wal()", "SELECT pg_create_restore_point('x')", "SELECT pg_backup_start('x')", "SELECT pg_promote()", "SELECT pg_create_physical_replication_slot('x')", "SELECT pg_create_logical_replication_slot('x', 'test_decoding')",
		"SELECT pg_stat_reset_shared('archiver')", "SELECT pg_rotate_logfile()", "SELECT pg_log_backend_memory_contexts(1)", "SELECT pg_current_logfile()",
		// A template that all later databases would be made of.
		"CREATE DATABASE x ALLOW_CONNECTIONS true TEMPLATE template0 IS_TEMPLATE true OWNER berth",
	} {
		conn := logIn(t, s, first)
		if err := exec(t, conn, sql); err == nil {
			t.Errorf("a tenant may: %s", sql)
		} else if state := sqlState(err); strings.HasPrefix(state, "42601") || state == "42703" {
			t.Errorf("the test's own fault: %s: %v", sql, err)
		}
		conn.Close(context.Background())
	}
	// A role that the tenant made has no more.
	made := logIn(t, s, with(first, func(c *pgapi.Credentials) { c.Username, c.Password = "made", "made" }))
	for _, sql := range []string{"GRANT app_owner TO made", "ALTER ROLE app_owner PASSWORD 'x'", "DROP ROLE app_owner", "DROP ROLE berth", "ALTER ROLE made SUPERUSER", "GRANT pg_monitor TO made"} {
		if err := exec(t, made, sql); err == nil {
			t.Errorf("a role of the tenant's may: %s", sql)
		}
	}
	if err := exec(t, conn, "SELECT 1"); err != nil {
		t.Errorf("the server did not survive it: %v", err)
	}
}
