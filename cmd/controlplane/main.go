// Command controlplane is one replica of the control plane.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/settings"
	"github.com/berth-cloud/berth/timescale"
)

// Set by the build.
var version, commit = "dev", "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends at once: the store survives that as well.
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func command() *cobra.Command {
	serve := serveCommand()
	root := &cobra.Command{
		Use:   "controlplane",
		Short: "Run a replica of Berth's control plane",
		Long: `controlplane is one replica of Berth's control plane. Three of them keep the
metadata of a fleet of hosts by Raft and serve the public API; any of them
answers, and one machine may be lost without anyone noticing for longer than a
second.

A new cluster:
  1. controlplane init --dir pki --replica a=10.0.0.1:7001 --replica b=10.0.0.2:7001 --replica c=10.0.0.3:7001
     makes the cluster's certificate authority and one directory for each replica.
     Copy pki/a to machine a, and so on; keep pki/operator for yourself.
  2. on each machine: BERTH_PKI_DIR=… BERTH_DATA_DIR=… BERTH_LISTEN=:8080 controlplane serve
     The first start forms the cluster by itself.
  3. berth raft status                     who leads
  4. a join token for each host            berth join-token create, then hostd join

` + settingsHelp,
		Args:          cobra.NoArgs,
		Version:       version + " (" + commit + ")",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve.RunE(cmd, nil) },
	}
	root.AddCommand(serve, initCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "controlplane %s (%s) %s\n", version, commit, runtime.Version())
		},
	})
	return root
}

const settingsHelp = `Settings are environment variables; those marked * are flags of serve as well:
  BERTH_PKI_DIR *        what init wrote for this replica
  BERTH_DATA_DIR *       the replica's log and snapshots
  BERTH_LISTEN *         address of the public API, e.g. :8080
  BERTH_PEER_LISTEN *    address of the peer port (default: the replica's own address)
  BERTH_PEERS *          id=host:port of the first members, comma-separated (default: those told to init)
  BERTH_NODE_ID *        id of this replica (default: of its certificate)
  BERTH_TLS_CERT, BERTH_TLS_KEY     PEM files for the public API (default: plain HTTP)
  BERTH_ADMIN_TOKEN      the operator's bearer token, 16 characters or more (default: certificates only)
  BERTH_JWT_JWKS_URL, BERTH_JWT_ISSUER, BERTH_JWT_AUDIENCE   whose JWTs sign users in
  BERTH_JWT_HS256_KEY    a shared key for JWTs, 32 bytes or more; for development
  BERTH_PREVIEW_SUFFIX   host name under which sandbox ports are shown
  BERTH_PREVIEW_URL      how clients see that (default: https://{port}-{id}.<suffix>)
  BERTH_EVENT_STORE      postgres:// URL of the event store (default: SQLite in the data directory)
  BERTH_HEARTBEAT_INTERVAL, BERTH_HOST_LEASE   how often hosts call, and when one is lost (1s, 30s)
  BERTH_RAFT_TIMEOUT     Raft's heartbeat and election time-out (500ms)
  BERTH_TIME_SCALE       multiplies every limit on what hosts and peers may take, for slow machines (1)
  BERTH_ORPHAN_GRACE     how long a VM without a record is left alone (5s)
  BERTH_KEPT_GRACE       the same for a volume, a snapshot or what is in the snapshot store (1h)
  BERTH_VOLUME_QUOTA_MB  what the volumes of a workspace may have together (102400)
  BERTH_LOG_LEVEL        debug, info, warn or error (info)
  BERTH_LOG_FORMAT       text or json (text)`

func serveCommand() *cobra.Command {
	var flags controlplane.Config
	cmd := &cobra.Command{
		Use: "serve", Aliases: []string{"run"}, Short: "Serve the API (the default)", Args: cobra.NoArgs,
		Long: `Serve runs the replica until it is interrupted. It then hands its leadership
over, lets requests end, and stops.

` + settingsHelp,
	}
	f := cmd.Flags()
	f.StringVar(&flags.NodeID, "node-id", "", "id of this replica")
	f.StringVar(&flags.DataDir, "data-dir", "", "directory of the log and snapshots")
	f.StringVar(&flags.PKIDir, "pki-dir", "", "directory that init wrote for this replica")
	f.StringVar(&flags.Listen, "listen", "", "address of the public API")
	f.StringVar(&flags.PeerListen, "peer-listen", "", "address of the peer port")
	f.StringSliceVar(&flags.Peers, "peers", nil, "id=host:port of the first members")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config(flags)
		if err != nil {
			return err
		}
		server, err := controlplane.New(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		return server.Run(cmd.Context())
	}
	return cmd
}

// config reads the environment; a flag that is given goes before it.
func config(flags controlplane.Config) (controlplane.Config, error) {
	cfg, err := settings.Read[controlplane.Config]()
	if err != nil {
		return cfg, err
	}
	timescale.Default(&cfg.HostLease, "BERTH_HOST_LEASE")
	timescale.Default(&cfg.RaftTimeout, "BERTH_RAFT_TIMEOUT")
	for to, from := range map[*string]string{
		&cfg.NodeID: flags.NodeID, &cfg.DataDir: flags.DataDir, &cfg.PKIDir: flags.PKIDir,
		&cfg.Listen: flags.Listen, &cfg.PeerListen: flags.PeerListen,
	} {
		if from != "" {
			*to = from
		}
	}
	if len(flags.Peers) > 0 {
		cfg.Peers = flags.Peers
	}
	cfg.Version, cfg.Commit = version, commit
	cfg.Logger, err = controlplane.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return cfg, err
	}
	// net/http logs by package log what a program in a sandbox sends unasked.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(cfg.Logger)
	return cfg, nil
}
