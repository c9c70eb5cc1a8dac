// Command hostd is the daemon of a host that runs sandboxes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd"
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
	// A second signal ends the daemon at once: VMs keep running either way.
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		var silent errSilent
		if !errors.As(err, &silent) {
			fmt.Fprintln(os.Stderr, "hostd:", err)
		}
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// errSilent ends the program with status 1 without a further message.
type errSilent struct{}

func (errSilent) Error() string { return "failed" }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "hostd",
		Short: "Run sandboxes on this host",
		Long: `hostd is the daemon of one host: it creates microVM sandboxes when the control
plane asks for them, and keeps them running. It may be restarted or killed at any
time: sandboxes keep running, and the next start adopts them. Databases are the
exception: without a daemon that renews the host's lease (30 s) a guard ends their
VMs, and so it does after the machine was suspended for longer than that. They boot
from their disks when the host has a lease again.

A new host:
  1. hostd join --peer ... --token ...  obtains a certificate from the cluster
  2. hostd doctor                       reports what this machine lacks
  3. hostd serve                        (systemd does this)

Settings are environment variables:
  BERTH_AGENT_ID           id of this host, 1 to 8 of a-z and 0-9 (default: from the certificate)
  BERTH_DATA_DIR           ledger and disks of sandboxes (default /var/lib/berth-hostd)
  BERTH_RUN_DIR            sockets and logs of VMs (default /run/berth/<host id>)
  BERTH_PKI_DIR            certificate of this host (default /etc/berth/pki)
  BERTH_TEMPLATE_DIR       built templates (default <data dir>/templates); hosts on one machine may share it
  BERTH_TEMPLATE_SOURCES   directory with <name>/template.yaml, built when requested (default: none)
  BERTH_TEMPLATES_AHEAD    templates of that directory to build at once, comma-separated (default base)
  BERTH_APP_CPU            processors of an app's guest, the same on all hosts (default 8)
  BERTH_APP_MEMORY_MB      its memory, the same on all hosts (default 4096)
  BERTH_OCI_ALLOW          private registries (host or host:port) and address prefixes
                           from which tenants' images may come (default: none)
  BERTH_OCI_MAX_MB         largest image, unpacked (default 8192)
  BERTH_GUEST_CAS          directory of *.crt that bootstrapped templates also trust
                           (default /usr/local/share/ca-certificates; "" for none)
  BERTH_SNAPSHOT_STORE     file:///directory or s3://bucket?region=..., shared by all hosts
                           of one cluster (default: none; snapshots stay on their host)
  BERTH_ARCHIVE_STORE      the same for the WAL and base backups of databases
                           (default: BERTH_SNAPSHOT_STORE; without either, no databases)
  BERTH_ARCHIVE_QUOTA      how many times its disk the archive of a database may take;
                           0 for no quota (default 20)
  BERTH_DB_KEEP_DISKS      how long the disk of a database that was restored elsewhere is
                           kept when the host comes back; 0 for not at all (default 168h)
  BERTH_LISTEN             address of the API (default :7443)
  BERTH_ADVERTISE          host:port that replicas call (default: BERTH_LISTEN, if it contains an address)
  BERTH_PEERS              replicas' peer ports, comma-separated (default: from the join)
  BERTH_VMM                cloud-hypervisor or chvemu binary (default: cloud-hypervisor if it is on
                           the PATH and the CPU has hardware virtualization, otherwise chvemu)
  BERTH_KERNEL             uncompressed PVH vmlinux for guests
  BERTH_GUESTD             guest agent that goes into templates (default: next to hostd)
  BERTH_SLOT_CIDR          addresses of guest networks on this host (default 10.213.0.0/18)
  BERTH_SLOTS              maximum number of sandboxes (default: as many as fit, at most 1000)
  BERTH_SLOT_POOL          guest networks kept ready (default 8)
  BERTH_BASE_UID           first user id of VMMs (default 600000)
  BERTH_RESOLVERS          DNS servers of guests (default: the host's)
  BERTH_ALLOWED_CIDRS      private addresses that guests may reach (default: none)
  BERTH_DB_ROUTERS         address:port of each PostgreSQL router that guests may reach,
                           comma-separated (default: those that the network lets them reach)
  BERTH_DB_DOMAIN          as on the replicas, where guests cannot find databases by DNS
                           (default: they can)
  BERTH_DB_ROUTER_PORT     with it, the router's port as clients see it (default 5432)
  BERTH_DB_GUEST_CONNECTIONS
                           connections of one guest to databases (default 100)
  BERTH_DB_CA              certificate of a development CA for databases that guests
                           trust (default: none)
  BERTH_MEMORY_MB          memory for sandboxes (default: 80 % of the machine's)
  BERTH_OVERHEAD_MB        memory of the engine per sandbox (default: depends on the engine)
  BERTH_DISK_HEADROOM_MB   disk space that must stay free (default 2048)
  BERTH_DISK_OVERCOMMIT    factor by which disk space is promised to sandboxes; 1 reserves it (default 20)
  BERTH_OVERLAY_POOL       disks cloned in advance per template (default 16)
  BERTH_MAX_CONNECTIONS    connections to the ports of one sandbox at once (default 1024)
  BERTH_EVENT_RING         events of a sandbox in memory; older ones are on disk (default 512)
  BERTH_HEARTBEAT_INTERVAL time between heartbeats, until the leader sets another (default 1s)
  BERTH_CREATE_TIMEOUT     limit for creating a sandbox (default 90s)
  BERTH_STOP_TIMEOUT       limit for stopping the daemon (default 15s)
  BERTH_TIME_SCALE         for slow machines: multiplies every time limit on guests, VMMs and peers (default 1)
  BERTH_LOG_LEVEL          debug, info, warn or error (default info)
  BERTH_LOG_FORMAT         text or json (default text)

Traces go to a collector if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER=otlp is
set (docs/monitoring.md, "Traces").`,
		Args:          cobra.NoArgs,
		Version:       version + " (" + commit + ")",
		SilenceErrors: true,
		RunE:          serve,
		// Only what is wrong with the command line is answered with the usage. VMMs open some of our files as users of their own, and directories of
		// images become those of guests. What is secret has its own mode.
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			cmd.SilenceUsage = true
			unix.Umask(0o022)
		},
	}
	root.AddCommand(
		&cobra.Command{
			Use: "serve", Aliases: []string{"run"}, Short: "Serve the control plane (the default)", Args: cobra.NoArgs, RunE: serve,
			Long: "Serve checks the host, adopts the running sandboxes, and serves until it is\ninterrupted. Sandboxes keep running after that.",
		},
		joinCommand(),
		templateCommand(),
		kernelCommand(),
		&cobra.Command{
			Use: "guard RUN_DIR HOST_ID", Short: "End what the daemon cannot end (started by serve)", Args: cobra.ExactArgs(2), Hidden: true,
			Long: `Guard ends the VMs of databases when the host's lease is over and the daemon, which
would end them, hangs or is gone. The daemon starts it, and it outlives the daemon.`,
			RunE: func(cmd *cobra.Command, args []string) error { return hostd.Guard(cmd.Context(), args[0], args[1]) },
		},
		&cobra.Command{
			Use: "doctor", Short: "Check that this host has what it needs", Args: cobra.NoArgs, RunE: doctor,
		},
		&cobra.Command{
			Use: "purge", Short: "Remove every sandbox of this host, with its VM, network and disk", Args: cobra.NoArgs, RunE: purge,
			Long: `Purge takes a host out of service: it kills every VM and removes their networks,
cgroups and disks. The daemon must not be running. Templates, volumes and the
host's certificate are kept.`,
		},
	)
	return root
}

