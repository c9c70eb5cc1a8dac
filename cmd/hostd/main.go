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

	"github.com/berth-cloud/berth/hostd"
	"github.com/berth-cloud/berth/settings"
	"github.com/berth-cloud/berth/timescale"
)

// Set by the build.
var version, commit = "dev", "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends at once: VMs live on either way.
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

// errSilent ends the program with status 1 after everything was said.
type errSilent struct{}

func (errSilent) Error() string { return "failed" }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "hostd",
		Short: "Run sandboxes on this host",
		Long: `hostd is the daemon of a host: it makes microVM sandboxes when the control
plane asks, and keeps them running. It may be restarted, or killed, at any time:
sandboxes live on and are taken over by the next start.

A new host:
  1. hostd join --peer ... --token ...  a certificate from the cluster
  2. hostd doctor                     what this machine still lacks
  3. hostd serve                      (systemd does this)

Settings are environment variables:
  BERTH_AGENT_ID        id of this host, 1 to 8 of a-z and 0-9 (default: from the certificate)
  BERTH_DATA_DIR        ledger, disks of sandboxes (default /var/lib/berth-hostd)
  BERTH_RUN_DIR         sockets and logs of VMs (default /run/berth/<agent id>)
  BERTH_PKI_DIR         certificate of this host (default /etc/berth/pki)
  BERTH_TEMPLATE_DIR    built templates (default <data dir>/templates); hosts of one machine may share it
  BERTH_TEMPLATE_SOURCES  directory of <name>/template.yaml, built when they are asked for (default: none)
  BERTH_TEMPLATES_AHEAD  those of them that are built before, comma-separated (default base)
  BERTH_OCI_ALLOW       registries (host or host:port) and address prefixes that
                        tenants' images may come from though they are private
  BERTH_OCI_MAX_MB      largest image, unpacked (default 8192)
  BERTH_GUEST_CAS       directory of *.crt that bootstrapped templates trust, too
                        (default /usr/local/share/ca-certificates; "" for none)
  BERTH_SNAPSHOT_STORE  file:///directory or s3://bucket?region=..., where every host finds
                        snapshots; one cluster's alone (default: none, they stay on their host)
  BERTH_LISTEN          address of the API (default :7443)
  BERTH_ADVERTISE       host:port that replicas call (default: BERTH_LISTEN, where that names an address)
  BERTH_PEERS           replicas' peer ports, comma-separated (default: those told at join)
  BERTH_VMM             cloud-hypervisor or chvemu binary (default: found)
  BERTH_KERNEL          uncompressed PVH vmlinux of guests
  BERTH_GUESTD          agent that goes into templates (default: beside hostd)
  BERTH_SLOT_CIDR       addresses of guest networks on this host (default 10.213.0.0/18)
  BERTH_SLOTS           most sandboxes at once (default: as many as fit, at most 1000)
  BERTH_SLOT_POOL       guest networks kept ready (default 8)
  BERTH_BASE_UID        first user id of VMMs (default 600000)
  BERTH_RESOLVERS       DNS servers of guests (default: the host's)
  BERTH_ALLOWED_CIDRS   private addresses that guests may reach (default: none)
  BERTH_MEMORY_MB       memory for sandboxes (default: 80 % of the machine's)
  BERTH_OVERHEAD_MB     memory of the engine, a sandbox (default: by engine)
  BERTH_DISK_HEADROOM_MB  disk space that must stay free (default 2048)
  BERTH_DISK_OVERCOMMIT   how much more sandboxes may be promised to write than there is room for (default 20)
  BERTH_OVERLAY_POOL    disks cloned ahead, a template (default 16)
  BERTH_HEARTBEAT_INTERVAL, BERTH_CREATE_TIMEOUT, BERTH_STOP_TIMEOUT  (1s, 90s, 15s)
  BERTH_TIME_SCALE      multiplies every limit on what guests, VMMs and peers may take, for slow machines (1)
  BERTH_LOG_LEVEL       debug, info, warn or error (default info)
  BERTH_LOG_FORMAT      text or json (default text)`,
		Args:          cobra.NoArgs,
		Version:       version + " (" + commit + ")",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          serve,
	}
	root.AddCommand(
		&cobra.Command{
			Use: "serve", Aliases: []string{"run"}, Short: "Serve the control plane (the default)", Args: cobra.NoArgs, RunE: serve,
			Long: "Serve checks the host, takes over the sandboxes that run, and serves until it is\ninterrupted. Sandboxes outlive it.",
		},
		joinCommand(),
		templateCommand(),
		kernelCommand(),
		&cobra.Command{
			Use: "doctor", Short: "Check what this host needs, and say what to do", Args: cobra.NoArgs, RunE: doctor,
		},
		&cobra.Command{
			Use: "purge", Short: "Remove every sandbox of this host, with its VM, network and disk", Args: cobra.NoArgs, RunE: purge,
			Long: `Purge kills every VM of this host and removes their networks, cgroups and disks,
for a host that is taken out of service. The daemon must not be running.
Templates, volumes and the host's certificate stay.`,
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
	// The parser gives a variable that is empty its default as well.
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
