package eventstore

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is one PostgreSQL for the tests of this package, started by the first
// that needs it; each test has a database of its own.
var server struct {
	once sync.Once
	port int
	err  error
	stop func()
	next int
	mu   sync.Mutex
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.stop != nil {
		server.stop()
	}
	os.Exit(code)
}

// postgres returns the DSN of a new database.
func postgres(t *testing.T) string {
	t.Helper()
	if os.Getenv("BERTH_TEST_ROOT") != "1" {
		t.Skip("starts a PostgreSQL server; run with BERTH_TEST_ROOT=1")
	}
	server.once.Do(startPostgres)
	if server.err != nil {
		t.Fatalf("PostgreSQL (scripts/install-deps test installs it): %v", server.err)
	}
	dsn := func(database string) string {
		return fmt.Sprintf("postgres://berth@127.0.0.1:%d/%s?sslmode=disable", server.port, database)
	}
	server.mu.Lock()
	server.next++
	name := "events" + strconv.Itoa(server.next)
	server.mu.Unlock()
	db, err := sql.Open("pgx", dsn("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return dsn(name)
}

// startPostgres starts a server on a free port of the loopback, as the
// unprivileged user that it insists on.
func startPostgres() {
	server.err = func() error {
		bin, err := postgresBin()
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "berth-postgres-")
		if err != nil {
			return err
		}
		const nobody = 65534
		user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			return err
		}
		data := filepath.Join(dir, "data")
		initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "berth", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
		initdb.SysProcAttr, initdb.Dir = user, dir
		if out, err := initdb.CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w: %s", err, out)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server.port = l.Addr().(*net.TCPAddr).Port
		l.Close()
		run := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(server.port), "-k", dir, "-h", "127.0.0.1", "-c", "fsync=off")
		run.SysProcAttr, run.Dir = user, dir
		if err := run.Start(); err != nil {
			return err
		}
		server.stop = func() {
			_ = run.Process.Signal(syscall.SIGQUIT)
			_ = run.Wait()
			_ = os.RemoveAll(dir)
		}
		return awaitServer(server.port)
	}()
}

// awaitServer returns once the server takes connections.
func awaitServer(port int) error {
	db, err := sql.Open("pgx", fmt.Sprintf("postgres://berth@127.0.0.1:%d/postgres?sslmode=disable", port))
	if err != nil {
		return err
	}
	defer db.Close()
	deadline := time.After(30 * time.Second)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = db.Ping(); err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-deadline:
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
}

// postgresBin finds the directory of the server's programs: Debian keeps them
// off the PATH.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		slices.Sort(found)
		return filepath.Dir(found[len(found)-1]), nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", err
	}
	return filepath.Dir(initdb), nil
}