// config reads and completes the configuration.
func config() (hostd.Config, error) {
	cfg, err := settings.Read[hostd.Config]()
	if err != nil {
		return cfg, err
	}
	// The parser treats an empty variable like an unset one.
	if dir, set := os.LookupEnv("BERTH_GUEST_CAS"); set && dir == "" {
		cfg.GuestCAs = ""
	}
	timescale.Default(&cfg.CreateTimeout, "BERTH_CREATE_TIMEOUT")
	cfg.Version = version
	return cfg.Complete()
}

func serve(cmd *cobra.Command, _ []string) error {
	cfg, err := config()
	if err != nil {
		return err
	}
	log := hostd.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if cfg.Guard, err = os.Executable(); err != nil {
		return err
	}
	flush, err := export.Start(cmd.Context(), export.Program{Service: "berth-hostd", Instance: cfg.HostID, Version: version, Log: log})
	if err != nil {
		return err
	}
	defer flush()
	if cfg.Notifier, err = sdnotify.FromEnv(); err != nil {
		return err
	}
	d, err := hostd.New(cmd.Context(), cfg, log)
	if err != nil {
		return err
	}
	return d.Run(cmd.Context())
}

func doctor(cmd *cobra.Command, _ []string) error {
	cfg, err := config()
	if err != nil {
		return err
	}
	var bad bool
	for _, c := range hostd.Preflight(cmd.Context(), cfg) {
		if c.Err != nil {
			bad = true
			fmt.Fprintf(cmd.OutOrStdout(), "FAIL  %-15s %v\n", c.Name, c.Err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "ok    %-15s %s\n", c.Name, c.Detail)
	}
	if bad {
		return errSilent{}
	}
	return nil
}

func purge(cmd *cobra.Command, _ []string) error {
	cfg, err := config()
	if err != nil {
		return err
	}
	return hostd.Purge(cmd.Context(), cfg, hostd.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat))
}
