package pgsni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pgxConfig is pgx's configuration for a name behind a router.
func pgxConfig(t testing.TB, router *serving, name, params string) *pgx.ConnConfig {
	t.Helper()
	_, port, _ := strings.Cut(router.addr, ":")
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s.%s port=%s user=%s dbname=postgres sslrootcert=%s %s", name, domain, port, role, caFile(t), params))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = password
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	for _, f := range cfg.Fallbacks {
		f.Host = cfg.Host
	}
	return cfg
}

func connectPgx(t testing.TB, router *serving, params string) *pgx.Conn {
	t.Helper()
	c, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, router, known, params))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func TestPgx(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		router := serve(t, cfg, only(b))
		for _, params := range append(sslModes,
			"sslmode=verify-full sslnegotiation=direct", "sslmode=verify-full channel_binding=disable",
			"sslmode=verify-full max_protocol_version=3.2") {
			t.Run(params, func(t *testing.T) {
				ctx := t.Context()
				c := connectPgx(t, router, params)
				var answer int
				if err := c.QueryRow(ctx, "SELECT $1::int * 2", 21).Scan(&answer); err != nil || answer != 42 {
					t.Fatal(answer, err)
				}
				if _, err := c.Prepare(ctx, "twice", "SELECT $1::int * 2"); err != nil {
					t.Fatal(err)
				}
				if err := c.QueryRow(ctx, "twice", 21).Scan(&answer); err != nil || answer != 42 {
					t.Fatal(answer, err)
				}
				copyRows(t, c)
				listen(t, c)
			})
		}
	})
}

func copyRows(t *testing.T, c *pgx.Conn) {
	const rows = 10_000
	if _, err := c.Exec(t.Context(), "CREATE TEMP TABLE t(n int, s text)"); err != nil {
		t.Fatal(err)
	}
	n, err := c.CopyFrom(t.Context(), pgx.Identifier{"t"}, []string{"n", "s"}, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		return []any{i, strings.Repeat("x", 200)}, nil
	}))
	if err != nil || n != rows {
		t.Fatal(n, err)
	}
	var back countingWriter
	tag, err := c.PgConn().CopyTo(t.Context(), &back, "COPY t TO STDOUT")
	if err != nil || tag.RowsAffected() != rows || back < rows*200 {
		t.Fatal(tag, back, err)
	}
}

type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

func listen(t *testing.T, c *pgx.Conn) {
	if _, err := c.Exec(t.Context(), "LISTEN news"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "NOTIFY news, 'hello'"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := c.WaitForNotification(ctx)
	if err != nil || n.Payload != "hello" {
		t.Fatal(n, err)
	}
}

func TestPgxCancelsAQuery(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		router := serve(t, cfg, only(b))
		for name, send := range map[string]func(t *testing.T, c *pgx.Conn){
			"as pgx does":  func(t *testing.T, c *pgx.Conn) { _ = c.PgConn().CancelRequest(t.Context()) },
			"in plaintext": func(t *testing.T, c *pgx.Conn) { cancelInPlaintext(t, router, c.PgConn()) },
		} {
			t.Run(name, func(t *testing.T) {
				c := connectPgx(t, router, "sslmode=verify-full")
				ended := make(chan error, 1)
				go func() {
					_, err := c.Exec(context.Background(), "SELECT pg_sleep(600)")
					ended <- err
				}()
				for began := time.Now(); ; {
					send(t, c) // again: the first may come before the query has begun
					select {
					case err := <-ended:
						if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "57014" {
							t.Errorf("the query ended with %v", err)
						}
						return
					case <-time.After(100 * time.Millisecond):
						if time.Since(began) > patience {
							t.Fatal("the query goes on")
						}
					}
				}
			})
		}
	})
}

func cancelInPlaintext(t *testing.T, router *serving, c *pgconn.PgConn) {
	t.Helper()
	request := router.dial(t)
	request.message(&pgproto3.CancelRequest{ProcessID: c.PID(), SecretKey: c.SecretKey()})
	request.ended()
}

func TestPgxChannelBindingRequired(t *testing.T) {
	const params = "sslmode=verify-full channel_binding=require"
	router := serve(t, Config{ChecksLogins: true}, only(realPostgres(t).checked(t)))
	connectPgx(t, router, params)

	router = serve(t, Config{}, only(realPostgres(t)))
	_, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, router, known, params))
	if err == nil || !strings.Contains(err.Error(), "channel binding required but server does not support SCRAM-SHA-256-PLUS") {
		t.Errorf("%v", err)
	}
}

