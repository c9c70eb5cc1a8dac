package pgarchive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pg/agent"
	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
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

// guest is PostgreSQL with guestpg beside it.
type guest struct {
	*pgapi.Client
	cfg  agent.Config
	stop func()
}

func startGuest(t testing.TB) *guest {
	t.Helper()
	pg := pgtest.Config(t)
	g := &guest{cfg: agent.Config{
		Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Peer: netip.MustParseAddr("127.0.0.1"),
		Postgres: pg, Settings: pgtest.Settings(), Log: pg.Log, Reserve: agent.Reserve{Limit: 1, Stop: 1, Ballast: 1},
	}}
	g.cfg.Postgres.Program = filepath.Join(pg.Dir, "guestpg")
	self, err := os.ReadFile(must(os.Executable()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.cfg.Postgres.Program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	pgtest.Init(t, g.cfg.Postgres)
	a, err := agent.New(g.cfg)
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
	t.Cleanup(g.stop)
	g.Client = pgapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", a.Addr().String())
	})
	return g
}

func (g *guest) await(t testing.TB, what string, ok func(pgapi.Status) bool) pgapi.Status {
	t.Helper()
	for ctx := pgtest.Context(t); ; {
		st, err := g.Status(ctx)
		if err == nil && ok(st) {
			return st
		}
		if ctx.Err() != nil {
			t.Fatalf("not %s: %+v, %v", what, st, err)
		}
	}
}

func (g *guest) credentials(t testing.TB) {
	t.Helper()
	if _, err := g.Credentials(pgtest.Context(t), pgapi.Credentials{Database: "app", Username: "app", Password: "some-password-1"}); err != nil {
		t.Fatal(err)
	}
}

func (g *guest) sql(t testing.TB, sql string) string {
	t.Helper()
	ctx := pgtest.Context(t)
	conn, err := g.cfg.Postgres.LogIn(ctx, "app", "app", "some-password-1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if n := len(results); n > 0 && len(results[n-1].Rows) > 0 {
		return string(results[n-1].Rows[0][0])
	}
	return ""
}

func (g *guest) switchWAL(t testing.TB) {
	t.Helper()
	if done, err := g.Switch(pgtest.Context(t), time.Minute); err != nil || len(done.Pending) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
}

// archives stores a guest's WAL until the test ends.
func archives(t testing.TB, g *guest, a *Archive) {
	pgtest.Repeat(t, func(ctx context.Context) bool {
		f, ok, err := g.NextWAL(ctx, time.Second)
		if err != nil || !ok {
			return false
		}
		r, err := g.WAL(ctx, f.Name)
		if err != nil {
			return false
		}
		_, err = a.PutWAL(ctx, f, r)
		r.Close()
		if err == nil {
			err = g.WALStored(ctx, f)
		}
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		return err == nil
	})
}

// restore makes a guest from an archive, and returns how its restore ended.
func restore(t *testing.T, a *Archive, target *time.Time) (*guest, pgapi.Status) {
	t.Helper()
	ctx := pgtest.Context(t)
	base, err := a.Choose(ctx, target)
	if err != nil {
		t.Fatal(err)
	}
	g := startGuest(t)
	r, w := io.Pipe()
	go func() { w.CloseWithError(a.Backup(ctx, base.ID, w)) }()
	if _, err := g.RestoreBase(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := g.Restore(ctx, pgapi.Restore{TargetTime: target}); err != nil {
		t.Fatal(err)
	}
	pgtest.Repeat(t, func(ctx context.Context) bool {
		name, ok, err := g.NextFetch(ctx, time.Second)
		if err != nil || !ok {
			return false
		}
		content, sum, err := a.WAL(ctx, name)
		switch {
		case err == nil:
			err = g.Provide(ctx, name, content, sum)
		case errors.Is(err, ErrNotArchived):
			err = g.Missing(ctx, name)
		default:
			err = g.FetchFailed(ctx, name, err.Error())
		}
		return err == nil // else it is asked for again
	})
	return g, g.await(t, "restored", func(st pgapi.Status) bool {
		return st.Restore.Phase == pgapi.RestoreDone && st.Ready || st.Restore.Phase == pgapi.RestoreFailed
	})
}

func TestADatabaseComesBackFromItsArchive(t *testing.T) {
	tier.Slow(t)
	pgtest.Bin(t)
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	source := startGuest(t)
	source.await(t, "ready", func(st pgapi.Status) bool { return st.Ready })
	archives(t, source, a)
	source.credentials(t)
	const marker = "q7Zt0PpV5hWx2RkYd8Lm"
	source.sql(t, "CREATE TABLE a (n int, at timestamptz DEFAULT clock_timestamp(), what text DEFAULT '"+marker+"'); INSERT INTO a VALUES (1)")
	base, err := a.PutBackup(pgtest.Context(t), "base-1", time.Now(), func(w io.Writer) (pgapi.BackupInfo, error) {
		return source.Backup(pgtest.Context(t), pgapi.Backup{Label: "base-1"}, w)
	})
	if err != nil || base.SizeBytes == 0 {
		t.Fatalf("%+v, %v", base, err)
	}
	// A row each tenth of a second, over several segments.
	for n := range 4 {
		source.sql(t, fmt.Sprintf("DO $$ BEGIN FOR i IN 1..15 LOOP INSERT INTO a VALUES (%d + i); COMMIT; PERFORM pg_sleep(0.1); END LOOP; END $$", 1+15*n))
		source.switchWAL(t)
	}
	archived := source.sql(t, "SELECT count(*) FROM a")
	source.sql(t, "INSERT INTO a VALUES (1000)")
	info, err := a.Info(t.Context())
	if err != nil || len(info.BaseBackups) != 1 || info.FirstRestorable.IsZero() || !info.LastRestorable.After(info.FirstRestorable) || info.SizeBytes == 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	// The commit comes a moment after the row's time.
	until := func(at time.Time) string {
		return source.sql(t, "SELECT count(*) FROM a WHERE at <= '"+at.UTC().Format(time.RFC3339Nano)+"'")
	}
	atLeast, atMost := until(info.LastRestorable.Add(-time.Second/20)), until(info.LastRestorable)
	source.stop()

	t.Run("all of it", func(t *testing.T) {
		g, st := restore(t, a, nil)
		if !st.Ready {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		g.credentials(t)
		if got := g.sql(t, "SELECT count(*) FROM a"); got != archived {
			t.Errorf("%s rows; want %s", got, archived)
		}
	})
	t.Run("to the last moment that it says", func(t *testing.T) {
		g, st := restore(t, a, &info.LastRestorable)
		if !st.Ready || st.Restore.EndOfArchive {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		g.credentials(t)
		if got := g.sql(t, "SELECT count(*) FROM a"); got != atLeast && got != atMost {
			t.Errorf("%s rows; want %s or %s", got, atLeast, atMost)
		}
	})
	t.Run("not from one that is damaged", func(t *testing.T) {
		object := walDir + pgapi.SegmentName(1, must(pgapi.ParseLSN(base.StopLSN))/pgapi.SegmentBytes+2)
		change(t, filepath.Join(dir, root, first, object), func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw })
		_, st := restore(t, a, nil)
		if st.Ready || !strings.Contains(st.Error, object) {
			t.Errorf("%+v %+v", st, st.Restore)
		}
	})
	for _, object := range objects(t, dir) {
		raw, err := os.ReadFile(filepath.Join(dir, object))
		if err != nil || bytes.Contains(raw, []byte(marker)) {
			t.Errorf("%s has a row in plain text, or %v", object, err)
		}
	}
}
