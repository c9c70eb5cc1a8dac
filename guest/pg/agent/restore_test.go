package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
)

// restored puts a base into a guest and recovers it.
func restored(t *testing.T, g *guest, base []byte, target *time.Time) pgapi.Status {
	t.Helper()
	ctx := pgtest.Context(t)
	if _, err := g.RestoreBase(ctx, bytes.NewReader(base)); err != nil {
		t.Fatal(err)
	}
	if err := g.Restore(ctx, pgapi.Restore{TargetTime: target}); err != nil {
		t.Fatal(err)
	}
	return g.await(t, "restored", func(st pgapi.Status) bool {
		return st.Restore.Phase == pgapi.RestoreDone && st.Ready || st.Restore.Phase == pgapi.RestoreFailed
	})
}

// flip changes a bit in the middle of the WAL that was written.
func flip(content []byte) []byte {
	out := bytes.Clone(content)
	last := len(bytes.TrimRight(out, "\x00"))
	out[last/2] ^= 0x40
	return out
}

func TestADatabaseIsRestored(t *testing.T) {
	tier.Slow(t)
	source := start(t)
	source.await(t, "ready", ready)
	a := newArchive()
	a.from(t, source)
	source.credentials(t, app)
	source.must(t, "CREATE TABLE a (n int, at timestamptz DEFAULT clock_timestamp()); INSERT INTO a VALUES (1)")
	base := source.backup(t)
	source.must(t, "INSERT INTO a VALUES (2)")
	source.switchWAL(t)
	source.must(t, "INSERT INTO a VALUES (3)")
	at := source.must(t, "SELECT to_char(max(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.USZ') FROM a")
	between, err := time.Parse(time.RFC3339, at)
	if err != nil {
		t.Fatal(err)
	}
	between = between.Add(time.Second)
	for time.Now().Before(between) { // the target's clock is the commits'
		source.must(t, "SELECT pg_sleep(0.1)")
	}
	source.must(t, "INSERT INTO a VALUES (4)")
	source.switchWAL(t)
	source.must(t, "INSERT INTO a VALUES (5)")
	source.switchWAL(t)
	source.must(t, "INSERT INTO a VALUES (6)") // not archived
	source.stop()

	const all = "SELECT string_agg(n::text, ' ' ORDER BY n) FROM a"
	t.Run("to the end of the archive, and archives on", func(t *testing.T) {
		g := start(t)
		a.to(t, g)
		st := restored(t, g, base, nil)
		if !st.Ready || st.Server.Timeline != 2 || st.Restore.WALFiles == 0 || st.Restore.LastCommitAt.IsZero() {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		g.credentials(t, app)
		if got := g.must(t, all); got != "1 2 3 4 5" {
			t.Errorf("rows %s", got)
		}
		own := newArchive()
		own.from(t, g)
		g.must(t, "INSERT INTO a VALUES (7)")
		g.switchWAL(t)
		own.mu.Lock()
		defer own.mu.Unlock()
		if _, ok := own.files["00000002.history"]; !ok {
			t.Errorf("no history of timeline 2 was archived: %d files", len(own.files))
		}
		for name := range own.files {
			if !strings.HasPrefix(name, "00000002") {
				t.Errorf("%s was archived anew", name)
			}
		}
	})
	t.Run("to a moment", func(t *testing.T) {
		g := start(t)
		a.to(t, g)
		st := restored(t, g, base, &between)
		if !st.Ready || st.Restore.EndOfArchive {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		g.credentials(t, app)
		if got := g.must(t, all); got != "1 2 3" {
			t.Errorf("rows %s", got)
		}
	})
	t.Run("to a moment after all commits", func(t *testing.T) {
		g := start(t)
		a.to(t, g)
		later := time.Now().Add(time.Hour)
		st := restored(t, g, base, &later)
		if !st.Ready || !st.Restore.EndOfArchive {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		g.credentials(t, app)
		if got := g.must(t, all); got != "1 2 3 4 5" {
			t.Errorf("rows %s", got)
		}
	})
	t.Run("for a smaller guest, under other names", func(t *testing.T) {
		big := start(t)
		a.to(t, big)
		if st := restored(t, big, base, nil); !st.Ready {
			t.Fatalf("%+v", st)
		}
		g := pgtest.Settings()
		g.MemoryMB = 1024
		if _, err := big.Settings(pgtest.Context(t), g); err != nil {
			t.Fatal(err)
		}
		larger := newArchive()
		larger.from(t, big)
		big.credentials(t, pgapi.Credentials{Database: "renamed", Username: "renamed", Password: app.Password})
		base := big.backup(t)
		big.switchWAL(t)
		big.stop()
		small := start(t)
		larger.to(t, small)
		st := restored(t, small, base, nil)
		if !st.Ready || st.Tenant == nil || st.Tenant.Database != "renamed" || st.Server.Timeline != 3 {
			t.Fatalf("%+v %+v", st, st.Restore)
		}
		small.credentials(t, app)
		if got := small.must(t, all); got != "1 2 3 4 5" {
			t.Errorf("rows %s", got)
		}
	})
	segments := func() (names []string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for name := range a.files {
			if w, err := pgapi.ParseWALName(name); err == nil && w.Kind == pgapi.WALSegment {
				names = append(names, name)
			}
		}
		return names
	}()
	newest, before := "", ""
	for _, name := range segments {
		switch {
		case name > newest:
			newest, before = name, newest
		case name > before:
			before = name
		}
	}
	refused := func(t *testing.T, g *guest, st pgapi.Status, names string) {
		t.Helper()
		if st.Ready || st.State != pgapi.StateFailed || !strings.Contains(st.Error, names) {
			t.Errorf("%+v %+v", st, st.Restore)
		}
		if _, err := g.sql(t, "SELECT 1"); err == nil {
			t.Error("somebody got in")
		}
		if err := g.Start(pgtest.Context(t)); !pgapi.HasCode(err, pgapi.CodeBusy) {
			t.Errorf("a start: %v", err)
		}
		g.stop()
		g.run(t)
		if st := g.await(t, "known", func(st pgapi.Status) bool { return st.Restore != nil }); st.Ready || st.State != pgapi.StateFailed {
			t.Errorf("after a start of guestpg: %+v", st)
		}
	}
	t.Run("not from WAL that is damaged", func(t *testing.T) {
		damaged := newArchive()
		a.mu.Lock()
		for name, content := range a.files {
			damaged.files[name] = content
		}
		a.mu.Unlock()
		damaged.files[before] = flip(damaged.files[before])
		for name, target := range map[string]*time.Time{"to the end": nil, "to a moment": ptr(time.Now())} {
			t.Run(name, func(t *testing.T) {
				g := start(t)
				damaged.to(t, g)
				refused(t, g, restored(t, g, base, target), before)
			})
		}
	})
	t.Run("not from WAL that is lost", func(t *testing.T) {
		g := start(t)
		a.to(t, g, before)
		refused(t, g, restored(t, g, base, nil), before)
	})
	t.Run("not from a base that is damaged", func(t *testing.T) {
		g := start(t)
		g.await(t, "ready", ready)
		broken := bytes.Clone(base)
		at := bytes.Index(broken, []byte("base/1/1259\x00"))
		broken[at+512+4000] ^= 1
		_, err := g.RestoreBase(pgtest.Context(t), bytes.NewReader(broken))
		if !pgapi.HasCode(err, pgapi.CodeDamaged) || !strings.Contains(err.Error(), "base/1/1259") {
			t.Fatalf("%v", err)
		}
		refused(t, g, g.await(t, "failed", func(pgapi.Status) bool { return true }), "base/1/1259")
		// And then from one that is whole.
		a.to(t, g)
		if st := restored(t, g, base, nil); !st.Ready {
			t.Errorf("%+v", st)
		}
	})
	t.Run("on by the guestpg that comes after", func(t *testing.T) {
		g := start(t)
		ctx := pgtest.Context(t)
		if _, err := g.RestoreBase(ctx, bytes.NewReader(base)); err != nil {
			t.Fatal(err)
		}
		if err := g.Restore(ctx, pgapi.Restore{}); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := g.NextFetch(ctx, pgapi.MaxWait); !ok || err != nil {
			t.Fatal(err)
		}
		g.stop()
		g.run(t)
		a.to(t, g)
		g.await(t, "restored", ready)
		g.credentials(t, app)
		if got := g.must(t, all); got != "1 2 3 4 5" {
			t.Errorf("rows %s", got)
		}
	})
	t.Run("not twice by a guestpg that is asked before it has begun", func(t *testing.T) {
		g := start(t)
		if _, err := g.RestoreBase(pgtest.Context(t), bytes.NewReader(base)); err != nil {
			t.Fatal(err)
		}
		g.stop()
		next, err := New(g.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer next.listener.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		early := httptest.NewRecorder()
		next.routes().ServeHTTP(early, httptest.NewRequestWithContext(ctx, http.MethodPost, pgapi.PathRestore, strings.NewReader("{}")))
		if phase := next.restore.view().Phase; early.Code != http.StatusConflict || phase != pgapi.RestoreUnpacked {
			t.Errorf("%d %s, phase %s", early.Code, early.Body, phase)
		}
	})
	t.Run("and is given up by its host", func(t *testing.T) {
		g := start(t)
		ctx := pgtest.Context(t)
		if _, err := g.RestoreBase(ctx, bytes.NewReader(base)); err != nil {
			t.Fatal(err)
		}
		if err := g.Restore(ctx, pgapi.Restore{}); err != nil {
			t.Fatal(err)
		}
		if err := g.Stop(ctx, pgapi.Stop{}); err != nil {
			t.Fatal(err)
		}
		if st, err := g.Status(ctx); err != nil || st.Restore.Phase != pgapi.RestoreFailed {
			t.Errorf("%+v, %v", st.Restore, err)
		}
		if err := g.Restore(ctx, pgapi.Restore{}); !pgapi.HasCode(err, pgapi.CodeNotReady) {
			t.Errorf("without a base: %v", err)
		}
		if _, _, err := g.NextFetch(ctx, 0); err != nil && !pgapi.HasCode(err, pgapi.CodeNotReady) {
			t.Errorf("%v", err)
		}
		if got, _ := filepath.Glob(g.cfg.Postgres.Data() + "/postmaster.pid"); len(got) > 0 {
			t.Error("PostgreSQL still runs")
		}
	})
}

// A source that lives goes on while its clone recovers. What it commits after the target is
// not the clone's, also where the archive had nothing after the target at first.
func TestAMomentIsNotPassedByAnArchiveThatGrows(t *testing.T) {
	tier.Slow(t)
	source := start(t)
	source.await(t, "ready", ready)
	a := newArchive()
	a.from(t, source)
	source.credentials(t, app)
	source.must(t, "CREATE TABLE a AS SELECT 1 AS n")
	base := source.backup(t)
	source.must(t, "INSERT INTO a VALUES (2)")
	source.switchWAL(t)
	target, err := time.Parse(time.RFC3339, source.must(t, `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.USZ')`))
	if err != nil {
		t.Fatal(err)
	}
	early := a.stored()
	source.must(t, "INSERT INTO a VALUES (3)")
	source.switchWAL(t)
	source.stop()
	later := a.stored()

	g := start(t)
	pgtest.Repeat(t, func(ctx context.Context) bool {
		name, ok, err := g.NextFetch(ctx, time.Second)
		if err != nil || !ok {
			return false
		}
		st, err := g.Status(ctx)
		if err != nil {
			return false
		}
		has := early
		if st.Restore.EndOfArchive {
			has = later
		}
		if content, found := has[name]; found {
			return g.Provide(ctx, name, content, hexSum(content)) == nil
		}
		return g.Missing(ctx, name) == nil
	})
	st := restored(t, g, base, &target)
	if !st.Ready || !st.Restore.EndOfArchive {
		t.Fatalf("%+v %+v", st, st.Restore)
	}
	g.credentials(t, app)
	if got := g.must(t, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM a"); got != "1 2" {
		t.Errorf("rows %s", got)
	}
}

// written makes a database with a row, and returns a base backup of it and its archive.
func written(t *testing.T) (base []byte, a *archive) {
	t.Helper()
	g := start(t)
	g.await(t, "ready", ready)
	a = newArchive()
	a.from(t, g)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a AS SELECT 1 AS n")
	base = g.backup(t)
	g.switchWAL(t)
	g.stop()
	return base, a
}

// output is what PostgreSQL writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// What recovery left in memory may be gigabytes, and a stop has a minute for them.
func TestWhatWasRecoveredIsWrittenBeforeTheLastStart(t *testing.T) {
	tier.Slow(t)
	base, a := written(t)
	said := &output{}
	g := start(t, func(c *Config) { c.Postgres.Output = said })
	a.to(t, g)
	if st := restored(t, g, base, nil); !st.Ready {
		t.Fatalf("%+v %+v", st, st.Restore)
	}
	text := said.String()
	written, stopped := strings.Index(text, "checkpoint starting: immediate force wait"), strings.LastIndex(text, "received fast shutdown request")
	if written < 0 || stopped < written {
		t.Errorf("a checkpoint at %d, the stop at %d of what it said:\n%s", written, stopped, text)
	}
}

// A database that is restored because it has no room gets its credentials, which a standby
// would not take, and then its writes are stopped.
func TestARestoreOfADatabaseWithoutRoom(t *testing.T) {
	tier.Slow(t)
	base, a := written(t)
	g := start(t, func(c *Config) { c.Reserve = Reserve{Limit: 1 << 60, Stop: 1 << 59, Ballast: 1} })
	g.await(t, "without room", func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesStopped })
	a.to(t, g)
	if st := restored(t, g, base, nil); !st.Ready {
		t.Fatalf("%+v %+v", st, st.Restore)
	}
	limited := func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesLimited && st.Ready }
	g.await(t, "limited", limited)
	g.stop()
	g.run(t) // the guestpg after it knows
	g.await(t, "limited", limited)
	g.credentials(t, app)
	g.await(t, "stopped", func(st pgapi.Status) bool {
		return st.Volume.Writes == pgapi.WritesStopped && st.Server != nil && st.Server.InRecovery
	})
	if got := g.must(t, "SELECT n FROM a"); got != "1" {
		t.Errorf("row %s", got)
	}
	g.stop()
	g.run(t)
	g.await(t, "stopped for good", func(st pgapi.Status) bool {
		return st.Volume.Writes == pgapi.WritesStopped && st.Server != nil && st.Server.InRecovery
	})
}

// The WAL of a day may be many times what is free on the volume. Recovery has of it at once
// what there is room for.
func TestARestoreOfMoreWALThanThereIsRoomFor(t *testing.T) {
	tier.Slow(t)
	dir := volume(t, 220)
	source := start(t)
	source.await(t, "ready", ready)
	a := newArchive()
	a.from(t, source)
	source.credentials(t, app)
	source.must(t, "CREATE TABLE a AS SELECT g AS n, repeat('x', 1000) AS x FROM generate_series(1, 1000) g")
	base := source.backup(t)
	for range 30 {
		source.must(t, "UPDATE a SET n = n + 1")
		source.must(t, "VACUUM a")
		source.switchWAL(t)
	}
	source.stop()
	g := start(t, func(c *Config) { c.Postgres.Dir = dir })
	a.to(t, g)
	if st := restored(t, g, base, nil); !st.Ready {
		t.Fatalf("%+v %+v", st, st.Restore)
	}
	g.credentials(t, app)
	if got := g.must(t, "SELECT min(n) FROM a"); got != "31" {
		t.Errorf("row %s", got)
	}
}

// What does not fit the volume is refused as that, and leaves room for what does.
func TestABaseThatDoesNotFitTheVolume(t *testing.T) {
	tier.Slow(t)
	dir := volume(t, 160)
	g := start(t, func(c *Config) { c.Postgres.Dir = dir })
	g.await(t, "ready", ready)
	base, a := written(t)
	big := start(t)
	big.await(t, "ready", ready)
	big.credentials(t, app)
	big.must(t, "CREATE TABLE a (x text STORAGE external); INSERT INTO a SELECT repeat(md5(g::text), 2500) FROM generate_series(1, 2000) g")
	_, err := g.RestoreBase(pgtest.Context(t), bytes.NewReader(big.backup(t)))
	if !pgapi.HasCode(err, pgapi.CodeNoRoom) {
		t.Fatalf("%v", err)
	}
	st := g.await(t, "failed", func(st pgapi.Status) bool { return st.Restore != nil && st.Restore.Phase == pgapi.RestoreFailed })
	if st.Ready || st.State != pgapi.StateFailed || st.Volume.FreeBytes < 140<<20 {
		t.Errorf("%+v %+v", st, st.Volume)
	}
	a.to(t, g)
	if st := restored(t, g, base, nil); !st.Ready {
		t.Errorf("%+v %+v", st, st.Restore)
	}
}

// A volume that is full takes no note of a restore that fails, and it is said all the same.
func TestARestoreThatFailsOnAFullVolume(t *testing.T) {
	a := &Agent{cfg: Config{Postgres: postgres.Config{Dir: filepath.Join(t.TempDir(), "none")}, Log: slog.New(slog.DiscardHandler)}}
	r := &restore{status: pgapi.RestoreStatus{Phase: pgapi.RestoreRecovering}}
	a.failed(r, errors.New("no space left on device"))
	if got := r.view(); got.Phase != pgapi.RestoreFailed || got.Error != "no space left on device" {
		t.Errorf("%+v", got)
	}
}

func ptr[T any](v T) *T { return &v }
