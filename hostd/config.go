// Package hostd is a host's daemon: it assembles the parts below it, and starts
// and stops them in an order that is written down in Run.
package hostd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/image/oci"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/sdnotify"
	"github.com/berth-cloud/berth/vmm"
)

// Config is a host daemon's configuration. Every field has an environment
// variable, which cmd/hostd reads.
type Config struct {
	HostID  string `env:"BERTH_AGENT_ID"` // 1 to 8 of a-z and 0-9; default: from the certificate
	DataDir string `env:"BERTH_DATA_DIR" envDefault:"/var/lib/berth-hostd"`
	RunDir  string `env:"BERTH_RUN_DIR"` // default: /run/berth/<agent id>
	PKIDir  string `env:"BERTH_PKI_DIR" envDefault:"/etc/berth/pki"`

	Listen    string   `env:"BERTH_LISTEN" envDefault:":7443"`
	Advertise string   `env:"BERTH_ADVERTISE"` // host:port that replicas call; default: Listen, if it names an address
	Peers     []string `env:"BERTH_PEERS"`     // replicas' peer ports; default: those told at join

	TemplateDir     string   `env:"BERTH_TEMPLATE_DIR"`                      // default: <data dir>/templates
	TemplateSources string   `env:"BERTH_TEMPLATE_SOURCES"`                  // directory of <name>/template.yaml that are built here when they are asked for
	TemplatesAhead  []string `env:"BERTH_TEMPLATES_AHEAD" envDefault:"base"` // those of them that are built before anybody asks

	// Of the template named app, in whose guests apps run; 0: as its definition says.
	AppCPU      int `env:"BERTH_APP_CPU"`
	AppMemoryMB int `env:"BERTH_APP_MEMORY_MB"`

	OCIAllow []string `env:"BERTH_OCI_ALLOW"`                                               // registries (host or host:port) and prefixes that tenants' images may come from though they are private
	OCIMaxMB int      `env:"BERTH_OCI_MAX_MB" envDefault:"8192"`                            // of an image, unpacked
	GuestCAs string   `env:"BERTH_GUEST_CAS" envDefault:"/usr/local/share/ca-certificates"` // directory of *.crt that bootstrapped templates trust, too

	// SnapshotStore is file:///directory or s3://bucket?region=…, where snapshots
	// are kept for every host; empty: they stay on this one.
	SnapshotStore string `env:"BERTH_SNAPSHOT_STORE"`

	// ArchiveStore is where the WAL and the base backups of databases are kept, and
	// from where any host restores them; default: SnapshotStore.
	ArchiveStore string `env:"BERTH_ARCHIVE_STORE"`
	// ArchiveQuota is how many times its disk the archive of a database may take; 0:
	// any number.
	ArchiveQuota int `env:"BERTH_ARCHIVE_QUOTA" envDefault:"20"`

	VMM    string `env:"BERTH_VMM"`    // default: cloud-hypervisor with hardware virtualization, else chvemu
	Kernel string `env:"BERTH_KERNEL"` // PVH vmlinux
	Guestd string `env:"BERTH_GUESTD"` // default: beside hostd

	SlotCIDR     string   `env:"BERTH_SLOT_CIDR" envDefault:"10.213.0.0/18"`
	Slots        int      `env:"BERTH_SLOTS"` // default: as many as fit, at most 1000
	SlotPool     int      `env:"BERTH_SLOT_POOL" envDefault:"8"`
	BaseUID      int      `env:"BERTH_BASE_UID" envDefault:"600000"`
	Resolvers    []string `env:"BERTH_RESOLVERS"`     // DNS servers of guests; default: the host's
	AllowedCIDRs []string `env:"BERTH_ALLOWED_CIDRS"` // private addresses that guests may reach all the same

	// How guests reach the PostgreSQL routers: the addresses and ports of routers; where
	// DNS does not lead guests to them, the domain of databases and the port that clients
	// are told, as the replicas have them; and the PEM file of an authority of
	// development that guests trust too. DBConnections bounds one guest's.
	DBRouters     []string `env:"BERTH_DB_ROUTERS"`
	DBDomain      string   `env:"BERTH_DB_DOMAIN"`
	DBRouterPort  int      `env:"BERTH_DB_ROUTER_PORT" envDefault:"5432"`
	DBConnections int      `env:"BERTH_DB_GUEST_CONNECTIONS" envDefault:"100"`
	DBCA          string   `env:"BERTH_DB_CA"`

	// KeepDisks is how long the disk of a database stays that was restored elsewhere.
	KeepDisks time.Duration `env:"BERTH_DB_KEEP_DISKS" envDefault:"168h"`

	MemoryMB       int `env:"BERTH_MEMORY_MB"`   // for sandboxes; default: 80 % of the machine's
	OverheadMB     int `env:"BERTH_OVERHEAD_MB"` // of the engine, a sandbox; default: by engine
	DiskHeadroomMB int `env:"BERTH_DISK_HEADROOM_MB" envDefault:"2048"`
	DiskOvercommit int `env:"BERTH_DISK_OVERCOMMIT" envDefault:"20"`
	OverlayPool    int `env:"BERTH_OVERLAY_POOL" envDefault:"16"`
	MaxTunnels     int `env:"BERTH_MAX_CONNECTIONS" envDefault:"1024"` // that callers have to the ports of one sandbox

	EventRing int `env:"BERTH_EVENT_RING" envDefault:"512"` // events of a sandbox in memory

	HeartbeatInterval time.Duration `env:"BERTH_HEARTBEAT_INTERVAL" envDefault:"1s"` // until the leader says another
	CreateTimeout     time.Duration `env:"BERTH_CREATE_TIMEOUT" envDefault:"90s"`
	StopTimeout       time.Duration `env:"BERTH_STOP_TIMEOUT" envDefault:"15s"`

	LogLevel  slog.Level `env:"BERTH_LOG_LEVEL" envDefault:"info"`
	LogFormat string     `env:"BERTH_LOG_FORMAT" envDefault:"text"`

	Version string // of the build
	// Notifier tells systemd how the daemon is; nil: nobody.
	Notifier *sdnotify.Notifier `env:"-"`
	Guard    string             // program that is the guard, with the arguments "guard", RunDir, HostID; empty: none
}

