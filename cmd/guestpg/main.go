// Command guestpg is Berth's program beside PostgreSQL in a database's guest: it
// keeps the server running, archives its WAL, restores it, and runs SQL for the
// broker. The host tells it what to do.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/pg/agent"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pg/tune"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
)

var version = "dev"

const usage = `guestpg is Berth's program beside PostgreSQL in a database's guest.

  guestpg serve [flags]                    keep PostgreSQL, and answer the host
  guestpg init [flags]                     make PostgreSQL's data where there is none
  guestpg warm [flags]                     wait until PostgreSQL serves, and warm it
  guestpg archive -socket S PATH NAME      PostgreSQL's archive_command
  guestpg restore -socket S NAME PATH      PostgreSQL's restore_command
  guestpg version                          print the version
`

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	var err error
	switch mode {
	case "archive", "restore":
		os.Exit(wal.Command(os.Args[1:], os.Stderr))
	case "serve":
		err = run(log, os.Args[2:], serve)
	case "init":
		err = run(log, os.Args[2:], func(ctx context.Context, cfg agent.Config) error { return postgres.Init(ctx, cfg.Postgres) })
	case "warm":
		err = run(log, os.Args[2:], warm)
	case "version", "--version":
		fmt.Printf("guestpg %s\n", version)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		log.Error("guestpg ends", "mode", mode, "error", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger, args []string, what func(context.Context, agent.Config) error) error {
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	cfg.Log, cfg.Postgres.Log, cfg.Postgres.Output = log, log, os.Stderr
	if cfg.Postgres.Program, err = os.Executable(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return what(ctx, cfg)
}

func parse(args []string) (agent.Config, error) {
	cfg := agent.Config{Version: version, Settings: tune.Default}
	flags := flag.NewFlagSet("guestpg", flag.ContinueOnError)
	addrPort := func(to *netip.AddrPort, name, value, usage string) {
		*to = netip.MustParseAddrPort(value)
		flags.TextVar(to, name, *to, usage)
	}
	var database netip.AddrPort
	addrPort(&cfg.Listen, "listen", fmt.Sprintf("198.18.0.2:%d", pgapi.Port), "where the host is answered")
	addrPort(&database, "postgres", fmt.Sprintf("198.18.0.2:%d", pgapi.PostgresPort), "where PostgreSQL listens")
	gateway := flags.String("gateway", "198.18.0.1", "the only address that is answered")
	flags.StringVar(&cfg.Postgres.Bin, "bin", "/usr/lib/postgresql/16/bin", "directory of PostgreSQL's programs")
	flags.StringVar(&cfg.Postgres.Dir, "dir", "/var/lib/berth/postgres", "directory on the database's volume")
	flags.StringVar(&cfg.Postgres.Run, "run", "/run/postgresql", "directory of the local sockets")
	flags.StringVar(&cfg.Postgres.User, "user", "postgres", "whom PostgreSQL runs as")
	flags.IntVar(&cfg.Settings.MemoryMB, "memory-mb", tune.Default.MemoryMB, "memory that PostgreSQL is tuned to until the host says otherwise")
	flags.Int64Var(&cfg.Reserve.Limit, "limit-writes", 0, "free bytes below which writes are limited; 0: by the volume's size")
	flags.Int64Var(&cfg.Reserve.Stop, "stop-writes", 0, "free bytes below which writes are stopped; 0: by the volume's size")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if flags.NArg() > 0 {
		return cfg, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	peer, err := netip.ParseAddr(*gateway)
	if err != nil {
		return cfg, err
	}
	cfg.Peer, cfg.Postgres.Gateway = peer, peer
	cfg.Postgres.Listen, cfg.Postgres.Port = database.Addr(), database.Port()
	return cfg, nil
}

func serve(ctx context.Context, cfg agent.Config) error {
	// Sessions are what the kernel may kill for want of memory, not what keeps them;
	// PostgreSQL's first process inherits it.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		cfg.Log.Warn("not protected from the kernel's killer", "error", err)
	}
	if err := makeRun(cfg.Postgres); err != nil {
		return err
	}
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// makeRun makes the directory of the sockets, which belongs to PostgreSQL.
func makeRun(c postgres.Config) error {
	if err := os.MkdirAll(c.Run, 0o755); err != nil {
		return err
	}
	cred, err := c.Credential()
	if err != nil || cred == nil {
		return err
	}
	return os.Chown(c.Run, int(cred.Uid), int(cred.Gid))
}

// warmUp is what a database's first minutes need: its code and catalogs are then in
// the memory that is stored.
var warmUp = []string{
	"SELECT count(*) FROM pg_stat_activity", "SELECT count(*) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid",
	"CREATE TEMP TABLE warm (id int PRIMARY KEY, t text)", "INSERT INTO warm SELECT g, md5(g::text) FROM generate_series(1, 1000) g",
	"UPDATE warm SET t = t || 'x' WHERE id < 100", "SELECT t FROM warm WHERE id = 500", "DROP TABLE warm",
}

// warm waits until PostgreSQL serves, runs some statements, and makes the tenant's role
// and database, with a password that nobody keeps: the first credentials of a database
// then change a password, and need not copy a database.
func warm(ctx context.Context, cfg agent.Config) error {
	server := postgres.New(cfg.Postgres, cfg.Settings, nil) // of which nothing but its sessions is used
	for {
		conn, err := server.Connect(ctx)
		if err != nil {
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return err
			}
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for _, sql := range warmUp {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		_, err = tenant.New(server).Set(ctx, pgapi.Credentials{Database: "app", Username: "app", Password: rand.Text()})
		return err
	}
}
