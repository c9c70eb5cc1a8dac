package database

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/tier"
)

// live is a database that serves, has its credentials, and can be restored.
func live(t *testing.T, h *host, id, name string) *guest {
	t.Helper()
	g := h.database(t, id, spec(name))
	h.await(t, id, "ready", ready)
	_, err := h.SetCredentials(t.Context(), id, app)
	must(t, err)
	h.await(t, id, "restorable", restorable)
	return g
}

func TestADatabaseIsTunedArchivedAndBackedUp(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	g := h.database(t, idA, spec(one))
	h.await(t, idA, "ready", ready)
	applied, err := h.SetCredentials(t.Context(), idA, app)
	must(t, err)
	if applied.Username != app.Username {
		t.Errorf("credentials of %+v", applied)
	}
	st := h.await(t, idA, "backed up", restorable)
	if st.Archive.BaseBackups != 1 || st.Archive.LastBackupAt.IsZero() || st.Archive.SizeBytes == 0 || st.Tenant == nil || st.Restore != nil {
		t.Errorf("state = %+v", st)
	}
	if got := g.sql(t, "CREATE TABLE t AS SELECT 1 AS x; SELECT pg_current_wal_lsn()"); got == "" {
		t.Error("no position")
	}
	written := parseLSN(g.sql(t, "SELECT pg_current_wal_lsn()"))
	st = h.await(t, idA, "archived up to the write", func(st *hostapi.DatabaseState) bool { return parseLSN(st.Archive.LastLSN) >= written })
	if st.Archive.LagSeconds > 30 || !st.Archive.FailingSince.IsZero() || st.Archive.Error != "" {
		t.Errorf("archive = %+v", st.Archive)
	}
	rest := parseLSN(g.sql(t, "INSERT INTO t VALUES (2); SELECT pg_current_wal_insert_lsn()"))
	st, err = h.Switch(t.Context(), idA)
	must(t, err)
	if parseLSN(st.Archive.LastLSN) < rest {
		t.Errorf("archived up to %s, and %s was written", st.Archive.LastLSN, rest)
	}
	// A second one only when it is asked for.
	must(t, h.Backup(idA))
	h.await(t, idA, "backed up again", func(st *hostapi.DatabaseState) bool { return st.Archive.BaseBackups == 2 })
	if st := h.State(idA); st.Volume.TotalBytes == 0 || h.boxes.told == 0 {
		t.Errorf("volume = %+v, %d heartbeats", st.Volume, h.boxes.told)
	}
	if families, err := h.metrics.Gather(); err != nil || len(families) < 8 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
	// It ends with the box's running time, and begins again with it.
	h.boxes.run(idA, false)
	if st := h.State(idA); st != nil {
		t.Errorf("a database that does not run is %+v", st)
	}
	if _, err := h.Get(t.Context(), idA); !errors.Is(err, hosterr.ErrNotRunning) {
		t.Errorf("get = %v, want ErrNotRunning", err)
	}
	h.boxes.run(idA, true)
	h.await(t, idA, "ready again", ready)
	st, err = h.Get(t.Context(), idA)
	must(t, err)
	if !st.Ready || st.Archive.BaseBackups != 2 {
		t.Errorf("state = %+v", st)
	}
	h.boxes.remove(idA)
	if _, err := h.Get(t.Context(), idA); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("get = %v, want ErrNotFound", err)
	}
}

func TestABucketThatIsAwayIsSaidAndMadeUpFor(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	h.bucket.set(true)
	written := parseLSN(g.sql(t, "CREATE TABLE t AS SELECT 1 AS x; SELECT pg_current_wal_insert_lsn()"))
	st := h.await(t, idA, "failing", func(st *hostapi.DatabaseState) bool { return !st.Archive.FailingSince.IsZero() })
	if st.Archive.Error != hostapi.ArchiveCauseRefused || !st.Ready {
		t.Errorf("state = %+v", st)
	}
	// It does not try to sleep: that would only shut its ports, and add to what waits.
	if _, err := h.Sleep(t.Context(), idA, hostapi.DatabaseSleep{}); !errors.Is(err, hosterr.ErrDatabaseBusy) || !strings.Contains(err.Error(), "nothing can be archived since") {
		t.Errorf("sleep = %v, want ErrDatabaseBusy for the archive", err)
	}
	h.await(t, idA, "late", func(st *hostapi.DatabaseState) bool { return st.Archive.LagSeconds > 5 && st.Archive.PendingBytes > 0 })
	h.bucket.set(false)
	h.await(t, idA, "archived", func(st *hostapi.DatabaseState) bool {
		return st.Archive.FailingSince.IsZero() && st.Archive.Error == "" && parseLSN(st.Archive.LastLSN) >= written
	})
}

