package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
)

func TestWritesFollowTheRoom(t *testing.T) {
	r := Reserve{Limit: 1000, Stop: 400}
	for name, c := range map[string]struct {
		writes string
		is     room
		want   string
	}{
		"much":                           {pgapi.WritesOpen, room{free: 5000}, pgapi.WritesOpen},
		"little":                         {pgapi.WritesOpen, room{free: 999}, pgapi.WritesLimited},
		"next to none":                   {pgapi.WritesOpen, room{free: 399}, pgapi.WritesStopped},
		"a bit more is not enough":       {pgapi.WritesLimited, room{free: 1100}, pgapi.WritesLimited},
		"clearly more":                   {pgapi.WritesLimited, room{free: 1250}, pgapi.WritesOpen},
		"a bit more after a stop":        {pgapi.WritesStopped, room{free: 500}, pgapi.WritesStopped},
		"clearly more after a stop":      {pgapi.WritesStopped, room{free: 600}, pgapi.WritesLimited},
		"much after a stop":              {pgapi.WritesStopped, room{free: 2000}, pgapi.WritesOpen},
		"archived WAL that a stop keeps": {pgapi.WritesStopped, room{free: 300, reclaimable: 3000}, pgapi.WritesOpen},
		"archived WAL that is not freed": {pgapi.WritesOpen, room{free: 300, reclaimable: 3000}, pgapi.WritesStopped},
	} {
		if got, reason := decide(c.writes, r, c.is); got != c.want || (reason == "") != (got == pgapi.WritesOpen) {
			t.Errorf("%s: %s (%s), want %s", name, got, reason, c.want)
		}
	}
	if _, reason := decide(pgapi.WritesOpen, Reserve{Limit: 2 << 30, Stop: 1 << 30}, room{free: 1 << 20, pending: 800 << 20}); !strings.Contains(reason, "800 MB of WAL wait") {
		t.Error(reason)
	}
	if got := (Reserve{}).of(100 << 30); got != (Reserve{2 << 30, 1 << 30, 64 << 20}) {
		t.Errorf("%+v", got)
	}
	if got := (Reserve{}).of(1 << 30); got.Limit >= 1<<30/5 || got.Stop >= got.Limit || got.Ballast >= got.Stop {
		t.Errorf("%+v", got)
	}
}

// volume mounts a file system of a size for a guest's data.
func volume(t *testing.T, mb int) string {
	t.Helper()
	tier.Root(t)
	dir, err := os.MkdirTemp("", "vol")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=755", mb), "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		_ = os.Remove(dir)
	})
	return dir
}

func grow(t *testing.T, dir string, mb int) {
	t.Helper()
	if out, err := exec.Command("mount", "-o", fmt.Sprintf("remount,size=%dm", mb), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return fmt.Sprint(err)
}

func TestABucketThatIsAwayFillsNoVolume(t *testing.T) {
	tier.Slow(t)
	const limit, stop = 400 << 20, 300 << 20
	dir := volume(t, 1000)
	g := start(t, func(c *Config) {
		c.Postgres.Dir, c.Reserve = dir, Reserve{Limit: limit, Stop: stop, Ballast: 40 << 20}
	})
	a := newArchive()
	g.await(t, "ready", ready)
	a.from(t, g)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a (n int, x text)")
	g.switchWAL(t)
	a.setAway(true)
	// The room is looked at each second: who writes on meanwhile may fill the volume.
	g.await(t, "stopped", func(st pgapi.Status) bool {
		v := st.Volume
		if v.Writes == pgapi.WritesOpen && v.FreeBytes >= limit || v.Writes == pgapi.WritesLimited && v.FreeBytes >= stop {
			_, _ = g.sql(t, "BEGIN READ WRITE; INSERT INTO a VALUES (1, 'x'); SELECT count(pg_logical_emit_message(false, 'a', repeat('x', 100000))) FROM generate_series(1, 100); COMMIT")
		}
		return v.Writes == pgapi.WritesStopped
	})
	st := g.await(t, "read-only", func(st pgapi.Status) bool { return st.Server != nil && st.Server.InRecovery })
	if st.Ready || st.Volume.FreeBytes < 16<<20 || !strings.Contains(st.Volume.Reason, "of WAL wait for the archive") || st.Archive.Pending == 0 {
		t.Errorf("%+v %+v", st.Volume, st.Archive)
	}
	if _, err := g.sql(t, "BEGIN READ WRITE; DELETE FROM a"); sqlState(err) != "25006" && sqlState(err) != "0A000" {
		t.Errorf("a write: %v", err)
	}
	timeline := st.Server.Timeline
	a.setAway(false)
	st = g.await(t, "open", func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesOpen && st.Ready })
	if st.Server.Timeline != timeline {
		t.Errorf("timeline %d became %d", timeline, st.Server.Timeline)
	}
	g.must(t, "INSERT INTO a VALUES (2)")
}

