package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	lagTime    = 150 * time.Second // longer than two intervals of the archive
	lagClients = 4

	// cloneMB is what is cloned. A disk on a file system that does not share blocks is
	// copied up to 1 GB, with the WAL and what else is on it.
	cloneMB = 512

	archivingRounds = "6x"
)

// archiveEnv is so that nothing waits for a first base backup, and a clone can be of any
// moment that is archived. How far the archive may trail is as by default.
var archiveEnv = []string{"BERTH_DB_FIRST_BACKUP=5s", "BERTH_DB_TARGET_TIME_MIN_AGE=0s"}

// measureArchives measures what an archive costs, how far it trails, and what it is for.
func measureArchives(ctx context.Context, b *bench) error {
	if err := measureArchiving(ctx, b); err != nil {
		return err
	}
	db, err := b.createDatabase(ctx, true)
	if err != nil {
		return err
	}
	cfg, err := b.s.DatabaseConfig(db)
	if err != nil {
		return err
	}
	if err := fillDatabase(ctx, cfg); err != nil {
		return err
	}
	if err := b.archivedSince(ctx, db.ID, time.Now()); err != nil {
		return err
	}
	if err := b.measureLag(ctx, db.ID, cfg); err != nil {
		return err
	}
	if err := b.measureClones(ctx, db.ID, cfg); err != nil {
		return err
	}
	if err := b.measureLostHost(ctx, db.ID); err != nil {
		return err
	}
	return b.c.DeleteDatabase(ctx, db.ID)
}

// archivedSince waits until everything up to a moment can be restored.
func (b *bench) archivedSince(ctx context.Context, id string, moment time.Time) error {
	return stack.Await(ctx, databaseWithin, time.Second, "the archive of database "+id+" is up to date", func(ctx context.Context) error {
		a, err := b.c.GetDatabaseArchive(ctx, id)
		if err == nil && (a.LastRestorable == nil || a.LastRestorable.Before(moment)) {
			err = fmt.Errorf("it reaches %v", a.LastRestorable)
		}
		return err
	})
}

// measureLag looks at how far the archive trails, while nobody writes and while clients do.
func (b *bench) measureLag(ctx context.Context, id string, cfg *pgx.ConnConfig) error {
	progress("archive lag, %s idle and %s under TPC-B with %d clients", lagTime, lagTime, lagClients)
	for name, busy := range map[string]bool{"archive_lag_idle": false, "archive_lag_busy": true} {
		var lags []time.Duration
		group, gctx := errgroup.WithContext(ctx)
		began := time.Now()
		if busy {
			group.Go(func() error {
				for time.Since(began) < lagTime {
					if _, err := transact(gctx, cfg, lagClients, tpcb); err != nil {
						return err
					}
				}
				return nil
			})
		}
		group.Go(func() error {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for time.Since(began) < lagTime {
				a, err := b.c.GetDatabaseArchive(gctx, id)
				if err != nil {
					return err
				}
				lags = append(lags, time.Duration(a.LagSeconds*float64(time.Second)))
				select {
				case <-tick.C:
				case <-gctx.Done():
					return gctx.Err()
				}
			}
			return nil
		})
		if err := group.Wait(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.r.add(name+"_p50", quantile(lags, 0.5).Seconds(), "s")
		b.r.want(name+"_max", slices.Max(lags).Seconds(), "s", atMost, 60)
	}
	return nil
}

// measureClones clones a database by a copy of its disk, and from its archive.
func (b *bench) measureClones(ctx context.Context, id string, cfg *pgx.ConnConfig) error {
	progress("a database of %d MB is written and cloned both ways", cloneMB)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE TABLE bulk (x text STORAGE external)"); err != nil {
		return err
	}
	for range cloneMB / 16 { // each adds 16 MB
		if _, err := conn.Exec(ctx, "INSERT INTO bulk SELECT repeat(md5(g::text), 256) FROM generate_series(1, 2000) g"); err != nil {
			return err
		}
	}
	if err := b.archivedSince(ctx, id, time.Now()); err != nil {
		return err
	}
	moment := time.Now().UTC().Add(-time.Second).Format(time.RFC3339Nano)
	for _, way := range []struct {
		name string
		in   api.CloneDatabase
		boot hostapi.Boot
	}{
		{"database_clone_by_copy", api.CloneDatabase{}, hostapi.BootCold},
		{"database_clone_from_archive", api.CloneDatabase{TargetTime: &moment}, hostapi.BootRestore},
	} {
		began := time.Now()
		clone, err := b.c.CloneDatabase(ctx, id, way.in, rand.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		if clone, err = b.awaitDatabase(ctx, clone.ID, api.DatabaseRunning); err == nil {
			err = b.firstQuery(ctx, clone)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		took := time.Since(began)
		box, _, err := b.boxOf(ctx, clone.ID)
		switch {
		case err != nil:
			return err
		case box.Boot == way.boot:
			b.r.add(way.name, took.Seconds(), "s")
		default: // its disk was too large to copy, or its host had no room
			b.r.note(way.name, "it was made in the other way")
		}
		if err := b.c.DeleteDatabase(ctx, clone.ID); err != nil {
			return err
		}
	}
	return nil
}

// measureLostHost kills everything of a database's host, and fails the database over once
// the loss is known.
func (b *bench) measureLostHost(ctx context.Context, id string) (err error) {
	progress("the loss of a host, and a failover")
	if err := b.archivedSince(ctx, id, time.Now()); err != nil {
		return err
	}
	_, hostID, err := b.boxOf(ctx, id)
	if err != nil {
		return err
	}
	lost := time.Now()
	if err := b.s.KillHost(hostID); err != nil {
		return err
	}
	defer func() {
		if serr := b.s.Process(hostID).Start(); serr != nil {
			err = errors.Join(err, serr)
			return
		}
		err = errors.Join(err, b.s.WaitHealthy(ctx))
	}()
	if _, err := b.awaitDatabase(ctx, id, api.DatabaseFailed); err != nil {
		return err
	}
	known := time.Now()
	b.r.add("database_host_lost_to_failed", known.Sub(lost).Seconds(), "s")
	if _, err := b.c.FailoverDatabase(ctx, id, api.FailoverDatabase{}); err != nil {
		return err
	}
	db, err := b.awaitDatabase(ctx, id, api.DatabaseRunning)
	if err != nil {
		return err
	}
	if err := b.firstQuery(ctx, db); err != nil {
		return err
	}
	b.r.want("database_failed_to_failed_over", time.Since(known).Seconds(), "s", atMost, 30)
	return nil
}

// measureArchiving measures what archiving costs PostgreSQL on this machine, without guests.
func measureArchiving(ctx context.Context, b *bench) error {
	progress("pgbench's TPC-B at PostgreSQL with and without an archive, in turns")
	found, err := goBenchmark(ctx, b.s.Root, "./hostd/pgarchive", "TPCB", archivingRounds)
	if err != nil {
		return err
	}
	for _, m := range found {
		with, without := m.values["tps"], m.values["unarchived-tps"]
		if with == 0 || without == 0 {
			return fmt.Errorf("%s has only %v", m.name, m.values)
		}
		b.r.add("pgbench_tpcb_archived", with, "1/s")
		b.r.add("pgbench_tpcb_unarchived", without, "1/s")
		b.r.want("archiving_cost", 100*(1-with/without), "%", atMost, 5)
	}
	return nil
}
