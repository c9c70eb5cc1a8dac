package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func query(t *testing.T, s *postgres.Server, sql string) string {
	t.Helper()
	ctx := pgtest.Context(t)
	conn, err := s.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	last := rows[len(rows)-1]
	if len(last.Rows) == 0 {
		return ""
	}
	return string(last.Rows[0][0])
}

// must awaits a condition of the server.
func await(t *testing.T, s *postgres.Server, what string, ok func(postgres.View) bool) postgres.View {
	t.Helper()
	ctx := pgtest.Context(t)
	for {
		v, changed := s.View()
		if ok(v) {
			return v
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("not %s: %+v", what, v)
		}
	}
}

func TestAServerIsAsItShouldBe(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	for sql, want := range map[string]string{
		"SHOW data_checksums":      "on",
		"SHOW max_connections":     "50",
		"SHOW archive_timeout":     "40s",
		"SHOW server_encoding":     "UTF8",
		"SHOW password_encryption": "scram-sha-256",
		"SELECT session_user":      "berth",
		"SELECT count(*) FROM pg_settings WHERE pending_restart": "0",
		"SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datallowconn AND has_database_privilege('pg_monitor', datname, 'CONNECT')": "",
		"SELECT count(*) FROM pg_hba_file_rules WHERE error IS NOT NULL":                                                                                    "0",
		"SELECT count(*) FROM pg_ident_file_mappings WHERE error IS NOT NULL":                                                                               "0",
		"SELECT count(*) FROM pg_file_settings WHERE error IS NOT NULL":                                                                                     "0",
	} {
		if got := query(t, s, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

// state is the SQLSTATE of an error.
func state(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return fmt.Sprint(err)
}

func TestNobodyComesInWithoutAPassword(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	ctx := pgtest.Context(t)
	query(t, s, "CREATE ROLE app LOGIN PASSWORD 'right'")
	query(t, s, "ALTER ROLE berth PASSWORD 'known'")
	query(t, s, "CREATE DATABASE app OWNER app")
	for name, c := range map[string]struct{ role, database, password, want string }{
		"the right password":      {"app", "app", "right", "<nil>"},
		"a wrong password":        {"app", "app", "wrong", "28P01"},
		"no password":             {"app", "app", "", "28P01"},
		"a role that is not":      {"nobody", "app", "right", "28P01"},
		"the platform's role":     {"berth", "postgres", "known", "28000"},
		"the platform's database": {"app", "postgres", "right", "42501"},
		"the template":            {"app", "template1", "right", "42501"},
	} {
		conn, err := s.Config().LogIn(ctx, c.role, c.database, c.password)
		if err == nil {
			conn.Close(ctx)
		}
		if got := state(err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	// From another address than the gateway's, with the right password.
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=app dbname=app password=right sslmode=disable", c.Port))
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{"127.0.0.2": "<nil>", "127.0.0.3": "28000"} {
		cfg.DialFunc = dialFrom(from)
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		if err == nil {
			conn.Close(ctx)
		}
		if got := state(err); got != want {
			t.Errorf("from %s: %s, want %s", from, got, want)
		}
	}
	// By replication.
	cfg.RuntimeParams["replication"] = "true"
	cfg.DialFunc = dialFrom("127.0.0.2")
	if _, err := pgconn.ConnectConfig(ctx, cfg); state(err) != "28000" {
		t.Errorf("replication: %v", err)
	}
}

func TestNobodyComesInWhileItIsClosed(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	query(t, s, "CREATE ROLE app LOGIN PASSWORD 'right'; ")
	if err := s.Restart(ctx, postgres.Mode{Closed: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Config().LogIn(ctx, "app", "postgres", "right"); state(err) != "28000" {
		t.Errorf("a log-in while closed: %v", err)
	}
}

func TestSettingsOfDataThatCameFromElsewhereAreDropped(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	ctx := pgtest.Context(t)
	query(t, s, "ALTER SYSTEM SET archive_command = 'true'")
	if err := s.Restart(ctx, postgres.Mode{}); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s, "SHOW archive_command"); !strings.Contains(got, "archive") {
		t.Errorf("archive_command is %s", got)
	}
}

func postmaster(t *testing.T, c postgres.Config) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestAServerThatDiesIsStartedAgain(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	query(t, s, "CREATE TABLE public.kept AS SELECT 1 AS a")
	if err := syscall.Kill(postmaster(t, c), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, s, "ready again", func(v postgres.View) bool { return v.Restarts == 1 && v.State == pgapi.StateReady })
	if got := query(t, s, "SELECT a FROM public.kept"); got != "1" {
		t.Errorf("the committed row is %q", got)
	}
}

// Where memory runs out the kernel ends a session and not the postmaster, which keeps
// guestpg's protection. The others' sessions end too, and what was committed is there.
func TestASessionThatTakesAllMemory(t *testing.T) {
	const mine = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	protected := os.WriteFile(mine, []byte("-500"), 0o644) == nil // as guestpg is; containers may not
	t.Cleanup(func() { _ = os.WriteFile(mine, was, 0o644) })
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	query(t, s, "CREATE TABLE public.kept AS SELECT 1 AS a")
	ctx := pgtest.Context(t)
	greedy, err := s.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer greedy.Close(context.Background())
	main := postmaster(t, c)
	session := int(greedy.PgConn().PID())
	for pid, want := range map[int]string{main: "-500", session: "0"} {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if !protected {
			want = strings.TrimSpace(string(was))
		}
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("the kernel's killer sees process %d with %q, %v; want %s", pid, got, err, want)
		}
	}
	if err := syscall.Kill(session, syscall.SIGKILL); err != nil { // as the kernel does
		t.Fatal(err)
	}
	if _, err := greedy.Exec(ctx, "SELECT 1"); err == nil {
		t.Error("its session goes on")
	}
	await(t, s, "ready", func(v postgres.View) bool { return v.State == pgapi.StateReady })
	pgtest.Await(t, "another session", func() bool {
		conn, err := s.Connect(ctx)
		if err != nil {
			return false
		}
		defer conn.Close(ctx)
		var a int
		return conn.QueryRow(ctx, "SELECT a FROM public.kept").Scan(&a) == nil && a == 1
	})
	if now := postmaster(t, c); now != main {
		t.Errorf("the postmaster was %d and is %d", main, now)
	}
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	ctx := pgtest.Context(t)
	if err := s.Stop(ctx, false); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(c.Data(), "global", "pg_control")
	raw, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(control, 16); err != nil {
		t.Fatal(err)
	}
	s.Start(postgres.Mode{}, false)
	v := await(t, s, "failed", func(v postgres.View) bool { return v.State == pgapi.StateFailed })
	if log := strings.Join(v.LogTail, "\n"); v.Err == nil || !strings.Contains(log, "pg_control") {
		t.Errorf("error %v, log:\n%s", v.Err, log)
	}
	if err := os.WriteFile(control, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, s, "ready, once the cause is gone", func(v postgres.View) bool { return v.State == pgapi.StateReady })
}

func TestWritesThatAreStoppedCannotBeAllowedByASession(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	query(t, s, "CREATE ROLE app LOGIN CREATEDB CREATEROLE PASSWORD 'p'")
	query(t, s, "CREATE DATABASE app OWNER app")
	sql := func(statements ...string) error {
		conn, err := s.Config().LogIn(ctx, "app", "app", "p")
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		for _, statement := range statements {
			if _, err = conn.Exec(ctx, statement).ReadAll(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := sql("CREATE TABLE a AS SELECT 1 AS b"); err != nil {
		t.Fatal(err)
	}
	timeline := query(t, s, "SELECT timeline_id FROM pg_control_checkpoint()")

	// A server that takes reads alone is not told so by its clients.
	if _, err := s.Reload(pgtest.Settings(), postgres.Mode{Limited: true}); err != nil {
		t.Fatal(err)
	}
	for state(sql("INSERT INTO a VALUES (2)")) != "25006" {
		if ctx.Err() != nil {
			t.Fatal("writes are not limited")
		}
	}
	if err := sql("BEGIN READ WRITE", "DELETE FROM a WHERE b = 2", "COMMIT"); err != nil {
		t.Errorf("room cannot be made while writes are limited: %v", err)
	}

	if err := s.Restart(ctx, postgres.Mode{Standby: true}); err != nil {
		t.Fatal(err)
	}
	if err := sql("SELECT * FROM a"); err != nil {
		t.Errorf("a read: %v", err)
	}
	for _, statements := range [][]string{
		{"INSERT INTO a VALUES (3)"},
		{"SET default_transaction_read_only = off", "INSERT INTO a VALUES (3)"},
		{"BEGIN READ WRITE", "INSERT INTO a VALUES (3)"},
		{"SET transaction_read_only = off"},
		{"CREATE TEMP TABLE x (a int)"},
		{"CREATE DATABASE other"},
		{"ALTER ROLE app PASSWORD 'x'"},
		{"SELECT pg_logical_emit_message(false, 'a', 'b')"},
		{"SELECT nextval('a')"},
	} {
		if err := sql(statements...); err == nil {
			t.Errorf("%s was done while writes are stopped", statements)
		}
	}

	if err := s.Restart(ctx, postgres.Mode{}); err != nil {
		t.Fatal(err)
	}
	await(t, s, "ready", func(v postgres.View) bool { return v.State == pgapi.StateReady })
	if err := sql("INSERT INTO a VALUES (3)"); err != nil {
		t.Errorf("a write when writes are open again: %v", err)
	}
	if got := query(t, s, "CHECKPOINT; SELECT timeline_id FROM pg_control_checkpoint()"); got != timeline {
		t.Errorf("timeline %s became %s", timeline, got)
	}
}

func TestThePostgreSQLOfAGuestpgThatDiedIsEnded(t *testing.T) {
	c := pgtest.Config(t)
	s := pgtest.Run(t, c)
	before := postmaster(t, c)
	// A second one over the same data, as after guestpg was killed.
	second := postgres.New(c, pgtest.Settings(), nil)
	ctx, cancel := context.WithCancel(pgtest.Context(t))
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	defer func() { cancel(); <-done }()
	s.Start(postgres.Mode{}, true) // the first is not to compete
	second.Start(postgres.Mode{}, false)
	await(t, second, "ready", func(v postgres.View) bool { return v.State == pgapi.StateReady })
	await(t, s, "failed", func(v postgres.View) bool { return v.State == pgapi.StateFailed })
	if after := postmaster(t, c); after == before || syscall.Kill(before, 0) == nil {
		t.Errorf("process %d became %d", before, after)
	}
}

func TestAServerEndsInTime(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx, cancel := context.WithTimeout(pgtest.Context(t), time.Nanosecond)
	defer cancel()
	if err := s.Stop(ctx, false); err != nil {
		t.Fatal(err)
	}
	if v, _ := s.View(); v.State != pgapi.StateStopped {
		await(t, s, "stopped", func(v postgres.View) bool { return v.State == pgapi.StateStopped })
	}
}

// dialFrom connects from an address.
func dialFrom(addr string) pgconn.DialFunc {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return d.DialContext
}
