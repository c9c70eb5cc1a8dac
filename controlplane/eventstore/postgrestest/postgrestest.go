// Package postgrestest runs a PostgreSQL server for tests of the event store.
package postgrestest

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// nobody is an unprivileged user, because the server refuses to run as root.
const nobody = 65534

// startTimeout is how long a server may take to accept connections.
const startTimeout = 30 * time.Second

// Server is a PostgreSQL server on the loopback. Its methods are not for
// concurrent use.
type Server struct {
	bin, dir string
	port     int
	run      *exec.Cmd // nil while stopped
}

// New creates an empty server on a free port and starts it.
func New() (_ *Server, err error) {
	s := &Server{}
	if s.bin, err = programs(); err != nil {
		return nil, fmt.Errorf("no PostgreSQL (scripts/install-deps test installs it): %w", err)
	}
	if s.dir, err = os.MkdirTemp("", "berth-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Remove()
		}
	}()
	if err := os.Chown(s.dir, nobody, nobody); err != nil {
		return nil, err
	}
	initdb := s.command("initdb", "-D", s.data(), "-U", "berth", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	return s, s.Start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Start starts a stopped server with its data, and returns when it accepts
// connections.
func (s *Server) Start() error {
	s.run = s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1", "-c", "fsync=off")
	if err := s.run.Start(); err != nil {
		s.run = nil
		return err
	}
	return s.await()
}

// Stop ends the server like a crash: connections are cut, and the next start
// recovers from the log.
func (s *Server) Stop() {
	if s.run == nil {
		return
	}
	_ = s.run.Process.Signal(syscall.SIGQUIT)
	_ = s.run.Wait() // its status is that of a crash
	s.run = nil
}

// Remove ends the server and deletes its data.
func (s *Server) Remove() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

// CreateDatabase creates a database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	db, err := sql.Open("pgx", s.URL("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// URL returns the URL of a database.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://berth@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// await returns once the server accepts connections.
func (s *Server) await() error {
	db, err := sql.Open("pgx", s.URL("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = db.Ping(); err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-deadline.C:
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		}
	}
}

// programs returns the directory of the server's programs, which Debian does not put
// on the PATH.
func programs() (string, error) {
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