const (
	// memoryShare of the machine's memory is given to sandboxes, in percent.
	memoryShare = 80
	// What the engine itself takes beside the guest's RAM: for chvemu measured
	// as 65 MB of private memory, most of it QEMU's translated code, and room
	// for it to grow; for Cloud Hypervisor by its own documents.
	overheadChvemuMB = 128
	overheadCHMB     = 64
	maxExecs         = 64
	outputBudget     = 256 << 20
	defaultSlots     = 1000
	maxUID           = 1<<32 - 2 // the one above means no user
)

var validHostID = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// Complete checks the configuration and fills in what has a computed default.
// Every error names the setting and what to do.
func (c Config) Complete() (Config, error) {
	if c.HostID == "" {
		id, err := hostIDOf(c.PKIDir)
		if err != nil {
			return c, fmt.Errorf("BERTH_AGENT_ID is not set, and there is no certificate to take it from: set it, or join a cluster first (hostd join --help): %w", err)
		}
		c.HostID = id
	}
	if !validHostID.MatchString(c.HostID) {
		return c, fmt.Errorf("BERTH_AGENT_ID is %q: want 1 to 8 characters of a-z and 0-9 (network links are named after it)", c.HostID)
	}
	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return c, fmt.Errorf("BERTH_DATA_DIR: %w", err)
	}
	if c.RunDir == "" {
		c.RunDir = filepath.Join("/run/berth", c.HostID)
	}
	// A unix socket's path has 107 bytes: the directory, an id of 26, a name.
	if n := len(c.RunDir); n > 60 {
		return c, fmt.Errorf("BERTH_RUN_DIR %s has %d characters: at most 60, because sockets live in it", c.RunDir, n)
	}
	if c.TemplateDir == "" {
		c.TemplateDir = filepath.Join(c.DataDir, "templates")
	}
	if c.Advertise == "" {
		c.Advertise = c.Listen
	}
	if c.ArchiveStore == "" {
		c.ArchiveStore = c.SnapshotStore
	}
	switch {
	case c.MemoryMB < 0:
		return c, fmt.Errorf("BERTH_MEMORY_MB is %d: want a number of megabytes, or 0 for %d %% of the machine's", c.MemoryMB, memoryShare)
	case c.AppCPU < 0 || c.AppCPU > image.MaxCPU:
		return c, fmt.Errorf("BERTH_APP_CPU is %d: want 1 to %d, or 0 for what the template says", c.AppCPU, image.MaxCPU)
	case c.AppMemoryMB != 0 && (c.AppMemoryMB < image.MinMemoryMB || c.AppMemoryMB > image.MaxMemoryMB):
		return c, fmt.Errorf("BERTH_APP_MEMORY_MB is %d: want %d to %d, or 0 for what the template says", c.AppMemoryMB, image.MinMemoryMB, image.MaxMemoryMB)
	case c.Slots < 0 || c.Slots > 50000:
		return c, fmt.Errorf("BERTH_SLOTS is %d: want 1 to 50000, or 0 for as many as fit", c.Slots)
	case c.SlotPool < 1 || c.SlotPool > 256:
		return c, fmt.Errorf("BERTH_SLOT_POOL is %d: want 1 to 256", c.SlotPool)
	case c.OverlayPool < 0 || c.OverlayPool > 256:
		return c, fmt.Errorf("BERTH_OVERLAY_POOL is %d: want 0 to 256", c.OverlayPool)
	case c.OCIMaxMB < 0 || c.OCIMaxMB > 1<<20:
		return c, fmt.Errorf("BERTH_OCI_MAX_MB is %d: want at most %d, or 0 for the default", c.OCIMaxMB, 1<<20)
	case c.DiskHeadroomMB < 0:
		return c, fmt.Errorf("BERTH_DISK_HEADROOM_MB is %d: want 0 or more", c.DiskHeadroomMB)
	case c.DiskOvercommit < 1 || c.DiskOvercommit > 1000:
		return c, fmt.Errorf("BERTH_DISK_OVERCOMMIT is %d: want 1 (every sandbox's whole disk is kept for it) to 1000", c.DiskOvercommit)
	case c.KeepDisks < 0:
		return c, fmt.Errorf("BERTH_DB_KEEP_DISKS is %s: want how long the disk of a database that was restored elsewhere is kept, or 0 for not at all", c.KeepDisks)
	case c.MaxTunnels < 1 || c.MaxTunnels > 65535:
		return c, fmt.Errorf("BERTH_MAX_CONNECTIONS is %d: want 1 to 65535 connections to the ports of one sandbox", c.MaxTunnels)
	case c.EventRing < 1 || c.EventRing > 65536:
		return c, fmt.Errorf("BERTH_EVENT_RING is %d: want 1 to 65536 events of a sandbox in memory", c.EventRing)
	case c.ArchiveQuota < 0 || c.ArchiveQuota > 1_000_000:
		return c, fmt.Errorf("BERTH_ARCHIVE_QUOTA is %d: want how many times its disk a database's archive may take, or 0 for no quota", c.ArchiveQuota)
	case c.HeartbeatInterval < 100*time.Millisecond:
		return c, fmt.Errorf("BERTH_HEARTBEAT_INTERVAL is %s: want 100ms or more", c.HeartbeatInterval)
	case c.CreateTimeout < time.Second:
		return c, fmt.Errorf("BERTH_CREATE_TIMEOUT is %s: want 1s or more", c.CreateTimeout)
	case c.StopTimeout <= 0:
		return c, fmt.Errorf("BERTH_STOP_TIMEOUT is %s: want more than 0", c.StopTimeout)
	case c.LogFormat != "text" && c.LogFormat != "json":
		return c, fmt.Errorf("BERTH_LOG_FORMAT is %q: want text or json", c.LogFormat)
	}
	err = c.checkAddresses()
	return c, err
}

