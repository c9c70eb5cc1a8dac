package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
)

// PostgreSQL runs this test as its archive_command and restore_command.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "archive" || os.Args[1] == "restore") {
		os.Exit(wal.Command(os.Args[1:], os.Stderr))
	}
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// guest is an agent as a host sees it.
type guest struct {
	*pgapi.Client
	cfg  Config
	stop func()
}

func start(t *testing.T, change ...func(*Config)) *guest {
	t.Helper()
	cfg := Config{Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Peer: netip.MustParseAddr("127.0.0.1"), Postgres: pgtest.Config(t), Settings: pgtest.Settings()}
	cfg.Log = cfg.Postgres.Log
	cfg.Reserve = Reserve{Limit: 1, Stop: 1, Ballast: 1} // the machine's own disk
	cfg.Postgres.Program = filepath.Join(cfg.Postgres.Dir, "guestpg")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Postgres.Program, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(&cfg)
	}
	if t.Name() != "TestADatabaseFromItsFirstStart" { // which makes its data itself
		pgtest.Init(t, cfg.Postgres)
	}
	g := &guest{cfg: cfg}
	g.run(t)
	t.Cleanup(func() { g.stop() })
	return g
}

// run starts guestpg over what is there.
func (g *guest) run(t *testing.T) *Agent {
	t.Helper()
	a, err := New(g.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	g.Client = pgapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", a.Addr().String())
	})
	return a
}

func (g *guest) await(t *testing.T, what string, ok func(pgapi.Status) bool) pgapi.Status {
	t.Helper()
	ctx := pgtest.Context(t)
	tick := time.NewTicker(20 * time.Millisecond) // the processors are for who is waited for
	defer tick.Stop()
	var last pgapi.Status
	for {
		st, err := g.Status(ctx)
		if err == nil && ok(st) {
			return st
		}
		if err == nil {
			last = st
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not %s: %+v %+v, %v", what, last, last.Server, err)
		}
	}
}

func ready(st pgapi.Status) bool { return st.Ready }

var app = pgapi.Credentials{Database: "app", Username: "app", Password: "some-password-1"}

func (g *guest) credentials(t *testing.T, c pgapi.Credentials) {
	t.Helper()
	if _, err := g.Credentials(pgtest.Context(t), c); err != nil {
		t.Fatal(err)
	}
}

func (g *guest) sql(t *testing.T, sql string) (string, error) {
	t.Helper()
	ctx := pgtest.Context(t)
	conn, err := g.cfg.Postgres.LogIn(ctx, app.Username, app.Database, app.Password)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	return first(conn.Exec(ctx, sql).ReadAll())
}

func first(results []*pgconn.Result, err error) (string, error) {
	if n := len(results); n > 0 && len(results[n-1].Rows) > 0 {
		return string(results[n-1].Rows[0][0]), err
	}
	return "", err
}