func TestAFencedArchiveEndsItsWriter(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	must(t, NewArchives(h.store).Fence(t.Context(), archive(one)))
	g.sql(t, "CREATE TABLE t AS SELECT 1 AS x")
	st := h.await(t, idA, "fenced", func(st *hostapi.DatabaseState) bool { return st.Error == hostapi.ArchiveCauseFenced })
	if st.Archive.Error != hostapi.ArchiveCauseFenced {
		t.Errorf("archive = %+v", st.Archive)
	}
	info, err := NewArchives(h.store).Info(t.Context(), archive(one))
	must(t, err)
	if !info.Fenced {
		t.Error("it is not fenced")
	}
	if _, err := h.Sleep(t.Context(), idA, hostapi.DatabaseSleep{}); !errors.Is(err, hosterr.ErrArchiveFenced) {
		t.Errorf("sleep = %v, want ErrArchiveFenced", err)
	}
	must(t, NewArchives(h.store).Delete(t.Context(), archive(one)))
	must(t, NewArchives(h.store).Delete(t.Context(), archive(one)))
}

func TestSleepWaitsForClientsAndArchivesTheRest(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	ctx := pgtest.Context(t)
	conn, err := g.cfg.Postgres.LogIn(ctx, app.Username, app.Database, app.Password)
	must(t, err)
	for _, idle := range []int{0, 3600} {
		if _, err := h.Sleep(ctx, idA, hostapi.DatabaseSleep{IdleSeconds: idle}); !errors.Is(err, hosterr.ErrDatabaseBusy) {
			t.Errorf("sleep with a client = %v, want ErrDatabaseBusy", err)
		}
	}
	if st := h.State(idA); !st.IdleSince.IsZero() || st.Clients != 1 {
		t.Errorf("%d clients, idle since %s", st.Clients, st.IdleSince)
	}
	_, err = conn.Exec(ctx, "CREATE TABLE t AS SELECT 1 AS x").ReadAll()
	must(t, err)
	must(t, conn.Close(ctx))
	h.await(t, idA, "idle", func(st *hostapi.DatabaseState) bool { return !st.IdleSince.IsZero() })
	if _, err := h.Sleep(ctx, idA, hostapi.DatabaseSleep{IdleSeconds: 3600}); !errors.Is(err, hosterr.ErrDatabaseBusy) {
		t.Errorf("sleep too soon = %v, want ErrDatabaseBusy", err)
	}
	var b hostapi.Box
	for { // autovacuum may be at work
		b, err = h.Sleep(ctx, idA, hostapi.DatabaseSleep{})
		if !errors.Is(err, hosterr.ErrDatabaseBusy) || ctx.Err() != nil {
			break
		}
	}
	must(t, err)
	if b.Status != hostapi.StatusHibernated {
		t.Errorf("box = %+v", b)
	}
	// All that it wrote is in the bucket.
	h.database(t, idB, hostapi.DatabaseSpec{
		Archive: archive(two), Restore: &hostapi.DatabaseRestore{From: archive(one)}, ArchiveIntervalSeconds: 3, BackupIntervalSeconds: 3600,
	})
	h.await(t, idB, "restored", ready)
	if got := h.boxes.list[idB].guest.sql(t, "SELECT count(*) FROM t"); got != "1" {
		t.Errorf("count = %q", got)
	}
}

// A machine that goes on after a pause is archived again: it has the same VMM.
func TestAMachineThatGoesOnHasAnAgentAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.boxes.put(idA, nil)
	must(t, second(h.Put(idA, spec(one))))
	last, err := h.running(idA)
	must(t, err)
	b, err := h.boxes.Database(idA)
	must(t, err)
	for _, run := range []<-chan struct{}{nil, b.Run} {
		h.boxes.mu.Lock()
		h.boxes.list[idA].Run = run
		h.boxes.mu.Unlock()
		h.sync()
	}
	<-last.done
	if a, err := h.running(idA); err != nil || a == last {
		t.Errorf("its agent is the one that has ended: %v", err)
	}
}

