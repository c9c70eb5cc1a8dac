package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A database from its create to its delete, as a client meets it.
func TestDatabase(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t, "other")
	if a := (request{method: "POST", path: "/v1/databases", token: c.token, body: `{"size":"2g"}`}).send(t); a.status != 400 {
		t.Errorf("a size that is not offered: %d %s", a.status, a.body)
	}
	db := c.database(t, `{"label":"first","always_on":true,"cpu":2,"memory_mb":64}`)
	if db.Size != "1g" || db.Label != "first" || !strings.HasPrefix(db.Host, db.ID+".db.") {
		t.Errorf("it is %+v", db)
	}
	if a := (request{method: "GET", path: "/v1/databases/" + db.ID, token: other.token}).send(t); a.status != 404 {
		t.Errorf("another workspace reads it: %d %s", a.status, a.body)
	}

	conn := db.connect(t)
	if v := query[string](t, conn, "SHOW server_version"); !strings.HasPrefix(v, "16.") {
		t.Errorf("it is PostgreSQL %s", v)
	}
	if on := query[string](t, conn, "SHOW data_checksums"); on != "on" {
		t.Errorf("data checksums are %s", on)
	}
	statement(t, conn, "CREATE TABLE t (id bigint PRIMARY KEY, v text)")
	statement(t, conn, "INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 1000) g")
	statement(t, conn, "CREATE EXTENSION pg_trgm")
	if _, err := conn.Exec(t.Context(), "ALTER SYSTEM SET work_mem = '1GB'"); sqlState(err) != "42501" {
		t.Errorf("a tenant changes the server's settings: %v", err)
	}
	query[int64](t, conn, "SELECT count(*) FROM pg_stat_statements")

	// Only over TLS, only with the password, and a name that is nobody's looks the same.
	plain := db.connectConfig(t)
	plain.TLSConfig = nil
	if _, err := pgx.ConnectConfig(t.Context(), plain); sqlState(err) != "28000" || !strings.Contains(err.Error(), "sslmode=require") {
		t.Errorf("without TLS: %v", err)
	}
	wrong := db.connectConfig(t)
	wrong.Password = "wrong"
	if _, err := pgx.ConnectConfig(t.Context(), wrong); sqlState(err) != "28P01" {
		t.Errorf("with a wrong password: %v", err)
	}
	nobody := db.connectConfig(t)
	nobody.TLSConfig.ServerName = "00000000-0000-4000-8000-000000000000" + strings.TrimPrefix(db.Host, db.ID)
	if _, err := pgx.ConnectConfig(t.Context(), nobody); sqlState(err) != "28P01" {
		t.Errorf("a name that is nobody's: %v", err)
	}

	// A long query is ended by the client's cancel request.
	canceller := db.connectConfig(t)
	canceller.BuildContextWatcherHandler = func(pc *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: pc, DeadlineDelay: time.Minute}
	}
	long, err := pgx.ConnectConfig(t.Context(), canceller)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := long.Exec(ctx, "SELECT pg_sleep(120)"); sqlState(err) != "57014" {
		t.Errorf("a cancelled query ends with %v", err)
	}

	// New credentials cut off the old ones.
	var fresh database
	c.call(t, "POST", "/v1/databases/"+db.ID+"/reset-credentials", "{}", 200, &fresh)
	if fresh.Password == db.Password || fresh.BrokerToken == db.BrokerToken || fresh.Password == "" {
		t.Errorf("the new credentials are %+v", fresh)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a connection of the old credentials goes on")
	}
	if _, err := pgx.ConnectConfig(t.Context(), db.connectConfig(t)); sqlState(err) != "28P01" {
		t.Errorf("with the old password: %v", err)
	}
	db = c.databaseIs(t, db.ID)
	if db.Password != fresh.Password {
		t.Error("GET has other credentials than the reset returned")
	}
	if n := query[int64](t, db.connect(t), "SELECT count(*) FROM t"); n != 1000 {
		t.Errorf("it has %d rows", n)
	}

	// What is managed is not the tenant's to handle.
	sandbox := c.managedSandbox(t, db.ID)
	for _, r := range []request{
		{method: "DELETE", path: "/v1/sandboxes/" + sandbox},
		{method: "POST", path: "/v1/sandboxes/" + sandbox + "/exec", body: `{"cmd":"id"}`},
		{method: "POST", path: "/v1/sandboxes/" + sandbox + "/hibernate", body: "{}"},
		{method: "PATCH", path: "/v1/sandboxes/" + sandbox + "/lifecycle", body: `{"ttl_seconds":1}`},
	} {
		r.token = c.token
		if a := r.send(t); a.status != 409 || a.errorText() != "managed sandbox: delete it from the feature that owns it (Databases or Apps)" {
			t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
		}
	}

	// The broker.
	var result struct {
		Rows     [][]any `json:"rows"`
		RowCount int     `json:"row_count"`
	}
	broker := db.broker("SELECT id, v FROM t WHERE id <= $1 ORDER BY id", 2)
	a := broker.send(t)
	for end := time.Now().Add(time.Minute); a.status == 503 && time.Now().Before(end); { // a login takes long where all processors are busy
		a = broker.send(t)
	}
	if a.status != 200 || json.Unmarshal([]byte(a.body), &result) != nil || result.RowCount != 2 {
		t.Errorf("the broker answers %d %s", a.status, a.body)
	}
	broker.token = c.token
	if a := broker.send(t); a.status != 401 {
		t.Errorf("the broker takes an API key: %d %s", a.status, a.body)
	}
}

