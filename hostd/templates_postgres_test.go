package hostd_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const postgresTemplate = "postgres-16"

// postgres is the program beside PostgreSQL in a box.
func (h *host) postgres(id string) *pgapi.Client {
	return pgapi.NewClient(func(ctx context.Context) (net.Conn, error) { return h.client.Dial(ctx, id, pgapi.Port) })
}

// serving waits until PostgreSQL takes clients.
func (h *host) serving(id string) pgapi.Status {
	h.t.Helper()
	c := h.postgres(id)
	var st pgapi.Status
	await(h.t, "PostgreSQL serves", timescale.Limit(4*time.Minute), func() (err error) {
		if st, err = c.Status(h.t.Context()); err == nil && !st.Ready {
			err = fmt.Errorf("%s: %s %q", st.State, st.Error, st.LogTail)
		}
		return err
	})
	return st
}

// connect opens a session of the tenant's.
func (h *host) connect(id string, cr pgapi.Credentials) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=guest port=%d user=%s dbname=%s password=%s sslmode=disable", pgapi.PostgresPort, cr.Username, cr.Database, cr.Password))
	if err != nil {
		return nil, err
	}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"guest"}, nil }
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.client.Dial(ctx, id, pgapi.PostgresPort)
	}
	return pgx.ConnectConfig(h.t.Context(), cfg)
}

// sql runs a statement in a session of its own, and returns the one value.
func (h *host) sql(id string, cr pgapi.Credentials, statement string) string {
	h.t.Helper()
	conn, err := h.connect(id, cr)
	must(h.t, err)
	defer conn.Close(context.WithoutCancel(h.t.Context()))
	return value(h.t, conn, statement)
}

