package pgsni

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// psql runs the real psql, with libpq of its version, through a router.
type psql struct {
	t      testing.TB
	router *serving
	ca     string
}

func newPsql(t testing.TB, router *serving) psql { return psql{t, router, caFile(t)} }

// command is psql for a name, with more connection parameters.
func (p psql) command(name, params string, args ...string) *exec.Cmd {
	_, port, _ := strings.Cut(p.router.addr, ":")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	p.t.Cleanup(cancel)
	info := "host=" + name + "." + domain + " hostaddr=127.0.0.1 port=" + port + " dbname=postgres " + params
	if !strings.Contains(params, "user=") {
		info += " user=" + role
	}
	cmd := exec.CommandContext(ctx, "psql", append([]string{"-XAtq", "-v", "ON_ERROR_STOP=1", "-d", info}, args...)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password, "PGSSLROOTCERT="+p.ca, "PGSYSCONFDIR=/nonexistent", "HOME=/nonexistent", "LC_ALL=C")
	return cmd
}

// run answers what psql prints, both streams.
func (p psql) run(name, params, script string) (string, error) {
	cmd := p.command(name, params)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (p psql) must(params, script string) string {
	p.t.Helper()
	out, err := p.run(known, params, script)
	if err != nil {
		p.t.Fatalf("psql %s: %v: %s", params, err, out)
	}
	return out
}

// backends are the two ways to log in: checked by the server, and by the router.
func backends(t *testing.T, test func(t *testing.T, cfg Config, b Backend)) {
	server := realPostgres(t)
	t.Run("the server checks", func(t *testing.T) { test(t, Config{}, server) })
	t.Run("the router checks", func(t *testing.T) { test(t, Config{ChecksLogins: true}, server.checked(t)) })
}

// sslModes are libpq's settings that a client is told to use.
var sslModes = []string{"sslmode=require", "sslmode=verify-full"}

func TestPsql(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		p := newPsql(t, serve(t, cfg, only(b)))
		for _, mode := range append(sslModes, "sslmode=prefer", "sslmode=require channel_binding=disable") {
			t.Run(mode, func(t *testing.T) {
				p := psql{t, p.router, p.ca}
				if out := p.must(mode, "SELECT 40 + 2;"); out != "42" {
					t.Errorf("SELECT: %s", out)
				}
				if out := p.must(mode, "PREPARE s(int) AS SELECT $1 * 2; EXECUTE s(21);"); out != "42" {
					t.Errorf("a prepared statement: %s", out)
				}
				copied := "CREATE TEMP TABLE t(n int, s text); INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 10000) g;\n" +
					"\\copy t TO PROGRAM 'cat > /dev/null'\n" +
					"CREATE TEMP TABLE u(LIKE t);\n\\copy u FROM PROGRAM 'for i in $(seq 10000); do echo \"$i\tx\"; done'\nSELECT count(*), sum(n) FROM u;"
				if out := p.must(mode, copied); out != "10000|50005000" {
					t.Errorf("COPY: %s", out)
				}
				if out := p.must(mode, "LISTEN news; NOTIFY news, 'hello';"); !strings.Contains(out, `"news" with payload "hello"`) {
					t.Errorf("NOTIFY: %s", out)
				}
			})
		}
	})
}

// Ctrl-C in psql calls PQcancel, which until libpq 16 sends it in plaintext.
func TestCtrlCInPsqlCancelsTheQuery(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		p := newPsql(t, serve(t, cfg, only(b)))
		cmd := p.command(known, "sslmode=verify-full", "-c", "DO $$ BEGIN RAISE NOTICE 'asleep'; PERFORM pg_sleep(600); END $$")
		var out syncBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "psql is in the query", func() bool { return strings.Contains(out.String(), "asleep") })
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		tick := time.NewTicker(100 * time.Millisecond) // until psql has ended
		defer tick.Stop()
		for {
			_ = cmd.Process.Signal(syscall.SIGINT)
			select {
			case <-ended:
			case <-tick.C:
				if time.Since(began) < patience {
					continue
				}
				t.Fatalf("the query goes on: %s", out.String())
			}
			break
		}
		if !strings.Contains(out.String(), "canceling statement due to user request") {
			t.Errorf("%s", out.String())
		}
	})
}

func TestPsqlChannelBindingRequired(t *testing.T) {
	t.Run("the server checks", func(t *testing.T) {
		p := newPsql(t, serve(t, Config{}, only(realPostgres(t))))
		out, err := p.run(known, "sslmode=verify-full channel_binding=require", "SELECT 1;")
		if err == nil || !strings.Contains(out, "channel binding is required, but server did not offer an authentication method that supports channel binding") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("the router checks", func(t *testing.T) {
		p := newPsql(t, serve(t, Config{ChecksLogins: true}, only(realPostgres(t).checked(t))))
		if out := p.must("sslmode=verify-full channel_binding=require", "SELECT 1;"); out != "1" {
			t.Errorf("%s", out)
		}
	})
}

func TestPsqlCannotTellAnUnknownNameFromAWrongPassword(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		p := newPsql(t, serve(t, cfg, only(b)))
		for _, params := range []string{"", " channel_binding=disable", " user=nobody_here"} {
			said := func(name string) string {
				cmd := p.command(name, "sslmode=verify-full"+params, "-v", "VERBOSITY=verbose", "-c", "SELECT 1")
				cmd.Env = append(cmd.Env, "PGPASSWORD=wrong")
				out, err := cmd.CombinedOutput()
				if err == nil {
					t.Errorf("%s: logged in", name)
				}
				return strings.ReplaceAll(string(out), name, "<name>")
			}
			wrong, unknown := said(known), said("3f2b8c1d-0000-4000-8000-000000000000")
			if wrong != unknown || !strings.Contains(wrong, "password authentication failed for user") {
				t.Errorf("%s: wrong password: %s\nunknown name: %s", params, wrong, unknown)
			}
		}
	})
}

func TestPsqlWithoutTLSIsToldHow(t *testing.T) {
	p := newPsql(t, serve(t, Config{}, only(realPostgres(t))))
	out, err := p.run(known, "sslmode=disable", "SELECT 1;")
	if err == nil || !strings.Contains(out, "connect with sslmode=require") {
		t.Errorf("%v: %s", err, out)
	}
	// With "allow" libpq tries plaintext first, and TLS after that was refused.
	if out := p.must("sslmode=allow", "SELECT 1;"); out != "1" {
		t.Errorf("sslmode=allow: %s", out)
	}
}

// A link to the server with TLS of PostgreSQL's own does not do: the server offers
// to bind to its certificate, and the client binds to the router's.
func TestABackendMayNotBeReachedByPostgresTLS(t *testing.T) {
	server := realPostgres(t)
	router := serve(t, Config{}, only(dialFunc(func(ctx context.Context) (net.Conn, error) {
		c, err := server.Dial(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := c.Write(framedBytes(codeSSL, "")); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return nil, err
		}
		return tls.Client(c, &tls.Config{InsecureSkipVerify: true}), nil
	})))
	p := newPsql(t, router)
	if out, err := p.run(known, "sslmode=require", "SELECT 1;"); err == nil || !strings.Contains(out, "channel binding check failed") {
		t.Errorf("%v: %s", err, out)
	}
	if out := p.must("sslmode=require channel_binding=disable", "SELECT 1;"); out != "1" {
		t.Error(out)
	}
}

// syncBuffer is a buffer that a command writes to while a test reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
