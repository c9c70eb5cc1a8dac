package pgedge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// config returns pgx's configuration for the database behind a router.
func (r *rig) config(params string, at ...string) *pgx.ConnConfig {
	r.t.Helper()
	addr := append(at, r.addr)[0]
	if !strings.Contains(params, "user=") {
		params += " user=" + role
	}
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s.%s port=%s dbname=%s sslrootcert=%s %s", database, domain, port(addr), role, r.ca, params))
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Password = password
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	return cfg
}

func (r *rig) connect(params string) *pgx.Conn {
	r.t.Helper()
	c, err := pgx.ConnectConfig(r.t.Context(), r.config(params))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func answers(t testing.TB, c *pgx.Conn) {
	t.Helper()
	var n int
	if err := c.QueryRow(t.Context(), "SELECT $1::int * 2", 21).Scan(&n); err != nil || n != 42 {
		t.Fatal(n, err)
	}
}

// refused fails the test unless a login was refused with a SQLSTATE.
func refused(t testing.TB, err error, sqlstate string) *pgconn.PgError {
	t.Helper()
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Code != sqlstate {
		t.Fatalf("error %v, want SQLSTATE %s", err, sqlstate)
	}
	return e
}

var modes = []string{
	"sslmode=require", "sslmode=verify-full", "sslmode=verify-full channel_binding=require",
	"sslmode=verify-full channel_binding=disable",
}

func TestPgx(t *testing.T) {
	r := newPostgres(t)
	for _, params := range append(modes, "sslmode=verify-full sslnegotiation=direct") {
		t.Run(params, func(t *testing.T) { answers(t, r.connect(params)) })
	}
}

func TestPsql(t *testing.T) {
	psql := tier.Program(t, "psql")
	r := newPostgres(t)
	for _, params := range modes {
		info := fmt.Sprintf("host=%s.%s hostaddr=127.0.0.1 port=%s dbname=%s user=%s %s", database, domain, port(r.addr), role, role, params)
		cmd := exec.CommandContext(t.Context(), psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", info, "-c", "SELECT 40 + 2")
		cmd.Env = append(os.Environ(), "PGPASSWORD="+password, "PGSSLROOTCERT="+r.ca, "PGSYSCONFDIR=/nonexistent", "HOME=/nonexistent", "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "42" {
			t.Errorf("%s: %v: %s", params, err, out)
		}
	}
}

func TestConnectingWakesTheDatabaseOnce(t *testing.T) {
	r := newPostgres(t)
	r.sleep()
	all := make(chan struct{})
	awake := r.awake
	r.onWake(func(ctx context.Context) error {
		<-all
		return awake(ctx)
	})
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			c, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=verify-full"))
			if err == nil {
				err = c.Close(context.Background())
			}
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "53300" {
				err = nil // it was awake, and PostgreSQL has fewer places
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all are logged in, or wait", func() bool { return r.edge.router.Stats().Unauthenticated == 50 })
	close(all)
	clients.Wait()
	if n := r.wakes.Load(); n != 1 {
		t.Errorf("%d wakes", n)
	}
}

// A follower's copy of the store is behind: it shows the database as awake, but the host
// knows that it sleeps.
func TestADatabaseThatTheTableTakesForAwakeIsWoken(t *testing.T) {
	r := newPostgres(t)
	r.host.set(func(h *host) { h.asleep = true })
	answers(t, r.connect("sslmode=require"))
	if n := r.wakes.Load(); n != 1 {
		t.Errorf("%d wakes", n)
	}
}

func TestADatabaseThatIsAwakeIsReachedThoughTheTableTakesItForAsleep(t *testing.T) {
	r := newPostgres(t)
	r.change(func(e *Entry) { e.SandboxStatus = record.SandboxHibernated })
	r.onWake(func(context.Context) error { return nil })
	answers(t, r.connect("sslmode=require"))
}

// Once a failover has begun, the box that was left tells no client of a commit.
func TestConnectionsToABoxThatADatabaseHasLeftAreCut(t *testing.T) {
	for name, move := range map[string]func(*Entry){
		"another box":  func(e *Entry) { e.SandboxID = "another" },
		"none":         func(e *Entry) { e.SandboxID = "" },
		"restoring":    func(e *Entry) { e.Status = record.DatabaseRestoring },
		"its deletion": func(e *Entry) { e.Status = record.DatabaseDeleting },
	} {
		t.Run(name, func(t *testing.T) {
			r := newPostgres(t)
			changed := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.reach.CutMoved(ctx, func() <-chan struct{} { return changed })
			}()
			defer func() { cancel(); <-done }()
			conn := r.connect("sslmode=require")
			answers(t, conn)
			r.change(func(e *Entry) { e.Index++ }) // a change that moves nothing
			answers(t, conn)
			r.change(move)
			close(changed)
			eventually(t, "the end of the connection", func() bool { _, err := conn.Exec(t.Context(), "SELECT 1"); return err != nil })
			cancel()
		})
	}
}

func TestAWrongPasswordWakesNothing(t *testing.T) {
	r := newPostgres(t)
	r.sleep()
	for what, params := range map[string]string{"password": "sslmode=require", "role": "sslmode=require user=postgres"} {
		cfg := r.config(params)
		cfg.Password = "another password"
		_, err := pgx.ConnectConfig(t.Context(), cfg)
		e := refused(t, err, "28P01")
		t.Log(what, e.Message)
	}
	cfg := r.config("sslmode=require")
	cfg.TLSConfig.ServerName = "0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11." + domain
	_, err := pgx.ConnectConfig(t.Context(), cfg)
	refused(t, err, "28P01")
	r.change(func(e *Entry) { e.Status = record.DatabaseDeleting })
	_, err = pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
	refused(t, err, "28P01")
	if r.wakes.Load() != 0 || r.host.dialled() != 0 {
		t.Errorf("%d wakes, %d dials", r.wakes.Load(), r.host.dialled())
	}
}

func TestAClientThatLeavesEndsItsOwnWaitAlone(t *testing.T) {
	r := newPostgres(t)
	r.sleep()
	go_, awake := make(chan struct{}), r.awake
	r.onWake(func(ctx context.Context) error {
		select {
		case <-go_:
			return awake(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	leaving, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := pgx.ConnectConfig(leaving, r.config("sslmode=require"))
		left <- err
	}()
	eventually(t, "the wake has begun", func() bool { return r.wakes.Load() == 1 })
	stays := make(chan error, 1)
	go func() {
		c, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
		if err == nil {
			err = c.Close(context.Background())
		}
		stays <- err
	}()
	eventually(t, "two wait", func() bool { return r.edge.router.Stats().Unauthenticated == 2 })
	leave()
	if err := <-left; err == nil {
		t.Error("it connected")
	}
	eventually(t, "one waits", func() bool { return r.edge.router.Stats().Unauthenticated == 1 })
	close(go_)
	if err := <-stays; err != nil {
		t.Error(err)
	}
	if n := r.wakes.Load(); n != 1 {
		t.Errorf("%d wakes", n)
	}
}

func TestWithoutALeader(t *testing.T) {
	r := newPostgres(t)
	r.onWake(func(context.Context) error { return apierror.Unavailable("there is no leader", nil) })
	answers(t, r.connect("sslmode=require"))
	if n := r.wakes.Load(); n != 0 {
		t.Errorf("a database that runs needed the leader %d times", n)
	}
	r.sleep()
	before := leaderLimit
	leaderLimit = 50 * time.Millisecond
	defer func() { leaderLimit = before }()
	_, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
	if e := refused(t, err, "57P03"); !strings.Contains(e.Message, "no leader") {
		t.Errorf("%+v", e)
	}
	// A leader that is elected meanwhile is in time.
	leaderLimit = before
	tries, awake := 0, func(ctx context.Context) error {
		r.host.set(func(h *host) { h.asleep = false })
		return nil
	}
	r.onWake(func(ctx context.Context) error {
		if tries++; tries < 3 {
			return apierror.Unavailable("there is no leader", nil)
		}
		return awake(ctx)
	})
	answers(t, r.connect("sslmode=require"))
}

func TestClientsAreToldWhatToDo(t *testing.T) {
	r := newPostgres(t)
	for what, c := range map[string]struct {
		change  func(e *Entry)
		awake   error
		message string
		detail  string
		hint    string
	}{
		"failed": {
			func(e *Entry) { e.Status, e.Error = record.DatabaseFailed, "host h1 is lost" },
			nil, "the database has failed", "host h1 is lost", "/failover",
		},
		"no memory": {
			func(e *Entry) { e.SandboxStatus = record.SandboxHibernated },
			&apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for database", Detail: "try later"},
			"insufficient host memory", "try later", "",
		},
	} {
		t.Run(what, func(t *testing.T) {
			r.change(func(e *Entry) {
				v := e.Verifier
				*e = entry()
				e.Verifier = v
				c.change(e)
			})
			r.onWake(func(context.Context) error { return c.awake })
			_, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
			e := refused(t, err, "57P03")
			if !strings.Contains(e.Message, c.message) || e.Detail != c.detail || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A failover gives the database another box on another host while clients wait.
func TestClientsWaitForAFailover(t *testing.T) {
	r := newPostgres(t)
	r.change(func(e *Entry) { e.Status, e.SandboxID, e.HostAddress = record.DatabaseRestoring, "", "" })
	done := make(chan error, 1)
	go func() {
		c, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
		if err == nil {
			err = c.Close(context.Background())
		}
		done <- err
	}()
	eventually(t, "it waits", func() bool { return r.edge.router.Stats().Unauthenticated == 1 })
	r.change(func(e *Entry) { e.Status, e.SandboxID, e.HostAddress = record.DatabaseReady, box, "h1:1" })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r.wakes.Load() != 0 {
		t.Error("it was woken")
	}
}

func TestAHostThatIsCutOffAMomentIsWaitedFor(t *testing.T) {
	r := newPostgres(t)
	r.host.set(func(h *host) { h.gone = true })
	done := make(chan error, 1)
	go func() {
		c, err := pgx.ConnectConfig(t.Context(), r.config("sslmode=require"))
		if err == nil {
			err = c.Close(context.Background())
		}
		done <- err
	}()
	eventually(t, "it was tried", func() bool { return r.host.dialled() > 1 })
	r.host.set(func(h *host) { h.gone = false })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDrain(t *testing.T) {
	r := newPostgres(t)
	c := r.connect("sslmode=require")
	answers(t, c)
	ctx, end := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		r.edge.Drain(ctx)
	}()
	eventually(t, "nobody new is taken", func() bool {
		conn, err := net.Dial("tcp", r.addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	answers(t, c)
	end()
	<-drained
	refused(t, c.QueryRow(t.Context(), "SELECT 1").Scan(new(int)), "57P01")
}

// A cancel request comes on a connection of its own, which may reach another replica.
func TestACancelRequestReachesAnotherReplicasSession(t *testing.T) {
	r := newPostgres(t)
	rigs := map[string]*Peers{}
	transport := roundTripper(rigs)
	here := NewPeers(peersOf(transport, "here"))
	here.Routes(r.edge)
	there := NewPeers(peersOf(transport, "there", "here"))
	rigs["here"], rigs["there"] = here, there

	c := r.connect("sslmode=require")
	first, ca := r.addr, r.ca
	r.route(func(cfg *RouterConfig) { cfg.CancelElsewhere = there.CancelElsewhere })
	second := r.addr
	r.addr, r.ca = first, ca

	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), "SELECT pg_sleep(600)")
		ended <- err
	}()
	pid, secret := c.PgConn().PID(), c.PgConn().SecretKey()
	for {
		cancelAt(t, second, pid, secret)
		select {
		case err := <-ended:
			refused(t, err, "57014")
			return
		case <-time.After(50 * time.Millisecond): // the first request may come before the query has begun
		}
	}
}

func cancelAt(t *testing.T, addr string, pid uint32, secret []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw := []byte{0, 0, 0, byte(12 + len(secret)), 4, 210, 22, 46, byte(pid >> 24), byte(pid >> 16), byte(pid >> 8), byte(pid)}
	if _, err := conn.Write(append(raw, secret...)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 1))
}

var _ pgsni.Verifying = (*backend)(nil)
