package agent

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
)

// copyOf starts a guest on a copy of another one's disk, which stands still.
func copyOf(t *testing.T, g *guest, change ...func(*Config)) *guest {
	t.Helper()
	c := start(t, change...)
	c.stop()
	if err := os.RemoveAll(c.cfg.Postgres.Dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", g.cfg.Postgres.Dir, c.cfg.Postgres.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.cfg.Postgres.Program = g.cfg.Postgres.Program
	c.run(t)
	return c
}

func (a *archive) names() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A copy of a disk goes on as a database of its own, which can be restored by what it
// archives alone, although it is on the timeline of the one that it is a copy of.
func TestACopyOfADiskBecomesADatabaseOfItsOwn(t *testing.T) {
	tier.Slow(t)
	ctx := pgtest.Context(t)
	first := start(t)
	first.await(t, "ready", ready)
	olds := newArchive()
	olds.from(t, first)
	first.credentials(t, app)
	base := first.backup(t)
	first.switchWAL(t)
	first.stop()
	source := start(t)
	olds.to(t, source)
	restored(t, source, base, nil) // on timeline 2
	source.credentials(t, app)
	source.must(t, "CREATE TABLE a AS SELECT 1 AS n; INSERT INTO a VALUES (2)")
	left, err := source.Switch(ctx, time.Second)
	if err != nil || len(left.Pending) < 2 { // the segment, and the timeline's history
		t.Fatalf("%+v is left to be archived, %v", left, err)
	}
	source.must(t, "INSERT INTO a VALUES (3)")
	// As a power cut leaves it: no checkpoint has what was written last.
	if err := source.Stop(ctx, pgapi.Stop{Immediate: true}); err != nil {
		t.Fatal(err)
	}
	source.stop()

	g := copyOf(t, source)
	st := g.await(t, "ready", ready)
	if st.Restore == nil || st.Restore.Phase != pgapi.RestoreDone || st.Restore.As != "" || st.Archive.Pending == 0 {
		t.Errorf("%+v %+v", st.Restore, st.Archive)
	}
	for range 2 { // the second finds it done
		if err := g.Adopt(ctx, "clone/1"); err != nil {
			t.Fatal(err)
		}
	}
	own := newArchive()
	own.from(t, g)
	g.credentials(t, pgapi.Credentials{Database: "app", Username: "app", Password: "another-password-2"})
	if _, err := g.sql(t, "SELECT 1"); err == nil {
		t.Error("the other database's password works")
	}
	g.credentials(t, app)
	g.must(t, "INSERT INTO a VALUES (4)")
	base = g.backup(t)
	g.must(t, "INSERT INTO a VALUES (5)")
	g.switchWAL(t)
	g.await(t, "archived", func(st pgapi.Status) bool { return st.Archive.Pending == 0 })
	names := own.names()
	if !slices.Contains(names, "00000002.history") {
		t.Errorf("no history of its timeline in %q", names)
	}
	for _, name := range left.Pending {
		if !strings.HasSuffix(name, ".history") && slices.Contains(names, name) {
			t.Errorf("%s is archived, which is the other database's", name)
		}
	}
	// It knows whose it is when it is started again.
	g.stop()
	g.run(t)
	if st := g.await(t, "ready", ready); st.Restore == nil || st.Restore.As != "clone/1" {
		t.Errorf("%+v", st.Restore)
	}
	g.stop()

	next := start(t)
	own.to(t, next)
	restored(t, next, base, nil)
	next.credentials(t, app)
	if got := next.must(t, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM a"); got != "1 2 3 4 5" {
		t.Errorf("rows %s", got)
	}
}

// Where the disk has no room, PostgreSQL is a standby. The copy is adopted all the same, gets
// its credentials, and then takes no writes, as the one that it is a copy of.
func TestACopyOfAFullDiskIsAdopted(t *testing.T) {
	tier.Slow(t)
	source := start(t)
	source.await(t, "ready", ready)
	source.credentials(t, app)
	source.must(t, "CREATE TABLE a AS SELECT 1 AS n")
	source.stop()
	g := copyOf(t, source, func(c *Config) { c.Reserve = Reserve{Limit: 1 << 60, Stop: 1 << 59, Ballast: 1} })
	stopped := func(st pgapi.Status) bool {
		return st.Volume.Writes == pgapi.WritesStopped && st.Server != nil && st.Server.InRecovery
	}
	g.await(t, "stopped", stopped)
	if err := g.Adopt(pgtest.Context(t), "clone/1"); err != nil {
		t.Fatal(err)
	}
	g.await(t, "ready", ready)
	g.credentials(t, app)
	g.await(t, "stopped again", stopped)
	if got := g.must(t, "SELECT n FROM a"); got != "1" {
		t.Errorf("row %s", got)
	}
}

func TestWhatIsNotAdopted(t *testing.T) {
	ctx := pgtest.Context(t)
	g := start(t)
	g.await(t, "ready", ready)
	if err := g.Stop(ctx, pgapi.Stop{}); err != nil {
		t.Fatal(err)
	}
	if err := g.Adopt(ctx, "clone/1"); !pgapi.HasCode(err, pgapi.CodeNotReady) {
		t.Errorf("without PostgreSQL: %v", err)
	}
	for name, as := range map[string]string{"no name": "", "a long name": strings.Repeat("x", pgapi.MaxAs+1)} {
		if err := g.Adopt(ctx, as); !pgapi.HasCode(err, pgapi.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := g.Status(ctx); err != nil || st.Restore != nil {
		t.Errorf("%+v, %v", st.Restore, err)
	}
}