func TestWhatIsNotADatabaseOrNoneYet(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	bad := func(change func(*hostapi.DatabaseSpec)) error {
		s := spec(one)
		change(&s)
		_, err := h.Put(idA, s)
		return err
	}
	for what, change := range map[string]func(*hostapi.DatabaseSpec){
		"no interval":     func(s *hostapi.DatabaseSpec) { s.ArchiveIntervalSeconds = 0 },
		"no backups":      func(s *hostapi.DatabaseSpec) { s.BackupIntervalSeconds = 0 },
		"a backup before": func(s *hostapi.DatabaseSpec) { s.FirstBackupSeconds = -1 },
		"no name":         func(s *hostapi.DatabaseSpec) { s.Archive.Name = "" },
		"a path":          func(s *hostapi.DatabaseSpec) { s.Archive.Name = "../../etc/1" },
		"a short key":     func(s *hostapi.DatabaseSpec) { s.Archive.Key = s.Archive.Key[:16] },
		"its own source":  func(s *hostapi.DatabaseSpec) { s.Restore = &hostapi.DatabaseRestore{From: s.Archive} },
		"two sources": func(s *hostapi.DatabaseSpec) {
			s.Restore = &hostapi.DatabaseRestore{From: archive(two), WithDisk: true}
		},
		"a moment of a disk": func(s *hostapi.DatabaseSpec) {
			s.Restore = &hostapi.DatabaseRestore{WithDisk: true, TargetTime: new(time.Now())}
		},
		"a nameless source": func(s *hostapi.DatabaseSpec) { s.Restore = &hostapi.DatabaseRestore{} },
	} {
		if err := bad(change); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if _, err := h.Put(idA, spec(one)); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("put without a box = %v", err)
	}
	for what, err := range map[string]error{
		"backup": h.Backup(idA),
		"get":    second(h.Get(t.Context(), idA)),
		"sleep":  second(h.Sleep(t.Context(), idA, hostapi.DatabaseSleep{})),
		"log-in": second(h.SetCredentials(t.Context(), idA, app)),
	} {
		if !errors.Is(err, hosterr.ErrNotFound) {
			t.Errorf("%s = %v, want ErrNotFound", what, err)
		}
	}
	g := h.database(t, idA, spec(one))
	h.await(t, idA, "ready", ready)
	if _, err := h.SetCredentials(t.Context(), idA, pgapi.Credentials{Database: "postgres", Username: "app", Password: "x"}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("credentials of a name that is the platform's: %v, want ErrInvalid", err)
	}
	g.stop() // a guest that does not answer
	if _, err := h.Get(t.Context(), idA); !errors.Is(err, hosterr.ErrGuest) {
		t.Errorf("get = %v, want ErrGuest", err)
	}
}

func second[T any](_ T, err error) error { return err }

// restoreOf is a database whose data comes from another's archive.
func restoreOf(from string, target *time.Time) hostapi.DatabaseSpec {
	s := spec(two)
	s.Restore = &hostapi.DatabaseRestore{From: archive(from), TargetTime: target}
	return s
}

// source is an archive that tests restore: of a database with two rows.
var source struct {
	sync.Mutex
	dir     string    // a copy of the bucket
	between time.Time // the two rows
}

// written puts the source's archive into a host's bucket.
func written(t *testing.T, h *host) (between time.Time) {
	t.Helper()
	source.Lock()
	defer source.Unlock()
	if source.dir == "" {
		from := newHost(t)
		g := live(t, from, idA, one)
		g.sql(t, "CREATE TABLE t AS SELECT 1 AS x")
		at, err := time.Parse(time.RFC3339Nano, g.sql(t, "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"))
		must(t, err)
		g.sql(t, "INSERT INTO t VALUES (2)")
		_, err = from.Switch(t.Context(), idA)
		must(t, err)
		from.stop()
		dir, err := os.MkdirTemp("", "berth-archive-")
		must(t, err)
		must(t, os.CopyFS(dir, os.DirFS(from.dir)))
		source.dir, source.between = dir, at
	}
	must(t, os.CopyFS(h.dir, os.DirFS(source.dir)))
	return source.between
}

