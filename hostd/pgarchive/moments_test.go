package pgarchive

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
)

// committed is a row, and the time of its commit as the WAL has it.
type committed struct {
	n  string
	at time.Time
}

// commits reads the WAL of a guest: its rows in the order of their commits.
func (g *guest) commits(t *testing.T, since string) (all []committed) {
	t.Helper()
	ctx := pgtest.Context(t)
	cfg, err := g.cfg.Postgres.Local(postgres.Superuser, "app")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=%s dbname=app sslmode=disable", cfg.Host, cfg.Port, cfg.User))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_walinspect SCHEMA pg_catalog"); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, `SELECT a.n::text, w.description
		FROM pg_get_wal_records_info($1, pg_current_wal_flush_lsn()) w JOIN a ON a.xmin::text = w.xid::text
		WHERE w.resource_manager = 'Transaction' AND w.record_type LIKE 'COMMIT%' ORDER BY w.start_lsn`, since)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var c committed
		var said string
		if err := rows.Scan(&c.n, &said); err != nil {
			t.Fatal(err)
		}
		when, _, _ := strings.Cut(said, ";")
		if c.at, err = time.Parse("2006-01-02 15:04:05.999999-07", when); err != nil {
			t.Fatalf("of %q: %v", said, err)
		}
		all = append(all, c)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// until are the rows that were committed up to a moment, sorted. Commits of the same
// microseconds may be in the WAL in another order than that of their times: recovery ends
// at the first that is later.
func until(all []committed, moment time.Time) string {
	var rows []string
	for _, c := range all {
		if c.at.After(moment) {
			break
		}
		rows = append(rows, c.n)
	}
	slices.Sort(rows)
	return strings.Join(rows, " ")
}

// Restored to a moment, a database has exactly the rows that were committed until then:
// at random moments, exactly at a commit, just before one, and in a time in which nothing
// was committed.
func TestRestoresToRandomMoments(t *testing.T) {
	tier.Slow(t)
	pgtest.Bin(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b, _ := directory(t)
	a := open(t, New(b), first, key)
	source := startGuest(t)
	source.await(t, "ready", func(st pgapi.Status) bool { return st.Ready })
	archives(t, source, a)
	source.credentials(t)
	source.sql(t, "CREATE TABLE a (n int)")
	_, err := a.PutBackup(pgtest.Context(t), "base-1", time.Now(), func(w io.Writer) (pgapi.BackupInfo, error) {
		return source.Backup(pgtest.Context(t), pgapi.Backup{Label: "base-1"}, w)
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []committed
	for segment := range 3 {
		since := source.sql(t, "SELECT pg_current_wal_flush_lsn()")
		var writers sync.WaitGroup
		for writer := range 3 {
			pauses := fmt.Sprintf("%.3f", 0.02+0.1*random.Float64())
			writers.Go(func() {
				source.sql(t, fmt.Sprintf("DO $$ BEGIN FOR i IN 0..9 LOOP INSERT INTO a VALUES (%d + i); COMMIT; PERFORM pg_sleep(%s * random()); END LOOP; END $$", 1000*segment+100*writer, pauses))
			})
		}
		writers.Wait()
		all = append(all, source.commits(t, since)...) // as long as the segment is there
		source.sql(t, "SELECT pg_sleep(0.5)")          // nobody commits
		source.switchWAL(t)
	}
	if len(all) != 90 {
		t.Fatalf("%d commits", len(all))
	}
	source.stop()
	from, to := all[0].at, all[len(all)-1].at
	moments := map[string]time.Time{
		"at a commit":          all[random.IntN(len(all))].at,
		"just before a commit": all[1+random.IntN(len(all)-1)].at.Add(-time.Microsecond),
		"while nobody commits": all[29].at.Add(200 * time.Millisecond),
		"before the first":     from.Add(-time.Microsecond),
		"after the last":       to.Add(100 * time.Millisecond),
		"a minute later":       to.Add(time.Minute), // the archive has no WAL of it
	}
	for i := range 4 {
		moments[fmt.Sprint("at random ", i)] = from.Add(time.Duration(random.Int64N(int64(to.Sub(from))))).Truncate(time.Microsecond)
	}
	for name, moment := range moments {
		t.Run(name, func(t *testing.T) {
			g, st := restore(t, a, &moment)
			if !st.Ready {
				t.Fatalf("seed %d: %+v %+v", seed, st, st.Restore)
			}
			g.credentials(t)
			got := strings.Fields(g.sql(t, "SELECT coalesce(string_agg(n::text, ' '), '') FROM a"))
			slices.Sort(got)
			if want := until(all, moment); strings.Join(got, " ") != want {
				t.Errorf("seed %d: at %s it has %q, want %q", seed, moment.Format(time.RFC3339Nano), got, want)
			}
			g.stop()
		})
	}
}
