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
	"github.com/berth-cloud/berth/sdnotify"
	"github.com/berth-cloud/berth/settings"
	"github.com/berth-cloud/berth/telemetry/export"
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
		SilenceErrors: true,
		// Only what is wrong with the command line is answered with the usage.
		PersistentPreRun: func(cmd *cobra.Command, _ []string) { cmd.SilenceUsage = true },
		RunE:             func(cmd *cobra.Command, _ []string) error { return serve.RunE(cmd, nil) },
	}
	root.AddCommand(serve, routerCommand(), initCommand(), caCommand(), sealKeyCommand(), salvageCommand(), &cobra.Command{
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
                            PEM files for the public API (default: plain HTTP); like those below
                            read again when they change
  BERTH_TRUSTED_PROXIES     networks of balancers whose X-Forwarded-For says whom a request is from,
                            comma-separated, e.g. 10.0.0.0/24 (default: none)
  BERTH_ADMIN_TOKEN         operator's bearer token, at least 16 characters (default: certificates only)
  BERTH_OIDC_ISSUERS        issuers whose JWTs are accepted, comma-separated, each with an audience:
                            https://login.example.com=berth (default: none)
  BERTH_JWT_JWKS_URL, BERTH_JWT_ISSUER, BERTH_JWT_AUDIENCE
                            the same for an issuer without discovery (default: none)
  BERTH_JWT_HS256_KEY       shared key for JWTs, at least 32 bytes; for development only
  BERTH_PREVIEW_SUFFIX      domain of previews: <port>-<id>.<suffix> (default: no previews)
  BERTH_PREVIEW_URL         URL of previews as clients see it (default https://{port}-{id}.<suffix>)
  BERTH_APP_SUFFIX          domain of apps: <id>.<suffix> (default: apps have no host names)
  BERTH_APP_URL             URL of apps as clients see it (default https://{id}.<suffix>/)
  BERTH_APP_WAKE_HOLD       how long a request waits for its app to wake (default 10s)
  BERTH_DOMAIN_LISTEN       port for domains of apps by TLS (default: the public API's, if that is TLS)
  BERTH_HTTP_LISTEN         port without TLS, usually :80, for ACME servers and redirects (default: none)
  BERTH_DOMAIN_URL          URL of domains as clients see it (default https://{domain}/)
  BERTH_DOMAIN_RESOLVERS    host:port of the DNS servers that are asked for proofs of domains,
                            comma-separated (default: the system's)
  BERTH_DOMAIN_DEV_CA       directory of a certificate authority for domains that is made there;
                            for development only
  BERTH_DB_DOMAIN           domain of databases: <id>.<domain> (default: no router)
  BERTH_DB_LISTEN           address of the PostgreSQL router (default :5432)
  BERTH_DB_ROUTER_PORT      port of the router as clients see it (default 5432)
  BERTH_DB_TLS_CERT, BERTH_DB_TLS_KEY
                            PEM files with a certificate for *.<domain> (default: BERTH_TLS_CERT)
  BERTH_DB_DEV_CA           directory of a certificate authority that is made there; for development only
  BERTH_DB_IDLE             how long without a client until a database sleeps (default 15m)
  BERTH_DB_FIRST_BACKUP     from its first start to its first base backup (default 2m)
  BERTH_DB_BACKUP_INTERVAL  between base backups, if anything was written (default 24h)
  BERTH_DB_ARCHIVE_INTERVAL how far archives may trail, from 3s to 1h (default 1m)
  BERTH_DB_TARGET_TIME_MIN_AGE
                            how long ago the moment of a clone is at least (default 2m)
  BERTH_DB_RETENTION        how far back a clone can go (default 168h)
  BERTH_DB_FAILOVER_ETA     how long a failover takes, as clients are told (default 3m)
  BERTH_DB_MAX_PER_WORKSPACE
                            databases of one workspace at most (default 100)
  BERTH_DEPLOY_BUDGET       how long a deployment may take, from the start of its build (default 12m)
  BERTH_APP_SWEEP           time between two looks for idle apps (default 30s)
  BERTH_APP_MIN_IDLE        the least that an app's idle_timeout_seconds may be (default 60s)
  BERTH_APP_IDLE            idle_timeout_seconds of an app that sets none, up to 168h (default 15m)
  BERTH_APP_LAST_REQUEST    time between two writes of an app's last_request_at (default 1m)
  BERTH_APP_HEALTH          how long an app that was started may take to answer (default 1m)
  BERTH_APP_DRAIN           how long open requests to a replaced instance of an app may take (default 5m)
  BERTH_APP_MAX_PER_WORKSPACE
                            apps of one workspace at most, and as many functions (default 100)
  BERTH_APP_CACHE_MB        caches of a build that an app's next build gets, in MB (default 1024; 0: none)
  BERTH_FUNCTION_IDLE       how long a function may be without a request before it sleeps (default 60s)
  BERTH_GIT_ALLOW_HTTP      true: apps are cloned by http:// and from private hosts too; for development only
  BERTH_GITHUB_APP_ID       id of the operator's GitHub App, which apps are deployed by (docs/apps-git.md; default: none)
  BERTH_GITHUB_APP_SLUG     the last part of the URL of the App's page
  BERTH_GITHUB_PRIVATE_KEY  the App's private key, a PEM file
  BERTH_GITHUB_WEBHOOK_SECRET
                            the App's webhook secret, or a file with it; at least 16 characters
  BERTH_GITHUB_CLIENT_ID    the App's client id: who connects an installation must own it (default: none)
  BERTH_GITHUB_CLIENT_SECRET
                            the App's client secret
  BERTH_GITHUB_API          GitHub's API (default https://api.github.com)
  BERTH_GITHUB_WEB          GitHub's pages (default https://github.com)
  BERTH_GITLAB_WEBHOOK_SECRET
                            secret of GitLab's push webhooks, or a file with it (default: none are taken)
  BERTH_GITEA_WEBHOOK_SECRET
                            secret of Gitea's push webhooks, or a file with it (default: none are taken)
  BERTH_WEBHOOK_DELAYS      between the attempts to deliver a webhook (default 1m,5m,30m,2h,8h)
  BERTH_WEBHOOK_TIMEOUT     how long an attempt may take (default 10s)
  BERTH_WEBHOOK_MAX_ENDPOINTS
                            endpoints of a workspace (default 10)
  BERTH_WEBHOOK_ALLOW_PRIVATE
                            true: webhooks go to any address, and by http:// too; for development only
  BERTH_ACME_DIRECTORY      URL of an ACME server, for certificates of all that has none in a file, and
                            of domains of apps (default: none)
  BERTH_ACME_EMAIL          contact that the server is told
  BERTH_ACME_NAMES          host names of the public API, comma-separated
  BERTH_ACME_CA             PEM file with the CA of the server itself (default: the system's)
  BERTH_ACME_DNS_SERVER, BERTH_ACME_TSIG_NAME, BERTH_ACME_TSIG_KEY, BERTH_ACME_TSIG_ALGORITHM
                            DNS server that takes updates (RFC 2136), and the key they are
                            signed with, in base64 (default algorithm hmac-sha256)
  BERTH_ACME_RESOLVERS      DNS servers that are asked for zones (default: the system's)
  BERTH_EVENT_STORE         postgres:// URL of the event store (default: SQLite in the data directory)
  BERTH_EVENT_RETENTION     how long it keeps an event (default 2160h: 90 days)
  BERTH_HEARTBEAT_INTERVAL  time between a host's heartbeats (default 1s)
  BERTH_HOST_LEASE          how long a host may be silent before it is lost (default 30s)
  BERTH_RAFT_TIMEOUT        Raft's heartbeat and election timeout (default 500ms)
  BERTH_REPLICA_STABLE_AFTER
                            how long a new replica must be there before it votes (default 10s)
  BERTH_REPLICA_DEAD_AFTER  how long a replica may be silent before a new one takes its place
                            (default 5m; 0: never)
  BERTH_TIME_SCALE          for slow machines: multiplies every time limit on hosts and peers (default 1)
  BERTH_ORPHAN_GRACE        how long a VM without a record is kept (default 5s)
  BERTH_KEPT_GRACE          how long volumes, snapshots and stored objects without a record
                            are kept (default 1h)
  BERTH_TIERS               file with the tiers of workspaces (default: built in; see
                            docs/limits.md)
  BERTH_DEFAULT_TIER        tier of workspaces that have none (default unlimited)
  BERTH_PRICES              file with the prices of what is used (default: built in; see
                            docs/billing.md)
  BERTH_USAGE_INTERVAL      how often hosts are asked what was used (default 1m)
  BERTH_CREDIT_WARNING      percent of a month's free credit at which a workspace is warned (default 80)
  BERTH_BILLING_SYNC        about how often it is asked about a workspace (default 1h)
  BERTH_AUDIT_MAX           entries of the audit log that are kept in all (default 50000)
  BERTH_AUDIT_MAX_PER_WORKSPACE
                            entries that are kept of one workspace (default 5000)
  BERTH_STRIPE_KEY          key of the provider of payments (default: none)
  BERTH_STRIPE_URL          its address (default https://api.stripe.com)
  BERTH_VOLUME_QUOTA_MB     total size of a workspace's volumes (default 102400)
  BERTH_VOLUME_SIZE_MB      size of a volume that is created without one (default 256)
  BERTH_VOLUME_MAX_MB       size of a volume at most, 16 to 65536 (default 65536)
  BERTH_FORK_MAX            children of one fork at most, 1 to 16 (default 16)
  BERTH_REQUEST_ID_MAX      characters of a client's X-Request-Id that is reused, 24 to 200 (default 64)
  BERTH_LOG_LEVEL           debug, info, warn or error (default info)
  BERTH_LOG_FORMAT          text or json (default text)

Traces go to a collector if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER=otlp is
set (docs/monitoring.md, "Traces").`

func serveCommand() *cobra.Command {
	var flags controlplane.Config
	cmd := &cobra.Command{
		Use: "serve", Aliases: []string{"run"}, Short: "Serve the API (the default)", Args: cobra.NoArgs,
		Long: `Serve runs the replica until it is interrupted. It then hands over its
leadership, finishes requests in progress, and stops. At a SIGHUP it reads the
tiers (BERTH_TIERS) again; certificates, the CA and sealing keys are read again by
themselves.

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
		flush, err := export.Start(cmd.Context(), export.Program{
			Service: "berth-controlplane", Instance: cfg.NodeID, Version: version, Log: cfg.Logger,
		})
		if err != nil {
			return err
		}
		defer flush()
		if cfg.Notifier, err = sdnotify.FromEnv(); err != nil {
			return err
		}
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
		cfg.Reload = reload
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
	timescale.Default(&cfg.ReplicaStableAfter, "BERTH_REPLICA_STABLE_AFTER")
	timescale.Default(&cfg.ReplicaDeadAfter, "BERTH_REPLICA_DEAD_AFTER")
	timescale.Default(&cfg.AppWakeHold, "BERTH_APP_WAKE_HOLD")
	timescale.Default(cfg.AppHealth, "BERTH_APP_HEALTH")
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