// A database sleeps when nobody is connected, and wakes when somebody connects.
func TestDatabaseSleepsAndWakes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	db := c.database(t, `{}`)
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	asleep := c.databaseBecomes(t, db.ID, databaseWait, "hibernated")
	if asleep.ConnectionURL != "" || asleep.Password != "" || asleep.BrokerToken != "" {
		t.Errorf("asleep it shows %+v", asleep)
	}
	wrong := db.connectConfig(t)
	wrong.Password = "wrong"
	if _, err := pgx.ConnectConfig(t.Context(), wrong); sqlState(err) != "28P01" {
		t.Errorf("with a wrong password: %v", err)
	}
	if got := c.databaseIs(t, db.ID); got.Status != "hibernated" {
		t.Errorf("a wrong password woke it: %s", got.Status)
	}
	// Many at once share one wake, and none is refused, whether they come to a replica or
	// to a router that is none.
	ports := []uint16{db.connectConfig(t).Port, routerOfItsOwn(t)}
	var waiting sync.WaitGroup
	for i := range 10 {
		waiting.Go(func() {
			cfg := db.connectConfig(t)
			cfg.Port = ports[i%2]
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Errorf("connect to a sleeping database: %v", err)
				return
			}
			defer conn.Close(context.Background())
			var n int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil || n != 1 {
				t.Errorf("after the wake: %d rows, %v", n, err)
			}
		})
	}
	waiting.Wait()
	if got := c.databaseIs(t, db.ID); got.Status != "running" {
		t.Errorf("it is %s", got.Status)
	}
	if n := count(c.events(t, c.managedSandbox(t, db.ID)), "sandbox.woken"); n != 1 {
		t.Errorf("it was woken %d times", n)
	}
	// By the API, and by the broker.
	c.databaseBecomes(t, db.ID, databaseWait, "hibernated")
	var woken database
	c.call(t, "POST", "/v1/databases/"+db.ID+"/wake", "{}", 202, &woken)
	if woken.Status != "waking" || woken.Detail == "" {
		t.Errorf("wake answers %+v", woken)
	}
	db = c.databaseRuns(t, db.ID, databaseWait)
	c.databaseBecomes(t, db.ID, databaseWait, "hibernated")
	if a := db.broker("SELECT count(*) FROM t").send(t); a.status != 200 || !strings.Contains(a.body, `"rows":[["1"]]`) {
		t.Errorf("the broker of a sleeping database: %d %s", a.status, a.body)
	}
	c.databaseRuns(t, db.ID, databaseWait)
}

// A clone of the latest begins with a copy of its source's disk, and is a database of its
// own, in what it holds and by its password. Its source goes on.
func TestDatabaseClone(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	db := c.database(t, `{"always_on":true,"label":"shop"}`)
	if a := (request{method: "POST", path: "/v1/databases/" + db.ID + "/clone", token: c.token, body: `{"target_time":"yesterday"}`}).send(t); a.status != 400 || !strings.HasPrefix(a.errorText(), "invalid target_time (want RFC3339") {
		t.Errorf("a target_time that is none: %d %s", a.status, a.body)
	}
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (id int)")
	c.archived(t, db.ID, time.Time{})
	statement(t, conn, "INSERT INTO t SELECT generate_series(1, 1000)")

	clone := c.cloneLatest(t, db)
	copied := clone.connect(t)
	if n := query[int](t, copied, "SELECT count(*) FROM t"); n != 1000 {
		t.Errorf("the clone has %d rows, want 1000", n)
	}
	statement(t, conn, "INSERT INTO t VALUES (-1)")
	statement(t, copied, "INSERT INTO t VALUES (-2)")
	for _, d := range []struct {
		conn *pgx.Conn
		own  int
	}{{conn, -1}, {copied, -2}} {
		if id := query[int](t, d.conn, "SELECT sum(id)::int FROM t WHERE id < 0"); id != d.own {
			t.Errorf("rows that were written since add up to %d, want %d", id, d.own)
		}
	}
	theirs := clone.connectConfig(t)
	theirs.Password = db.Password
	if _, err := pgx.ConnectConfig(t.Context(), theirs); sqlState(err) != "28P01" || clone.Password == db.Password {
		t.Errorf("with the password of its source: %v", err)
	}
}