func (c *Config) checkAddresses() error {
	cidr, err := netip.ParsePrefix(c.SlotCIDR)
	if err != nil || !cidr.Addr().Is4() {
		return fmt.Errorf("BERTH_SLOT_CIDR is %q: want a private IPv4 prefix that nothing else uses, such as 10.213.0.0/18", c.SlotCIDR)
	}
	if cidr.Contains(slot.GuestAddr) {
		return fmt.Errorf("BERTH_SLOT_CIDR is %q, which has the guests' own address %s: want another private prefix, such as 10.213.0.0/18", c.SlotCIDR, slot.GuestAddr)
	}
	// Two addresses a slot, and one slot more for template builds.
	room := 1<<max(31-cidr.Bits(), 0) - 1
	if c.Slots == 0 {
		c.Slots = min(room, defaultSlots)
	}
	if c.Slots > room || room < 1 {
		return fmt.Errorf("BERTH_SLOTS is %d and BERTH_SLOT_CIDR %s has room for %d: lower the one or widen the other", c.Slots, c.SlotCIDR, room)
	}
	if last := c.BaseUID + c.Slots; c.BaseUID != 0 && c.BaseUID < slot.LeastBaseUID || last > maxUID {
		return fmt.Errorf("BERTH_BASE_UID is %d: want %d to %d, for %d slots", c.BaseUID, slot.LeastBaseUID, maxUID-c.Slots, c.Slots)
	}
	for _, a := range c.Resolvers {
		if ip, err := netip.ParseAddr(a); err != nil || !slot.UsableResolver(ip) {
			return fmt.Errorf("BERTH_RESOLVERS: %q is no IPv4 address that guests could ask: want that of another machine, or of a service on this one that is not at loopback", a)
		}
	}
	for _, p := range c.AllowedCIDRs {
		if _, err := netip.ParsePrefix(p); err != nil {
			return fmt.Errorf("BERTH_ALLOWED_CIDRS: %q is no address prefix", p)
		}
	}
	if _, err := c.databases(); err != nil {
		return err
	}
	if err := (oci.Policy{Allow: c.OCIAllow}).Check(); err != nil {
		return fmt.Errorf("BERTH_OCI_ALLOW: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("BERTH_LISTEN is %q: want address:port or :port", c.Listen)
	}
	for _, p := range c.Peers {
		if !isHostPort(p) {
			return fmt.Errorf("BERTH_PEERS: %q is no host:port of a replica's peer port", p)
		}
	}
	return nil
}

// checkServe checks what only serve needs.
func (c Config) checkServe() error {
	host, port, err := net.SplitHostPort(c.Advertise)
	if err != nil {
		return fmt.Errorf("BERTH_ADVERTISE is %q: want host:port", c.Advertise)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("BERTH_LISTEN is %q, which names no address that replicas could call: set BERTH_ADVERTISE to this host's own host:port", c.Listen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("BERTH_ADVERTISE is %q: want a port number", c.Advertise)
	}
	return nil
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// paths is where the host keeps its boxes.
func (c Config) paths() box.Paths { return box.Paths{Data: c.DataDir, Run: c.RunDir} }

// memory returns the budget for sandboxes and the overhead of one.
func (c Config) memory(engine vmm.Engine, totalMB int) (budget, overhead int, err error) {
	budget, overhead = c.MemoryMB, c.OverheadMB
	if budget == 0 {
		budget = totalMB * memoryShare / 100
	}
	if budget > totalMB {
		return 0, 0, fmt.Errorf("BERTH_MEMORY_MB is %d and the machine has %d MB: sandboxes cannot be promised what is not there", budget, totalMB)
	}
	if overhead <= 0 {
		overhead = overheadCHMB
		if engine.Kind == vmm.KindChvemu {
			overhead = overheadChvemuMB
		}
	}
	return budget, overhead, nil
}

func parsePrefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var errs []error
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		errs = append(errs, err)
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}