func TestATenantWhoFillsTheVolume(t *testing.T) {
	tier.Slow(t)
	dir := volume(t, 500)
	g := start(t, func(c *Config) {
		c.Postgres.Dir, c.Reserve = dir, Reserve{Limit: 120 << 20, Stop: 60 << 20, Ballast: 40 << 20}
	})
	a := newArchive()
	g.await(t, "ready", ready)
	a.from(t, g)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a (x text STORAGE external)")
	g.await(t, "a reserve", func(pgapi.Status) bool { _, err := os.Stat(filepath.Join(dir, "ballast")); return err == nil })
	limited := false
	for range 400 {
		// As one who insists.
		_, err := g.sql(t, "BEGIN READ WRITE; INSERT INTO a SELECT repeat(md5(g::text), 250) FROM generate_series(1, 500) g; COMMIT")
		st, errStatus := g.Status(pgtest.Context(t))
		limited = limited || errStatus == nil && st.Volume.Writes == pgapi.WritesLimited
		if err != nil && errStatus == nil && st.Volume.Writes == pgapi.WritesStopped {
			break
		}
	}
	st := g.await(t, "stopped, and readable", func(st pgapi.Status) bool {
		return st.Volume.Writes == pgapi.WritesStopped && st.Server != nil && st.Server.InRecovery
	})
	if g.must(t, "SELECT count(*) > 0 FROM a") != "t" {
		t.Error("what was written cannot be read")
	}
	t.Logf("limited before: %t; %+v", limited, st.Volume)
	grow(t, dir, 1500)
	g.await(t, "open", func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesOpen && st.Ready })
	g.must(t, "INSERT INTO a VALUES ('more')")
}

// Who is refused for want of room makes some: deletes rows, by saying that the transaction
// is to write, and vacuums. Nobody else has to do anything, and no session is cut.
func TestRoomIsMadeByDeletingRows(t *testing.T) {
	tier.Slow(t)
	const limit = 250 << 20
	dir := volume(t, 600)
	g := start(t, func(c *Config) {
		c.Postgres.Dir, c.Reserve = dir, Reserve{Limit: limit, Stop: 60 << 20, Ballast: 8 << 20}
	})
	a := newArchive()
	g.await(t, "ready", ready)
	a.from(t, g)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a (x text STORAGE external)")
	const insert = "INSERT INTO a SELECT repeat(md5(g::text), 250) FROM generate_series(1, 500) g"
	// The room is looked at each second: who writes on meanwhile may bring a stop about. What
	// is archived may make some, so that it has to be filled again.
	g.await(t, "refused", func(st pgapi.Status) bool {
		write := insert
		switch {
		case st.Volume.Writes == pgapi.WritesStopped:
			t.Fatalf("writes are stopped: %+v", st.Volume)
		case st.Volume.Writes == pgapi.WritesLimited:
			write = "INSERT INTO a VALUES ('x')"
		case st.Volume.FreeBytes < limit:
			return false
		}
		_, err := g.sql(t, write)
		if err != nil && sqlState(err) != "25006" {
			t.Fatalf("it is refused with %v", err)
		}
		return err != nil && st.Volume.Writes == pgapi.WritesLimited && st.Ready
	})
	if g.must(t, "SELECT count(*) > 0 FROM a") != "t" {
		t.Error("what was written cannot be read")
	}
	g.must(t, "BEGIN READ WRITE; DELETE FROM a; COMMIT")
	g.must(t, "VACUUM a")
	g.await(t, "open", func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesOpen && st.Ready })
	g.must(t, insert)
}

func TestAnEndForWantOfRoomIsSurvived(t *testing.T) {
	tier.Slow(t)
	dir := volume(t, 500)
	g := start(t, func(c *Config) {
		c.Postgres.Dir, c.Reserve = dir, Reserve{Limit: 200 << 20, Stop: 1, Ballast: 80 << 20} // it is not stopped in time
	})
	g.await(t, "ready", ready)
	g.credentials(t, app)
	g.must(t, "CREATE TABLE a AS SELECT 1 AS n")
	g.await(t, "a reserve", func(pgapi.Status) bool { _, err := os.Stat(filepath.Join(dir, "ballast")); return err == nil })
	// Nobody archives: WAL fills all there is, and PostgreSQL ends.
	for range 400 {
		_, _ = g.sql(t, "BEGIN READ WRITE; CREATE TEMP TABLE IF NOT EXISTS b (x text); SELECT count(pg_logical_emit_message(false, 'a', repeat('x', 100000))) FROM generate_series(1, 150); COMMIT")
		if st, err := g.Status(pgtest.Context(t)); err == nil && (st.Restarts > 0 || st.Volume.Writes == pgapi.WritesStopped) {
			break
		}
	}
	// What the ballast left is more than the bound of a stop, which is next to nothing
	// here: it may be limited by the time that this looks.
	g.await(t, "readable", func(st pgapi.Status) bool {
		got, err := g.sql(t, "SELECT n FROM a")
		return err == nil && got == "1" && st.Volume.Writes != pgapi.WritesOpen
	})
	grow(t, dir, 2000)
	a := newArchive()
	a.from(t, g)
	g.await(t, "open", func(st pgapi.Status) bool { return st.Volume.Writes == pgapi.WritesOpen && st.Ready })
	g.must(t, "INSERT INTO a VALUES (2)")
}