// A clone archives by itself: from that archive it can be cloned as of a moment when its
// source is gone, and so can what comes of it.
func TestDatabaseCloneOfAMoment(t *testing.T) {
	atLength(t)
	t.Parallel()
	c := newTenant(t)
	db := c.database(t, `{"always_on":true,"label":"shop"}`)
	statement(t, db.connect(t), "CREATE TABLE t (id int)")
	c.archived(t, db.ID, time.Time{})
	clone := c.cloneLatest(t, db)
	c.call(t, "DELETE", "/v1/databases/"+db.ID, "", 204, nil)
	copied := clone.connect(t)
	statement(t, copied, "INSERT INTO t VALUES (-2)")

	c.archived(t, clone.ID, time.Time{})
	statement(t, copied, "INSERT INTO t VALUES (-3)")
	// The moment lies between two commits: PostgreSQL's clock has gone on at each.
	moment := query[time.Time](t, copied, "SELECT clock_timestamp() FROM pg_sleep(0.5)")
	statement(t, copied, "SELECT pg_sleep(0.5)")
	statement(t, copied, "INSERT INTO t VALUES (-4)")
	c.archived(t, clone.ID, moment.Add(time.Second))
	var past database
	var began time.Time
	eventually(t, 2*time.Minute, "the moment is old enough to be cloned", func(context.Context) error {
		began = time.Now()
		a := request{method: "POST", path: "/v1/databases/" + clone.ID + "/clone", token: c.token, body: fmt.Sprintf(`{"target_time":%q,"label":"then"}`, moment.UTC().Format(time.RFC3339Nano))}.send(t)
		if a.status != 202 {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return json.Unmarshal([]byte(a.body), &past)
	})
	c.deleteDatabaseAtEnd(t, past.ID)
	if past.Label != "then" {
		t.Errorf("the clone is %+v", past)
	}
	past = c.databaseRuns(t, past.ID, databaseCreate)
	if id := query[int](t, past.connect(t), "SELECT sum(id)::int FROM t WHERE id < 0"); id != -5 {
		t.Errorf("at the moment they add up to %d, want -5", id)
	}
	if past.Password == clone.Password {
		t.Error("a clone has its source's password")
	}
	t.Logf("from the archive: a query after %s", time.Since(began))
	statement(t, copied, "INSERT INTO t VALUES (5)")
	// What is restored archives by itself.
	statement(t, past.connect(t), "INSERT INTO t VALUES (6)")
	c.archived(t, past.ID, time.Time{})
}

// cloneLatest clones a database as it is now, which a copy of its disk does.
func (c *tenant) cloneLatest(t *testing.T, db database) database {
	t.Helper()
	began := time.Now()
	var clone database
	c.call(t, "POST", "/v1/databases/"+db.ID+"/clone", "{}", 202, &clone)
	c.deleteDatabaseAtEnd(t, clone.ID)
	if a := (request{method: "DELETE", path: "/v1/databases/" + db.ID, token: c.token}).send(t); a.status != 409 {
		t.Errorf("its source is deleted while a clone provisions: %d %s", a.status, a.body)
	}
	if clone.Status != "provisioning" || clone.ClonedFrom != db.ID || clone.Label != "shop (clone)" {
		t.Errorf("the clone is %+v", clone)
	}
	clone = c.databaseRuns(t, clone.ID, databaseCreate)
	query[int](t, clone.connect(t), "SELECT 1")
	t.Logf("by a copy of the disk: a query after %s", time.Since(began))
	if events := c.events(t, c.managedSandbox(t, clone.ID)); metadataOf(t, events[0])["boot_mode"] != "cold" {
		t.Error("it does not come by a copy of the disk")
	}
	return clone
}

// What was acknowledged is there after its VMM was killed, and its host's daemon.
func TestDatabaseSurvivesTheDeathOfItsVMM(t *testing.T) {
	c := newTenant(t)
	db := c.database(t, `{"always_on":true}`)
	statement(t, db.connect(t), "CREATE TABLE t (id bigint PRIMARY KEY)")
	const each = 50
	for i := range 3 {
		conn := db.connect(t)
		for j := range each {
			statement(t, conn, "INSERT INTO t VALUES ($1)", i*each+j)
		}
		sandbox := c.managedSandbox(t, db.ID)
		if i == 1 {
			host := hostOf(t, sandbox)
			if err := errors.Join(host.Kill9(), host.Start()); err != nil {
				t.Fatal(err)
			}
			healthy(t)
		}
		killVMM(t, sandbox)
		var rows int
		eventually(t, 3*time.Minute, "it serves again", func(ctx context.Context) error {
			conn, err := pgx.ConnectConfig(ctx, db.connectConfig(t))
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			return conn.QueryRow(ctx, "SELECT count(*) FROM t").Scan(&rows)
		})
		if want := (i + 1) * each; rows != want {
			t.Fatalf("after kill %d it has %d rows, want %d", i+1, rows, want)
		}
	}
}

// A database whose host is lost fails over to another one with all that was archived.
func TestDatabaseFailsOver(t *testing.T) {
	c := newTenant(t)
	db := c.database(t, `{"always_on":true}`)
	if a := (request{method: "POST", path: "/v1/databases/" + db.ID + "/failover", token: c.token, body: "{}"}).send(t); a.status != 409 {
		t.Errorf("failover of a running one without force: %d %s", a.status, a.body)
	}
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (id int)")
	statement(t, conn, "INSERT INTO t VALUES (1)")
	c.archived(t, db.ID, query[time.Time](t, conn, "SELECT now()"))
	sandbox := c.managedSandbox(t, db.ID)
	host := hostOf(t, sandbox)
	if err := host.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Continue(); healthy(t) })
	c.databaseBecomes(t, db.ID, databaseWait, "failed")
	eventually(t, time.Minute, "a failover is offered", func(context.Context) error {
		if failed := c.databaseIs(t, db.ID); failed.FailoverAvailable == nil || !*failed.FailoverAvailable || failed.FailoverReason == "" {
			return fmt.Errorf("lost with its host it is %+v", failed)
		}
		return nil
	})
	var started database
	c.call(t, "POST", "/v1/databases/"+db.ID+"/failover", "{}", 202, &started)
	if started.Status != "restoring" || started.Error == "" {
		t.Errorf("failover answers %+v", started)
	}
	if a := (request{method: "POST", path: "/v1/databases/" + db.ID + "/failover", token: c.token, body: "{}"}).send(t); a.status != 409 {
		t.Errorf("a second failover: %d %s", a.status, a.body)
	}
	// Nobody is told of a commit by the box that was left.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("a session with the box that was left goes on: %v", err)
	}
	after := c.databaseRuns(t, db.ID, databaseCreate)
	if after.Host != db.Host || after.Password != db.Password || after.Username != db.Username {
		t.Errorf("after the failover it is %+v, was %+v", after, db)
	}
	if n := query[int](t, after.connect(t), "SELECT count(*) FROM t"); n != 1 {
		t.Errorf("after the failover it has %d rows", n)
	}
	if err := host.Continue(); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	eventually(t, 2*time.Minute, "the old box is gone", func(ctx context.Context) error {
		boxes, err := theStack.Boxes(ctx)
		if err != nil {
			return err
		}
		for id, list := range boxes {
			if slices.ContainsFunc(list, func(b hostapi.Box) bool { return b.ID == sandbox }) {
				return fmt.Errorf("host %s has it", id)
			}
		}
		return nil
	})
	statement(t, after.connect(t), "INSERT INTO t VALUES (2)")
}

// A database whose host reboots is booted from its disk by itself, with all that was
// acknowledged.
func TestDatabaseSurvivesTheHostsReboot(t *testing.T) {
	c := newTenant(t)
	host := theStack.HostProc[0]
	restartAtEnd(t, host)
	onlyOn(t, host.ID)
	db := c.database(t, `{"always_on":true}`)
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (id bigint PRIMARY KEY)")
	for i := range 50 {
		statement(t, conn, "INSERT INTO t VALUES ($1)", i)
	}
	reboot(t, host)
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	var rows int
	eventually(t, databaseWait, "it serves again", func(ctx context.Context) error {
		conn, err := pgx.ConnectConfig(ctx, db.connectConfig(t))
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return conn.QueryRow(ctx, "SELECT count(*) FROM t").Scan(&rows)
	})
	if rows != 50 {
		t.Errorf("after the reboot it has %d rows, want 50", rows)
	}
	if now := c.databaseRuns(t, db.ID, databaseWait); now.Password != db.Password {
		t.Error("it has another password")
	}
}