func (g *guest) must(t *testing.T, sql string) string {
	t.Helper()
	out, err := g.sql(t, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// archive is a host's: it stores what guests have, and brings it back.
type archive struct {
	mu    sync.Mutex
	files map[string][]byte
	away  bool
}

func newArchive() *archive { return &archive{files: map[string][]byte{}} }

// from takes WAL from a guest until the test ends.
func (a *archive) from(t *testing.T, g *guest) {
	client := g.Client
	pgtest.Repeat(t, func(ctx context.Context) bool {
		f, content, ok := a.next(ctx, client)
		if !ok {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if there, ok := a.files[f.Name]; ok && !bytes.Equal(there, content) {
			t.Errorf("%s came with other bytes", f.Name)
		}
		a.files[f.Name] = content
		return client.WALStored(ctx, f) == nil // else it comes again
	})
}

// next is the next file that the guest has for the archive.
func (a *archive) next(ctx context.Context, client *pgapi.Client) (f pgapi.WALFile, content []byte, ok bool) {
	if a.isAway() {
		return f, nil, false
	}
	f, ok, err := client.NextWAL(ctx, time.Second)
	if err != nil || !ok || a.isAway() {
		return f, nil, false
	}
	r, err := client.WAL(ctx, f.Name)
	if err != nil {
		return f, nil, false
	}
	defer r.Close()
	content, err = io.ReadAll(r)
	return f, content, err == nil && hexSum(content) == f.SHA256
}

// stored is what the archive has now, by name.
func (a *archive) stored() map[string][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.files)
}

func (a *archive) isAway() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.away
}

func (a *archive) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// to gives WAL to a guest until the test ends. What is named in lost cannot be had.
func (a *archive) to(t *testing.T, g *guest, lost ...string) {
	client := g.Client
	pgtest.Repeat(t, func(ctx context.Context) bool {
		name, ok, err := client.NextFetch(ctx, time.Second)
		if err != nil || !ok {
			return false
		}
		a.mu.Lock()
		content, found := a.files[name]
		a.mu.Unlock()
		switch {
		case strings.Contains(strings.Join(lost, " "), name):
			err = client.FetchFailed(ctx, name, "checksum of the object")
		case found:
			err = client.Provide(ctx, name, content, hexSum(content))
		default:
			err = client.Missing(ctx, name)
		}
		return err == nil // else it is asked for again
	})
}

func hexSum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func (g *guest) backup(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	info, err := g.Backup(pgtest.Context(t), pgapi.Backup{Label: "test"}, &buf)
	if err != nil {
		t.Fatal(err)
	}
	if info.Files == 0 || info.StopLSN == "" {
		t.Errorf("%+v", info)
	}
	return buf.Bytes()
}

func (g *guest) switchWAL(t *testing.T) {
	t.Helper()
	done, err := g.Switch(pgtest.Context(t), 60*time.Second)
	if err != nil || len(done.Pending) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
}

func TestADatabaseFromItsFirstStart(t *testing.T) {
	g := start(t)
	ctx := pgtest.Context(t)
	st := g.await(t, "ready", ready)
	if st.Tenant != nil || st.State != pgapi.StateReady || st.PostgresVersion != "16.14" || st.Server.Timeline != 1 || st.Server.Clients != 0 || st.Server.SystemID == "" ||
		st.Volume.TotalBytes == 0 || st.Volume.Writes != pgapi.WritesOpen {
		t.Errorf("%+v %+v", st, st.Server)
	}
	a := newArchive()
	a.from(t, g)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a AS SELECT generate_series(1, 1000) AS b")
	g.switchWAL(t)
	st = g.await(t, "archived", func(st pgapi.Status) bool { return st.Archive.LastArchived != "" && st.Archive.Pending == 0 })
	if st.Tenant == nil || *st.Tenant != app.Tenant() {
		t.Errorf("tenant %v", st.Tenant)
	}
	g.await(t, "without a checkpoint to hold it up", func(st pgapi.Status) bool { return st.Server.SwitchesInTime != nil && *st.Server.SwitchesInTime })
	// An idle database has nothing to switch.
	g.switchWAL(t)

	t.Run("clients count, the platform does not", func(t *testing.T) {
		before := g.await(t, "idle", func(st pgapi.Status) bool { return st.Server.Idle() }).Server.LastActivityAt
		conn, err := g.cfg.Postgres.LogIn(ctx, app.Username, app.Database, app.Password)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "SET application_name = 'berth'; SELECT 1").ReadAll(); err != nil {
			t.Fatal(err)
		}
		st := g.await(t, "seen", func(st pgapi.Status) bool { return st.Server.Clients == 1 })
		if !st.Server.LastActivityAt.After(before) {
			t.Errorf("last activity %v, before it %v", st.Server.LastActivityAt, before)
		}
		conn.Close(ctx)
		g.await(t, "gone", func(st pgapi.Status) bool { return st.Server.Clients == 0 })
	})
	t.Run("settings that need a start cause one", func(t *testing.T) {
		s := pgtest.Settings()
		if done, err := g.Settings(ctx, s); err != nil || done.Changed || done.Restarted {
			t.Errorf("the same: %+v, %v", done, err)
		}
		s.ArchiveIntervalSeconds = 30
		if done, err := g.Settings(ctx, s); err != nil || !done.Changed || done.Restarted {
			t.Errorf("an interval: %+v, %v", done, err)
		}
		s.MemoryMB = 512
		if done, err := g.Settings(ctx, s); err != nil || !done.Restarted {
			t.Errorf("memory: %+v, %v", done, err)
		}
		if got := g.must(t, "SHOW shared_buffers"); got != "128MB" {
			t.Errorf("shared_buffers %s", got)
		}
		if got := g.must(t, "SHOW archive_timeout"); got != "20s" {
			t.Errorf("archive_timeout %s", got)
		}
		s.MemoryMB = 1
		if _, err := g.Settings(ctx, s); !pgapi.HasCode(err, pgapi.CodeInvalid) {
			t.Errorf("no memory: %v", err)
		}
	})
	t.Run("a stop is kept", func(t *testing.T) {
		if err := g.Stop(ctx, pgapi.Stop{}); err != nil {
			t.Fatal(err)
		}
		if st, err := g.Status(ctx); err != nil || st.State != pgapi.StateStopped || st.Ready || st.Server != nil {
			t.Errorf("%+v, %v", st, err)
		}
		for name, err := range map[string]error{
			"credentials": func() error { _, err := g.Credentials(ctx, app); return err }(),
			"a switch":    func() error { _, err := g.Switch(ctx, time.Second); return err }(),
			"a backup":    func() error { _, err := g.Backup(ctx, pgapi.Backup{Label: "x"}, io.Discard); return err }(),
		} {
			if !pgapi.HasCode(err, pgapi.CodeNotReady) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := g.Start(ctx); err != nil {
			t.Fatal(err)
		}
		g.await(t, "ready", ready)
	})
	t.Run("a guestpg that starts anew knows it all", func(t *testing.T) {
		g.stop()
		g.run(t)
		st := g.await(t, "ready", ready)
		if st.Tenant == nil || st.Archive.LastArchived == "" || g.must(t, "SHOW shared_buffers") != "128MB" {
			t.Errorf("%+v", st)
		}
	})
}

func TestTheHostWhoDoesNotComeIsSaid(t *testing.T) {
	g := start(t, func(c *Config) { c.Slow = time.Millisecond })
	ctx := pgtest.Context(t)
	g.await(t, "ready", ready)
	g.credentials(t, app)
	// What is switched to is not stored by then; the checkpoint before it may take
	// longer than that.
	pgtest.Await(t, "the switch", func() bool {
		done, err := g.Switch(ctx, time.Second)
		if err == nil && len(done.Pending) != 1 {
			t.Fatalf("%+v", done)
		}
		return err == nil
	})
	st := g.await(t, "said", func(st pgapi.Status) bool { return !st.Archive.FailingSince.IsZero() })
	if st.Archive.Pending != 1 || st.Archive.PendingBytes != pgapi.SegmentBytes || st.Archive.Error == "" || !st.Ready {
		t.Errorf("%+v", st.Archive)
	}
	// A server that is to stop does not wait for the host.
	if err := g.Stop(ctx, pgapi.Stop{}); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(ctx); err != nil {
		t.Fatal(err)
	}
	a := newArchive()
	a.from(t, g)
	g.await(t, "stored", func(st pgapi.Status) bool { return st.Archive.Pending == 0 && st.Archive.FailingSince.IsZero() })
}
