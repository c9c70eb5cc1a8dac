package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/pgrouter"
	"github.com/berth-cloud/berth/sdnotify"
	"github.com/berth-cloud/berth/settings"
	"github.com/berth-cloud/berth/telemetry/export"
)

func routerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "router", Short: "Serve only the PostgreSQL router, on a machine that is no replica", Args: cobra.NoArgs,
		Long: `Router takes the clients of databases, as each replica does, in a process of its
own: on more machines than there are replicas, or in another network. It holds no
data. A replica tells it what databases there are; without any replica it goes on
with what it knows, and only sleeping databases wait.

  1. controlplane init --dir pki --ca pki/a --router r1
     Move pki/r1 to the machine of the router.
  2. on that machine: BERTH_PKI_DIR=… BERTH_DB_DOMAIN=… BERTH_DB_TLS_CERT=… BERTH_DB_TLS_KEY=… controlplane router
  3. Point the DNS names of databases, *.BERTH_DB_DOMAIN, to the routers.

It must reach the peer ports of the replicas and the ports of the hosts' daemons.

Settings are environment variables:
  BERTH_PKI_DIR             directory that init --router wrote
  BERTH_REPLICAS            host:port of the replicas' peer ports, comma-separated (default: from init)
  BERTH_DB_DOMAIN           domain of databases, as the replicas have it
  BERTH_DB_LISTEN           address for PostgreSQL clients (default :5432)
  BERTH_DB_TLS_CERT, BERTH_DB_TLS_KEY
                            PEM files with a certificate for *.<domain>; read again when they change
  BERTH_DB_DEV_CA           directory of a certificate authority that is made there; for development only
  BERTH_STATUS_LISTEN       address of /healthz, /readyz and /metrics, plain HTTP (default: none)
  BERTH_TIME_SCALE          for slow machines: multiplies every time limit on hosts and peers (default 1)
  BERTH_LOG_LEVEL           debug, info, warn or error (default info)
  BERTH_LOG_FORMAT          text or json (default text)

Traces go to a collector if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER=otlp is
set (docs/monitoring.md, "Traces").`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.Read[pgrouter.Config]()
		if err != nil {
			return err
		}
		if cfg.Logger, err = controlplane.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat); err != nil {
			return err
		}
		if cfg.Notifier, err = sdnotify.FromEnv(); err != nil {
			return err
		}
		server, err := pgrouter.New(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		flush, err := export.Start(cmd.Context(), export.Program{
			Service: "berth-router", Instance: server.ID(), Version: version, Log: cfg.Logger,
		})
		if err != nil {
			return err
		}
		defer flush()
		return server.Run(cmd.Context())
	}
	return cmd
}