func TestPgxCannotTellAnUnknownNameFromAWrongPassword(t *testing.T) {
	backends(t, func(t *testing.T, cfg Config, b Backend) {
		router := serve(t, cfg, only(b))
		said := func(name string) pgconn.PgError {
			cfg := pgxConfig(t, router, name, "sslmode=verify-full")
			cfg.Password = "wrong"
			_, err := pgx.ConnectConfig(t.Context(), cfg)
			var e *pgconn.PgError
			if !errors.As(err, &e) {
				t.Fatalf("%s: %v", name, err)
			}
			return *e
		}
		if wrong, unknown := said(known), said("nothing-here"); wrong != unknown || wrong.Code != "28P01" {
			t.Errorf("wrong password: %+v\nunknown name: %+v", wrong, unknown)
		}
	})
}

func TestAWrongPasswordWakesNothingWhereTheRouterChecks(t *testing.T) {
	verifier := realPostgres(t).verifier(t)
	backend := verifying{
		Backend: dialFunc(func(context.Context) (net.Conn, error) {
			t.Error("dialled")
			return nil, errors.New("not to be dialled")
		}),
		verify: func(context.Context, string) (*Verifier, error) { return verifier, nil },
	}
	router := serve(t, Config{ChecksLogins: true}, only(backend))
	cfg := pgxConfig(t, router, known, "sslmode=verify-full")
	cfg.Password = "wrong"
	if _, err := pgx.ConnectConfig(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Errorf("%v", err)
	}
}

func TestAVerifierThatIsOutOfDateIsAWrongPassword(t *testing.T) {
	server := realPostgres(t)
	stale := *server.verifier(t)
	direct, err := pgx.ConnectConfig(t.Context(), server.direct())
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(context.Background())
	if _, err := direct.Exec(t.Context(), "DROP ROLE IF EXISTS rotated; CREATE ROLE rotated LOGIN PASSWORD '"+password+"'"); err != nil {
		t.Fatal(err)
	}
	// The same password under another salt, as after a rotation that the router
	// has not heard of.
	router := serve(t, Config{ChecksLogins: true}, only(verifying{server, func(context.Context, string) (*Verifier, error) { return &stale, nil }}))
	cfg := pgxConfig(t, router, known, "sslmode=verify-full")
	cfg.User = "rotated"
	if _, err := pgx.ConnectConfig(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), `password authentication failed for user "rotated"`) {
		t.Errorf("%v", err)
	}
}

// A database that is put to sleep or moved in the middle of a login is logged in to anew;
// a client that has shown its password need not come again. There is an end to that.
func TestALoginThatTheServerBreaksOffBeginsAnew(t *testing.T) {
	server := realPostgres(t)
	for _, breaks := range []int32{maxLogins - 1, maxLogins} {
		var dials atomic.Int32
		checked := server.checked(t)
		backend := verifying{
			Backend: dialFunc(func(ctx context.Context) (net.Conn, error) {
				if dials.Add(1) > breaks {
					return server.Dial(ctx)
				}
				ours, theirs := net.Pipe()
				go func() {
					_, _ = theirs.Read(make([]byte, 4096)) // the start-up
					theirs.Close()
				}()
				return ours, nil
			}),
			verify: checked.verify,
		}
		router := serve(t, Config{ChecksLogins: true}, only(backend))
		c, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, router, known, "sslmode=verify-full"))
		if breaks < maxLogins {
			if err != nil {
				t.Fatalf("after %d breaks: %v", breaks, err)
			}
			c.Close(context.Background())
		} else if err == nil || !strings.Contains(err.Error(), "57P03") {
			t.Errorf("after %d breaks: %v", breaks, err)
		}
		if got := dials.Load(); got != maxLogins {
			t.Errorf("%d breaks: dialled %d times", breaks, got)
		}
	}
}

