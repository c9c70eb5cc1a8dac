package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	databaseCreates = 5
	databaseWakes   = 15
	databaseRounds  = 6
	databaseTurn    = 2 * time.Second // of one path in one round
	databaseRows    = 10_000
	routerRounds    = "6x"

	databaseWithin = 15 * time.Minute // the first create builds the template
)

// databaseIdle puts databases to sleep at once.
const databaseIdle = "BERTH_DB_IDLE=2s"

// measureDatabases measures what a client of a database waits for, and the router
// beside a connection to PostgreSQL from its host's side of the slot.
func measureDatabases(ctx context.Context, b *bench) error {
	progress("%d creates of a database, each to its first query", databaseCreates)
	var all samples
	var last *api.Database
	for i := range databaseCreates + 1 {
		began := time.Now()
		db, err := b.createDatabase(ctx, false)
		if err != nil {
			return err
		}
		if err := b.firstQuery(ctx, db); err != nil {
			return err
		}
		if i > 0 { // the first may have built the template
			all.add("database_create_to_first_query", time.Since(began))
		}
		if last != nil {
			if err := b.c.DeleteDatabase(ctx, last.ID); err != nil {
				return err
			}
		}
		last = db
	}
	progress("%d wakes of a database by a connection", databaseWakes)
	for i := range databaseWakes {
		if _, err := b.awaitDatabase(ctx, last.ID, api.DatabaseHibernated); err != nil {
			return err
		}
		if i == 0 {
			asleep, err := b.databasePSS(ctx, last.ID)
			if err != nil {
				return err
			}
			b.r.want("database_asleep_pss", asleep, "MB", atMost, 0)
		}
		err := all.timed("database_wake_to_first_query", func() error { return b.firstQuery(ctx, last) })
		if err != nil {
			return err
		}
	}
	all.report(b.r)
	b.r.want("database_create_to_first_query", all.p50("database_create_to_first_query").Seconds(), "s", atMost, 5)
	b.r.want("database_wake_to_first_query", ms(all.p50("database_wake_to_first_query")), "ms", atMost, 500)
	if err := b.c.DeleteDatabase(ctx, last.ID); err != nil {
		return err
	}
	if err := b.measureRouter(ctx); err != nil {
		return err
	}
	return measureRouterAlone(ctx, b)
}

// databasePSS is the memory of a database's VMM, in MB; 0 if it has none.
func (b *bench) databasePSS(ctx context.Context, id string) (float64, error) {
	box, _, err := b.boxOf(ctx, id)
	if err != nil || box.VMMPID == 0 {
		return 0, err
	}
	f, err := footprintOfTree(box.VMMPID)
	return float64(f.pss) / 1024, err
}

// measureRouterAlone compares transactions by the router, directly and by pgbouncer, all
// with TLS, at PostgreSQL on this machine: no emulated guest takes part.
func measureRouterAlone(ctx context.Context, b *bench) error {
	progress("pgbench -S by the router, directly and by pgbouncer, in turns")
	found, err := goBenchmark(ctx, b.s.Root, "./netfab/pgsni", "Pgbench", routerRounds)
	if err != nil {
		return err
	}
	for _, m := range found {
		_, clients, _ := strings.Cut(m.name, "/")
		router, direct, bouncer := m.values["tps"], m.values["direct-tps"], m.values["pgbouncer-tps"]
		if router == 0 || direct == 0 {
			return fmt.Errorf("%s has only %v", m.name, m.values)
		}
		name := "pgbench_select_" + clients
		b.r.add(name, router, "1/s")
		b.r.add(name+"_direct", direct, "1/s")
		b.r.want(name+"_share", 100*router/direct, "%", atLeast, 90)
		switch {
		case bouncer == 0:
			b.r.note(name+"_pgbouncer", "there is no pgbouncer: scripts/install-deps bench")
		case clients == "64_clients":
			b.r.add(name+"_pgbouncer", bouncer, "1/s")
			b.r.want(name+"_over_pgbouncer", router/bouncer, "times", atLeast, 1)
		default:
			b.r.add(name+"_pgbouncer", bouncer, "1/s")
		}
	}
	return nil
}