func value(t testing.TB, conn *pgx.Conn, statement string) (v string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), statement).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// TestRealPostgres is the life of a box of the template that databases are made from.
func TestRealPostgres(t *testing.T) {
	h := newHost(t)
	root, err := filepath.Abs("..")
	must(t, err)
	h.run("template", "build", filepath.Join(root, "templates", postgresTemplate, "template.yaml"))
	h.start()
	id, other := rid('p', 0), rid('p', 1)
	cr := pgapi.Credentials{Database: "app", Username: "app", Password: "first-password"}

	began := time.Now()
	box := h.make(id, hostapi.BoxSpec{Template: postgresTemplate, Persistent: true})
	created := time.Since(began)
	st := h.serving(id)
	ready := time.Since(began)
	_, err = h.postgres(id).Credentials(t.Context(), cr)
	must(t, err)
	given := time.Since(began)
	if got := h.sql(id, cr, "SELECT current_user || ' of ' || current_database()"); got != "app of app" {
		t.Errorf("the tenant is %q", got)
	}
	t.Logf("created after %s, ready %s, credentials %s, first query %s\n%s", created, ready, given, time.Since(began), stages(box))
	t.Logf("it takes %d MB", h.pss()>>20)
	if st.Restarts != 0 {
		t.Errorf("its server was started again: %+v", st)
	}

	// What a host tells it of its size is what it has.
	applied, err := h.postgres(id).Settings(t.Context(), pgapi.Settings{MemoryMB: box.MemoryMB, CPUs: box.CPU, ArchiveIntervalSeconds: 30})
	must(t, err)
	if applied.Restarted {
		t.Error("the settings of its own size needed a restart")
	}
	if got := h.sql(id, cr, "SHOW data_checksums"); got != "on" {
		t.Errorf("checksums are %s", got)
	}

	// A commit is durable only if the disk is told to flush.
	if got := h.sh(id, "cat $(ls -d /sys/block/vd* | tail -n 1)/queue/write_cache"); got != "write back" {
		t.Errorf("the disk's write cache is %q: no flush is asked for", got)
	}

	// Two of one template share nothing that a client sees.
	h.make(other, hostapi.BoxSpec{Template: postgresTemplate})
	h.serving(other)
	_, err = h.postgres(other).Credentials(t.Context(), cr)
	must(t, err)
	for _, statement := range []string{"SELECT gen_random_uuid()::text", "SELECT random()::text"} {
		if a, b := h.sql(id, cr, statement), h.sql(other, cr, statement); a == b {
			t.Errorf("%s is %s in both", statement, a)
		}
	}
	must(t, h.client.DeleteBox(t.Context(), other, 1))

	// It sleeps and wakes.
	conn, err := h.connect(id, cr)
	must(t, err)
	for _, statement := range []string{"CREATE TABLE kept (n int PRIMARY KEY)", "INSERT INTO kept SELECT generate_series(1, 1000)"} {
		_, err := conn.Exec(t.Context(), statement)
		must(t, err)
	}
	must(t, conn.Close(t.Context()))
	_, err = h.client.Hibernate(t.Context(), id)
	must(t, err)
	began = time.Now()
	_, err = h.client.Wake(t.Context(), id)
	must(t, err)
	woken := time.Since(began)
	if got := h.sql(id, cr, "SELECT count(*)::text FROM kept"); got != "1000" {
		t.Errorf("after the wake there are %s rows", got)
	}
	t.Logf("awake after %s, first query %s", woken, time.Since(began))
	t.Logf("a commit takes %s", commits(t, h, id, cr))

	// The machine is lost while a client writes: what was committed is there.
	last := h.writesUntilLost(id, cr)
	h.start()
	await(t, "the box is booted from its disk", timescale.Limit(4*time.Minute), func() error {
		b, err := h.client.GetBox(t.Context(), id)
		if err == nil && b.Status != hostapi.StatusRunning {
			err = fmt.Errorf("%s %s", b.Status, b.Error)
		}
		return err
	})
	h.serving(id)
	if got := h.sql(id, cr, "SELECT count(*)::text FROM kept WHERE n <= "+fmt.Sprint(last)); got != fmt.Sprint(last) {
		t.Errorf("of %d committed rows %s are left", last, got)
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	if left := h.left(id); len(left) > 0 {
		t.Errorf("left after the delete: %v", left)
	}
}

// writesUntilLost has a client commit rows until daemon and VMM are killed, and
// returns the last that was acknowledged.
func (h *host) writesUntilLost(id string, cr pgapi.Credentials) int {
	h.t.Helper()
	conn, err := h.connect(id, cr)
	must(h.t, err)
	defer conn.Close(context.WithoutCancel(h.t.Context()))
	var last atomic.Int64
	last.Store(1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := conn.Exec(h.t.Context(), "INSERT INTO kept VALUES ($1)", last.Load()+1); err != nil {
				return
			}
			last.Add(1)
		}
	}()
	await(h.t, "rows are committed", timescale.Limit(4*time.Minute), func() error {
		if n := last.Load(); n < 1100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	h.kill()
	h.killVM(id)
	<-done
	must(h.t, os.RemoveAll(filepath.Join("/run/berth", hostID)))
	await(h.t, "its processes are gone", timescale.Limit(time.Minute), func() error {
		if left := h.processes(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	h.loseNetwork()
	return int(last.Load())
}

// pss is what the VMMs of this host take of the machine's memory, with their share of
// what others have mapped too, in bytes.
func (h *host) pss() (sum int64) {
	h.t.Helper()
	for _, process := range h.processes() {
		dir, _, _ := strings.Cut(process, " ")
		raw, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		must(h.t, err)
		for line := range strings.Lines(string(raw)) {
			var kb int64
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &kb); err == nil {
				sum += kb << 10
			}
		}
	}
	return sum
}

// commits measures a commit, which is on the disk when it is answered.
func commits(t testing.TB, h *host, id string, cr pgapi.Credentials) time.Duration {
	t.Helper()
	conn, err := h.connect(id, cr)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "CREATE TABLE counted (n int)")
	must(t, err)
	const times = 200
	began := time.Now()
	for n := range times {
		_, err := conn.Exec(t.Context(), "INSERT INTO counted VALUES ($1)", n)
		must(t, err)
	}
	return time.Since(began) / times
}