// A server that is starting, as after a wake that had to boot it, is waited for. There is
// an end to that, too, and then the server's own words.
func TestALoginAtAServerThatIsStartingWaits(t *testing.T) {
	server := realPostgres(t)
	checked := server.checked(t)
	starting := func() net.Conn {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := readPacket(theirs); err != nil {
				return
			}
			out, err := encode[pgproto3.BackendMessage](&pgproto3.ErrorResponse{
				Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P03", Message: "the database system is starting up",
			})
			if err != nil {
				t.Error(err)
			}
			_, _ = theirs.Write(out)
		}()
		return ours
	}
	dial := func(cfg Config, starts int32) error {
		var dials atomic.Int32
		backend := verifying{dialFunc(func(ctx context.Context) (net.Conn, error) {
			if dials.Add(1) > starts {
				return server.Dial(ctx)
			}
			return starting(), nil
		}), checked.verify}
		cfg.ChecksLogins = true
		c, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, serve(t, cfg, only(backend)), known, "sslmode=verify-full"))
		if err == nil {
			err = c.Close(context.Background())
		}
		return err
	}
	if err := dial(Config{}, maxLogins+1); err != nil {
		t.Error(err)
	}
	err := dial(Config{WaitTimeout: 2 * firstLoginRetry}, 1<<30)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "57P03" || e.Message != "the database system is starting up" {
		t.Errorf("one that never serves: %v", err)
	}
}

func TestARoleThatTheServerChecksBesideOneThatTheRouterDoes(t *testing.T) {
	server := realPostgres(t)
	direct, err := pgx.ConnectConfig(t.Context(), server.direct())
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(context.Background())
	if _, err := direct.Exec(t.Context(), "DROP ROLE IF EXISTS by_server; CREATE ROLE by_server LOGIN PASSWORD '"+password+"'"); err != nil {
		t.Fatal(err)
	}
	router := serve(t, Config{ChecksLogins: true}, only(server.checked(t)))
	cfg := pgxConfig(t, router, known, "sslmode=verify-full")
	cfg.User = "by_server"
	c, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Close(context.Background())
}

// All guests of a host have one address. Those that wait for a database that does not start
// keep the others' clients out of no other database.
func TestClientsOfADatabaseThatDoesNotStartKeepNobodyOut(t *testing.T) {
	checked := realPostgres(t).checked(t)
	var waiting atomic.Int32
	stuck := verifying{dialFunc(func(ctx context.Context) (net.Conn, error) {
		waiting.Add(1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}), checked.verify}
	const places = 3
	router := serve(t, Config{ChecksLogins: true, MaxUnauthenticated: places, MaxUnauthenticatedPerAddress: places},
		resolverFunc(func(_ context.Context, name string) (Backend, error) {
			if name == known {
				return stuck, nil
			}
			return checked, nil
		}))
	ctx, leave := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer leave()
	for i := range int32(places) {
		clients.Go(func() {
			if _, err := pgx.ConnectConfig(ctx, pgxConfig(t, router, known, "sslmode=verify-full")); ctx.Err() == nil {
				t.Errorf("client %d was not held: %v", i, err)
			}
		})
		eventually(t, "it waits", func() bool { return waiting.Load() == i+1 })
	}
	c, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, router, "another", "sslmode=verify-full"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if n := router.Stats().Unauthenticated; n != places {
		t.Errorf("%d that are not logged in, want %d", n, places)
	}
}

func TestOneDatabaseDoesNotUseTheRouterUp(t *testing.T) {
	router := serve(t, Config{ChecksLogins: true, MaxPerDatabase: 1}, only(realPostgres(t).checked(t)))
	first := connectPgx(t, router, "sslmode=verify-full")
	second := pgxConfig(t, router, known, "sslmode=verify-full")
	if _, err := pgx.ConnectConfig(t.Context(), second); err == nil || !strings.Contains(err.Error(), "53300") {
		t.Errorf("a second one: %v", err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the place is free", func() bool {
		c, err := pgx.ConnectConfig(t.Context(), second)
		if err != nil {
			return false
		}
		return c.Close(t.Context()) == nil
	})
}

// owned is a database whose owner may have others.
type owned struct {
	verifying
	owner string
}

func (o owned) Owner() string { return o.owner }

// All of one owner's databases leave places to others.
func TestOneOwnerDoesNotUseTheRouterUp(t *testing.T) {
	server := realPostgres(t).checked(t)
	router := serve(t, Config{ChecksLogins: true, MaxSessions: 2}, resolverFunc(func(_ context.Context, name string) (Backend, error) {
		return owned{server, name[:1]}, nil
	}))
	for _, login := range []struct {
		name    string
		refused bool
	}{{"a1", false}, {"a2", true}, {"b1", false}} {
		c, err := pgx.ConnectConfig(t.Context(), pgxConfig(t, router, login.name, "sslmode=verify-full"))
		switch {
		case err == nil:
			t.Cleanup(func() { _ = c.Close(context.Background()) })
		case !strings.Contains(err.Error(), "53300"):
			t.Fatal(err)
		}
		if (err != nil) != login.refused {
			t.Errorf("%s: %v", login.name, err)
		}
	}
}