// measureRouter compares transactions by the router, with TLS, and without either.
func (b *bench) measureRouter(ctx context.Context) error {
	db, err := b.createDatabase(ctx, true)
	if err != nil {
		return err
	}
	box, hostID, err := b.boxOf(ctx, db.ID)
	if err != nil {
		return err
	}
	fabric, err := slotsOf(hostID)
	if err != nil {
		return err
	}
	defer fabric.Close()
	routed, err := b.s.DatabaseConfig(db)
	if err != nil {
		return err
	}
	direct := routed.Copy()
	direct.TLSConfig = nil
	direct.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return fabric.Dial(ctx, box.Slot, pgapi.PostgresPort)
	}
	if err := fillDatabase(ctx, direct); err != nil {
		return err
	}
	awake, err := b.databasePSS(ctx, db.ID)
	if err != nil {
		return err
	}
	b.r.add("database_awake_pss", awake, "MB")
	for _, work := range []struct {
		name string
		do   func(ctx context.Context, c *pgx.Conn) error
	}{{"select", selectOne}, {"tpcb", tpcb}} {
		for _, clients := range []int{1, 8, 64} {
			progress("%s with %d clients, by the router and directly, in turns", work.name, clients)
			rates := map[bool]float64{}
			for round := range databaseRounds {
				turns := []bool{true, false}
				if round%2 == 1 {
					slices.Reverse(turns)
				}
				for _, by := range turns {
					cfg := direct
					if by {
						cfg = routed
					}
					n, err := transact(ctx, cfg, clients, work.do)
					if err != nil {
						return fmt.Errorf("%s with %d clients: %w", work.name, clients, err)
					}
					rates[by] += n / databaseRounds
				}
			}
			name := fmt.Sprintf("router_%s_%d_clients", work.name, clients)
			b.r.add(name, rates[true], "1/s")
			b.r.add(name+"_direct", rates[false], "1/s")
			b.r.want(name+"_share", 100*rates[true]/rates[false], "%", atLeast, 90)
		}
	}
	return b.c.DeleteDatabase(ctx, db.ID)
}

func (b *bench) createDatabase(ctx context.Context, alwaysOn bool) (*api.Database, error) {
	db, err := b.c.CreateDatabase(ctx, api.CreateDatabase{AlwaysOn: alwaysOn}, rand.Text())
	if err != nil {
		return nil, err
	}
	return b.awaitDatabase(ctx, db.ID, api.DatabaseRunning)
}

func (b *bench) awaitDatabase(ctx context.Context, id string, want api.DatabaseStatus) (*api.Database, error) {
	return stack.AwaitDatabase(ctx, b.c, id, want, databaseWithin)
}

func (b *bench) firstQuery(ctx context.Context, db *api.Database) error {
	cfg, err := b.s.DatabaseConfig(db)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "SELECT 1")
	return err
}

func fillDatabase(ctx context.Context, cfg *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{
		"CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)",
		"CREATE TABLE tellers (id int PRIMARY KEY, balance int NOT NULL)",
		"CREATE TABLE history (account int, teller int, delta int, at timestamptz)",
		fmt.Sprintf("INSERT INTO accounts SELECT g, 0 FROM generate_series(1, %d) g", databaseRows),
		"INSERT INTO tellers SELECT g, 0 FROM generate_series(1, 1000) g",
		"ANALYZE",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

func selectOne(ctx context.Context, c *pgx.Conn) error {
	var balance int
	return c.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = $1", anyOf(databaseRows)).Scan(&balance)
}

// anyOf is a number from 1 to n.
func anyOf(n int) int { return 1 + mathrand.IntN(n) } //nolint:gosec // which row it is does not matter

// tpcb is like pgbench's transaction of that name, on a smaller schema.
func tpcb(ctx context.Context, c *pgx.Conn) error {
	account, teller, delta := anyOf(databaseRows), anyOf(1000), anyOf(100)
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		var balance int
		for _, sql := range []struct {
			text string
			args []any
		}{
			{"UPDATE accounts SET balance = balance + $2 WHERE id = $1", []any{account, delta}},
			{"UPDATE tellers SET balance = balance + $2 WHERE id = $1", []any{teller, delta}},
			{"INSERT INTO history VALUES ($1, $2, $3, now())", []any{account, teller, delta}},
		} {
			if _, err := tx.Exec(ctx, sql.text, sql.args...); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&balance)
	})
}

// transact has clients do transactions for a turn, and returns how many a second.
func transact(ctx context.Context, cfg *pgx.ConnConfig, clients int, do func(ctx context.Context, c *pgx.Conn) error) (float64, error) {
	conns := make([]*pgx.Conn, clients)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close(context.WithoutCancel(ctx)) // the next turn has its own
			}
		}
	}()
	var dialling errgroup.Group
	dialling.SetLimit(8)
	for i := range conns {
		dialling.Go(func() (err error) {
			if conns[i], err = pgx.ConnectConfig(ctx, cfg.Copy()); err == nil {
				err = do(ctx, conns[i]) // prepares the statements
			}
			return err
		})
	}
	if err := dialling.Wait(); err != nil {
		return 0, err
	}
	var done atomic.Int64
	began := time.Now()
	var group errgroup.Group
	for _, c := range conns {
		group.Go(func() error {
			for time.Since(began) < databaseTurn {
				if err := do(ctx, c); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), err
}