func TestARestoreToTheEndAndToAMoment(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	between := written(t, h)
	for target, want := range map[*time.Time]string{nil: "2", &between: "1"} {
		s := restoreOf(one, target)
		s.Archive = archive(strings.TrimSuffix(two, "1") + want)
		g := h.database(t, idB, s)
		st := h.await(t, idB, "restored", ready)
		if st.Restore == nil || st.Restore.Phase != pgapi.RestoreDone || st.State != pgapi.StateReady {
			t.Errorf("state = %+v", st)
		}
		if got := g.sql(t, "SELECT count(*) FROM t"); got != want {
			t.Errorf("%s rows, want %s", got, want)
		}
		// From its first byte it is archived under its own name.
		h.await(t, idB, "restorable", restorable)
		h.boxes.remove(idB)
		g.stop()
	}
}

// The daemon is started again at each step; the guest knows how far it was.
func TestARestoreOutlivesTheDaemon(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for what, at := range map[string]string{"the base backup is read": "/base/", "WAL is read": "/wal/"} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			written(t, h)
			reached, proceed := make(chan struct{}), make(chan struct{})
			var once sync.Once
			b := &blocking{faulty: h.bucket, at: at, reached: func() { once.Do(func() { close(reached) }) }, proceed: proceed}
			h.stop()
			h.store = pgarchive.New(b)
			h.start()
			g := h.database(t, idB, restoreOf(one, nil))
			<-reached
			if st := h.State(idB); st == nil || st.Ready || st.Restore == nil || st.Restore.Phase == pgapi.RestoreDone {
				t.Errorf("state = %+v", st)
			}
			if err := h.Backup(idB); !errors.Is(err, hosterr.ErrDatabaseUnready) {
				t.Errorf("backup = %v", err)
			}
			if _, err := h.SetCredentials(t.Context(), idB, app); !errors.Is(err, hosterr.ErrDatabaseUnready) {
				t.Errorf("credentials = %v", err)
			}
			if _, err := h.Sleep(t.Context(), idB, hostapi.DatabaseSleep{}); !errors.Is(err, hosterr.ErrDatabaseUnready) {
				t.Errorf("sleep = %v", err)
			}
			if entries, _ := os.ReadDir(filepath.Join(h.dir, "pg", filepath.FromSlash(two), "wal")); len(entries) > 0 {
				t.Errorf("%d files were archived before the restore was done", len(entries))
			}
			h.stop()
			close(proceed)
			h.start()
			h.await(t, idB, "restored", ready)
			if got := g.sql(t, "SELECT count(*) FROM t"); got != "2" {
				t.Errorf("%s rows, want 2", got)
			}
		})
	}
}

// What is damaged is named, and never restored around.
func TestARestoreOfADamagedArchiveFails(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for what, damage := range map[string]struct{ in, want string }{
		"a part of the base backup": {"base", "/base/"},
		"WAL":                       {"wal", "/wal/0"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			written(t, h)
			var names []string
			must(t, filepath.WalkDir(filepath.Join(h.dir, "pg", filepath.FromSlash(one), damage.in), func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() && !strings.Contains(e.Name(), ".") {
					names = append(names, path)
				}
				return err
			}))
			if damage.in == "wal" {
				names = names[len(names)-1:] // recovery surely needs it
			} // else all: the last base backup may be one that is under way, and used by nothing
			for _, name := range names {
				raw, err := os.ReadFile(name)
				must(t, err)
				raw[len(raw)/2] ^= 1
				must(t, os.WriteFile(name, raw, 0o600))
			}
			h.database(t, idB, restoreOf(one, nil))
			st := h.await(t, idB, "failed", func(st *hostapi.DatabaseState) bool {
				return st.Restore != nil && st.Restore.Phase == pgapi.RestoreFailed
			})
			if st.Ready || !strings.Contains(st.Restore.Error, damage.want) || !strings.Contains(st.Error, damage.want) || st.State != pgapi.StateFailed {
				t.Errorf("state = %+v, restore = %+v", st, st.Restore)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		h := newHost(t)
		h.database(t, idB, restoreOf(one, nil))
		st := h.await(t, idB, "failed", func(st *hostapi.DatabaseState) bool {
			return st.Restore != nil && st.Restore.Phase == pgapi.RestoreFailed
		})
		if st.Ready || st.Error == "" {
			t.Errorf("state = %+v", st)
		}
	})
}

