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
	// A second signal ends the replica at once: the store survives that too.
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
		Long: `controlplane is one replica of Berth's control plane. Three replicas keep the
metadata of a fleet of hosts by Raft and serve the public API. Every replica
accepts every call. The loss of one interrupts the service for about a second.

A new cluster:
  1. controlplane init --dir pki --replica a=10.0.0.1:7001 --replica b=10.0.0.2:7001 --replica c=10.0.0.3:7001
     creates the cluster's certificate authority and one directory per replica.
     Move pki/a to machine a, and so on; keep pki/operator for yourself.
  2. on each machine: BERTH_PKI_DIR=… BERTH_DATA_DIR=… BERTH_LISTEN=:8080 controlplane serve
     The first start forms the cluster.
  3. berth raft status shows the leader.
  4. For each host: berth join-token create, then hostd join on the host.

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

const settingsHelp = `Settings are environment variables; serve also takes those marked * as flags:
  BERTH_PKI_DIR *           directory that init wrote for this replica
  BERTH_DATA_DIR *          Raft's log and snapshots
  BERTH_LISTEN *            address of the public API, e.g. :8080
  BERTH_PEER_LISTEN *       address of the peer port (default: the replica's own address)
  BERTH_PEERS *             id=host:port of the first members, comma-separated (default: from init)
  BERTH_NODE_ID *           id of this replica (default: from the certificate)
  BERTH_TLS_CERT, BERTH_TLS_KEY
                            PEM files for the public API (default: plain HTTP)
  BERTH_ADMIN_TOKEN         operator's bearer token, at least 16 characters (default: certificates only)
  BERTH_JWT_JWKS_URL, BERTH_JWT_ISSUER, BERTH_JWT_AUDIENCE
                            issuer whose JWTs are accepted (default: none)
  BERTH_JWT_HS256_KEY       shared key for JWTs, at least 32 bytes; for development only
  BERTH_PREVIEW_SUFFIX      domain of previews: <port>-<id>.<suffix> (default: no previews)
  BERTH_PREVIEW_URL         URL of previews as clients see it (default https://{port}-{id}.<suffix>)
  BERTH_EVENT_STORE         postgres:// URL of the event store (default: SQLite in the data directory)
  BERTH_HEARTBEAT_INTERVAL  time between a host's heartbeats (default 1s)
  BERTH_HOST_LEASE          how long a host may be silent before it is lost (default 30s)
  BERTH_RAFT_TIMEOUT        Raft's heartbeat and election timeout (default 500ms)
  BERTH_TIME_SCALE          for slow machines: multiplies every time limit on hosts and peers (default 1)
  BERTH_ORPHAN_GRACE        how long a VM without a record is kept (default 5s)
  BERTH_KEPT_GRACE          how long volumes, snapshots and stored objects without a record
                            are kept (default 1h)
  BERTH_VOLUME_QUOTA_MB     total size of a workspace's volumes (default 102400)
  BERTH_LOG_LEVEL           debug, info, warn or error (default info)
  BERTH_LOG_FORMAT          text or json (default text)`

func serveCommand() *cobra.Command {
	var flags controlplane.Config
	cmd := &cobra.Command{
		Use: "serve", Aliases: []string{"run"}, Short: "Serve the API (the default)", Args: cobra.NoArgs,
		Long: `Serve runs the replica until it is interrupted. It then hands over its
leadership, finishes requests in progress, and stops.

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

// config reads the environment; flags override it.
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
	// net/http uses package log for unsolicited data from programs in sandboxes.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(cfg.Logger)
	return cfg, nil
}
