// Package drivers has programs that do what clients of a database do, each by another
// driver of its registry, and a test that runs them: against the Berth that BERTH_URL
// names, or else against a PostgreSQL of this machine behind the router.
package drivers

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// target is a database, as each driver is told of it.
type target struct {
	url  string // without sslmode
	addr string // host:port where the name in url leads
	ca   string // a file
}

// driver is a program that does what a client does. It prints "ok: STEP" for what it
// has done. At last it closes all that it has opened, prints "ready: sleep" and waits
// for a line; connects again; prints "ready: rotation" with a session open, and waits
// for a line: the new URL, when the old session and the old password are worth nothing.
type driver struct {
	name  string
	argv  []string
	steps []string // that it must say it has done
}

func all(root string) []driver {
	tools := filepath.Join(root, ".tools", "drivers")
	common := []string{"connect verify-full", "prepared statements", "copy", "listen, notify", "cancel"}
	with := func(more ...string) []string { return append(more, common...) }
	python := filepath.Join(tools, "python", "bin", "python")
	return []driver{
		{"psql", []string{"psql/run"}, with("connect require", "connect channel_binding=require")},
		{"pgx", []string{"go", "run", "./pgx"}, with("connect require", "connect channel_binding=require")},
		{"psycopg", []string{python, "python/psycopg_driver.py"}, with("connect require", "connect channel_binding=require")},
		{"sqlalchemy", []string{python, "python/sqlalchemy_driver.py"}, with("connect require", "schema and objects")},
		{"node-postgres", []string{"node", filepath.Join(tools, "node", "pg.mjs")}, with("connect require")},
		{"drizzle", []string{"node", filepath.Join(tools, "node", "drizzle.mjs")}, []string{"migrations", "prepared statements, transactions"}},
		{"jdbc", []string{"java", "-Djdk.net.hosts.file={hosts}", "-cp", filepath.Join(tools, "jdbc", "postgresql.jar"), "jdbc/Driver.java"}, with("connect require")},
		{"prisma", []string{"node", filepath.Join(tools, "node", "prisma.mjs")}, []string{"schema", "queries, transactions", "cancel"}},
		{"tokio-postgres", []string{filepath.Join(tools, "rust", "debug", "tokio_postgres_driver")}, common},
		{"sqlx", []string{"env", "LD_PRELOAD=libnss_wrapper.so", "NSS_WRAPPER_HOSTS={hosts}", filepath.Join(tools, "rust", "debug", "sqlx_driver")}, with("connect require")},
	}
}

// service is who has the database, and does with it what the programs wait for.
type service interface {
	target(t *testing.T) target
	sleep(t *testing.T)         // returns when the database sleeps
	rotate(t *testing.T) string // changes the password and returns the new URL
}

func newService(t *testing.T) service {
	t.Helper()
	if os.Getenv("BERTH_URL") == "" {
		return newLocal(t)
	}
	return newStack(t)
}

// TestDrivers needs `scripts/install-deps drivers`; `make drivers` runs both.
func TestDrivers(t *testing.T) {
	if os.Getenv("BERTH_DRIVERS") != "1" {
		t.Skip("needs drivers of several registries: make drivers")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t)
	for _, d := range all(root) {
		t.Run(d.name, func(t *testing.T) { d.run(t, s) })
	}
}

// run runs a program and plays its other side: each "ready: STEP" that it prints
// waits for a line.
func (d driver) run(t *testing.T, s service) {
	at := s.target(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	argv := make([]string, len(d.argv))
	for i, arg := range d.argv {
		argv[i] = strings.ReplaceAll(arg, "{hosts}", at.hosts(t))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), at.environment()...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { // a failure in the middle ends the program too
		cancel()
		_ = cmd.Wait()
	}()
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		answer := ""
		switch lines.Text() {
		case "ready: sleep":
			s.sleep(t)
		case "ready: rotation":
			answer = s.rotate(t)
		default:
			continue
		}
		if _, err := io.WriteString(in, answer+"\n"); err != nil {
			t.Errorf("after %q it does not listen: %v", lines.Text(), err)
		}
		if answer != "" {
			in.Close() // it was the last one
		}
	}
	all := strings.Join(said, "\n")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, all, &complaints)
	}
	t.Logf("%s", time.Since(began).Round(10*time.Millisecond))
	for _, step := range append(d.steps, "wake", "rotation") {
		if !slices.Contains(said, "ok: "+step) {
			t.Errorf("it did not say that it has done %q:\n%s\n%s", step, all, &complaints)
		}
	}
}

func (at target) environment() []string {
	return []string{"DRIVER_URL=" + at.url, "DRIVER_ADDR=" + at.addr, "DRIVER_CA=" + at.ca}
}

// hosts is a file that has the address of the database's name, for who can be given
// no address beside a name.
func (at target) hosts(t *testing.T) string {
	t.Helper()
	_, host, _ := strings.Cut(at.url, "@")
	host, _, _ = strings.Cut(host, ":")
	addr, _, _ := strings.Cut(at.addr, ":")
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte(addr+" "+host+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