func TestABucketThatIsAwayDelaysARestore(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	written(t, h)
	h.bucket.set(true)
	g := h.database(t, idB, restoreOf(one, nil))
	st := h.await(t, idB, "waiting", func(st *hostapi.DatabaseState) bool { return st.Restore != nil && st.Restore.Error != "" })
	if st.Restore.Phase == pgapi.RestoreFailed || st.Ready || st.Restore.Error != hostapi.ArchiveCauseRefused {
		t.Errorf("restore = %+v", st.Restore)
	}
	h.bucket.set(false)
	h.await(t, idB, "restored", ready)
	if got := g.sql(t, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows, want 2", got)
	}
}

func TestArchivesByTheirNames(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := NewArchives(h.store)
	if _, err := s.Info(t.Context(), hostapi.Archive{Name: "x"}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("info = %v, want ErrInvalid", err)
	}
	if _, err := s.Prune(t.Context(), hostapi.ArchivePrune{}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("prune = %v, want ErrInvalid", err)
	}
	if err := s.Fence(t.Context(), hostapi.Archive{}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("fence = %v, want ErrInvalid", err)
	}
	if err := s.Delete(t.Context(), hostapi.Archive{}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("delete = %v, want ErrInvalid", err)
	}
	info, err := s.Info(t.Context(), archive(one))
	must(t, err)
	if len(info.BaseBackups) != 0 || !info.FirstRestorable.IsZero() {
		t.Errorf("info = %+v", info)
	}
	live(t, h, idA, one)
	info, err = s.Prune(t.Context(), hostapi.ArchivePrune{Archive: archive(one), Before: time.Now()})
	must(t, err)
	if len(info.BaseBackups) != 1 {
		t.Errorf("after a prune: %+v", info)
	}
}

// What is damaged of an archive is told beside what is left of it.
func TestInfoOfADamagedArchive(t *testing.T) {
	tier.Slow(t)
	h := newHost(t)
	written(t, h)
	base := filepath.Join(h.dir, "pg", filepath.FromSlash(one), "backups")
	must(t, filepath.WalkDir(base, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			err = os.Truncate(path, 10)
		}
		return err
	}))
	info, err := NewArchives(h.store).Info(t.Context(), archive(one))
	if err != nil || info.Damage == "" || info.SizeBytes == 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestWhenABaseBackupIsDue(t *testing.T) {
	const seg = lsn(pgapi.SegmentBytes)
	zero := time.Unix(10000, 0)
	made := []hostapi.BaseBackup{{FinishedAt: zero, StopLSN: (3*seg - 100).String()}}
	for what, c := range map[string]struct {
		facts *facts
		now   time.Duration
		want  bool
	}{
		"the archive is not known":      {&facts{served: zero}, time.Hour, false},
		"it has not served":             {&facts{known: true}, time.Hour, false},
		"too early for the first":       {&facts{known: true, served: zero}, 119 * time.Second, false},
		"the first":                     {&facts{known: true, served: zero}, 120 * time.Second, true},
		"the first is not listed yet":   {&facts{known: true, served: zero, made: made[0]}, 3 * time.Minute, false},
		"nothing was written since":     {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, lag: lag{archived: 3 * seg}}, 25 * time.Hour, false},
		"something was":                 {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, lag: lag{archived: 4 * seg}}, 25 * time.Hour, true},
		"something was, a moment ago":   {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, lag: lag{archived: 4 * seg}}, 23 * time.Hour, false},
		"much was":                      {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, lag: lag{archived: 7 * seg}, quota: size{bytes: 16 * int64(seg)}}, time.Hour, true},
		"not as much was":               {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, lag: lag{archived: 6 * seg}, quota: size{bytes: 16 * int64(seg)}}, time.Hour, false},
		"a gap in what is archived":     {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, damaged: zero.Add(time.Minute)}, 2 * time.Minute, true},
		"the gap is older than the one": {&facts{known: true, served: zero, info: hostapi.ArchiveInfo{BaseBackups: made}, damaged: zero.Add(-time.Minute)}, 2 * time.Minute, false},
	} {
		a := &agent{spec: &hostapi.DatabaseSpec{FirstBackupSeconds: 120, BackupIntervalSeconds: 24 * 3600}, db: &database{facts: c.facts}}
		if got := a.due(zero.Add(c.now)); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
