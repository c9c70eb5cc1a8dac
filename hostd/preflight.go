package hostd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// Check is one thing that a host needs.
type Check struct {
	Name   string
	Detail string // what was found
	Err    error  // what is missing, and what to do
	// Later says that serve starts all the same: it is needed now and then, and
	// may be back by then.
	Later bool
}

// Preflight looks at everything that serve needs, changes nothing but to make
// the data directory, and reports all of it rather than the first fault.
func Preflight(ctx context.Context, c Config) []Check {
	p := &preflight{ctx: ctx, cfg: c}
	return slices.Concat(checkHost(ctx, c), checkStores(ctx, c), run([]check{{"routers of databases", p.routers}}, true))
}

// checkHost looks at this machine alone. It waits for nobody: while serve starts, the
// lease that the last daemon has left may run out.
func checkHost(ctx context.Context, c Config) []Check {
	p := &preflight{ctx: ctx, cfg: c}
	needed := run([]check{
		{"root", p.root},
		{"architecture", p.architecture},
		{"engine", p.findEngine},
		{"kernel", p.kernel},
		{"tap device", p.tun},
		{"cgroups", p.cgroups},
		{"memory", p.memory},
		{"data directory", p.dataDir},
		{"address", p.address},
		{"certificate", p.certificate},
		{"authority of databases", p.databaseCA},
	}, false)
	// A host with too little must start: deletes make room, and its databases end with
	// their lease if nobody renews it.
	return append(needed, run([]check{{"free disk", p.disk}, {"templates", p.templates}}, true)...)
}

// checkStores looks at what is elsewhere.
func checkStores(ctx context.Context, c Config) []Check {
	p := &preflight{ctx: ctx, cfg: c}
	return run([]check{{"snapshot store", p.snapshots}, {"archive store", p.archives}}, true)
}

type check struct {
	name string
	run  func() (string, error)
}

func run(checks []check, later bool) []Check {
	var out []Check
	for _, c := range checks {
		detail, err := c.run()
		out = append(out, Check{Name: c.name, Detail: detail, Err: err, Later: later})
	}
	return out
}

// warnOfStores logs which stores cannot be used now.
func (d *Daemon) warnOfStores(ctx context.Context) {
	for _, c := range checkStores(ctx, d.cfg) {
		if c.Err != nil && ctx.Err() == nil {
			d.log.WarnContext(ctx, "a store of this host cannot be used, what needs it waits or fails", "store", c.Name, "error", c.Err)
		}
	}
}

// failed joins the errors of checks that serve needs; nil when all passed.
func failed(checks []Check) error {
	var errs []error
	for _, c := range checks {
		if c.Err != nil && !c.Later {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, c.Err))
		}
	}
	return errors.Join(errs...)
}

type preflight struct {
	ctx    context.Context
	cfg    Config
	engine vmm.Engine
}

func (p *preflight) root() (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("hostd makes network namespaces and cgroups: run it as root")
	}
	return "running as root", nil
}

func (p *preflight) architecture() (string, error) {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return "", err
	}
	machine := utsString(u.Machine[:])
	if machine != "x86_64" {
		return "", fmt.Errorf("this machine is %s: only x86_64 is supported", machine)
	}
	return machine + ", Linux " + utsString(u.Release[:]), nil
}

func utsString(b []int8) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

func (p *preflight) findEngine() (string, error) {
	e, err := vmm.Detect(p.ctx, p.cfg.VMM)
	if err != nil {
		return "", err
	}
	p.engine = e
	if err := executable(e.Path); err != nil {
		return "", err
	}
	if e.Kind == vmm.KindChvemu {
		if _, err := exec.LookPath(vmm.QEMU()); err != nil {
			return "", errors.New("chvemu runs guests in QEMU, which is not installed: apt-get install qemu-system-x86")
		}
		return fmt.Sprintf("%s %s at %s (software emulation)", e.Kind, e.Version, e.Path), nil
	}
	if _, err := newEngine(e); err != nil {
		return "", err
	}
	if err := e.CheckHost(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s at %s", e.Kind, vmm.ShortEngine(e.Version), e.Path), nil
}

func (p *preflight) kernel() (string, error) {
	if p.cfg.Kernel == "" {
		return "", errors.New("BERTH_KERNEL is not set: name an uncompressed vmlinux (fetch-kernel gets one: /usr/lib/berth/fetch-kernel, or scripts/fetch-kernel)")
	}
	f, err := os.Open(p.cfg.Kernel)
	if err != nil {
		return "", fmt.Errorf("BERTH_KERNEL: %w (fetch-kernel gets one: /usr/lib/berth/fetch-kernel, or scripts/fetch-kernel)", err)
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := f.Read(magic); err != nil || string(magic) != "\x7fELF" {
		return "", fmt.Errorf("BERTH_KERNEL %s is no ELF file: it must be an uncompressed vmlinux, not a vmlinuz", p.cfg.Kernel)
	}
	return p.cfg.Kernel, nil
}

func (p *preflight) tun() (string, error) {
	fi, err := os.Stat(tunDevice)
	if err != nil {
		return "", fmt.Errorf("%w: load the module (modprobe tun)", err)
	}
	if fi.Mode().Perm()&forAll != forAll {
		return tunDevice + ", for root only: serve opens it to VMMs", nil
	}
	return tunDevice, nil
}

const (
	tunDevice = "/dev/net/tun"
	forAll    = fs.FileMode(0o006)
)

// openTun lets unprivileged VMMs open the tap device, as udev does on most
// machines: who may use which tap is decided by the tap's own owner.
func openTun(log *slog.Logger) error {
	fi, err := os.Stat(tunDevice)
	if err != nil {
		return fmt.Errorf("%w: load the module (modprobe tun)", err)
	}
	if fi.Mode().Perm()&forAll == forAll {
		return nil
	}
	log.Info("tap device is opened to VMMs", "device", tunDevice, "mode_before", fi.Mode().Perm().String())
	if err := os.Chmod(tunDevice, 0o666); err != nil {
		return fmt.Errorf("open the tap device to VMMs: %w", err)
	}
	return nil
}

func (p *preflight) cgroups() (string, error) {
	if raw, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		have := strings.Fields(string(raw))
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !slices.Contains(have, want) {
				return "", fmt.Errorf("cgroup controller %s is not available in /sys/fs/cgroup: enable it on the kernel's command line", want)
			}
		}
		return "version 2", nil
	}
	for _, want := range []string{"cpu", "memory"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", want)); err != nil {
			return "", fmt.Errorf("neither cgroup version 2 nor the version 1 controller %s is mounted below /sys/fs/cgroup", want)
		}
	}
	return "version 1", nil
}

func (p *preflight) memory() (string, error) {
	total, err := totalMemoryMB()
	if err != nil {
		return "", err
	}
	budget, overhead, err := p.cfg.memory(p.engine, total)
	if err != nil {
		return "", err
	}
	const smallest = 512
	if budget < smallest+overhead {
		return "", fmt.Errorf("%d MB for sandboxes is not enough for one of %d MB and %d MB of its engine: raise BERTH_MEMORY_MB", budget, smallest, overhead)
	}
	return fmt.Sprintf("%d of %d MB for sandboxes, %d MB of each sandbox for its engine", budget, total, overhead), nil
}

func (p *preflight) dataDir() (string, error) {
	if err := p.cfg.paths().Make(); err != nil {
		return "", fmt.Errorf("BERTH_DATA_DIR, BERTH_RUN_DIR: %w", err)
	}
	return p.cfg.DataDir, nil
}

func (p *preflight) disk() (string, error) {
	bytes, err := freeBytes(p.cfg.DataDir)
	if err != nil {
		return "", err
	}
	if st, err := statfs(p.cfg.DataDir); err == nil && lacksFiles(st) {
		return "", fmt.Errorf("%s has %d inodes free of %d (df -i): no sandbox is taken until files can be made; remove some, or move BERTH_DATA_DIR", p.cfg.DataDir, st.Ffree, st.Files)
	}
	free := bytes >> 20
	if free < int64(p.cfg.DiskHeadroomMB) {
		return "", fmt.Errorf("%s has %d MB free and %d must stay free (BERTH_DISK_HEADROOM_MB): no sandbox is taken until there is room; delete some, or move BERTH_DATA_DIR", p.cfg.DataDir, free, p.cfg.DiskHeadroomMB)
	}
	return fmt.Sprintf("%s, %d MB free", p.cfg.DataDir, free), nil
}

// templates looks for what those are built with that begin with a Debian.
func (p *preflight) templates() (string, error) {
	dir := p.cfg.TemplateSources
	if dir == "" {
		return "none are built here (BERTH_TEMPLATE_SOURCES)", nil
	}
	defs, err := image.ReadDefinitions(dir)
	if err != nil {
		return "", fmt.Errorf("BERTH_TEMPLATE_SOURCES: %w", err)
	}
	for _, d := range defs {
		if d.Bootstrap == nil {
			continue
		}
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			return "", fmt.Errorf("the template %s cannot be built here: mmdebstrap is not installed (apt-get or dnf install mmdebstrap)", d.Name)
		}
		if _, err := image.HostSources(d.Bootstrap.Suite); err != nil {
			return "", fmt.Errorf("the template %s cannot be built here: %w", d.Name, err)
		}
	}
	return fmt.Sprintf("%d in %s can be built here", len(defs), dir), nil
}

// executable refuses an engine that an unprivileged VMM could not run. The
// directories above it do not count: VMMs are handed their engine.
func executable(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.Mode().Perm()&0o001 == 0 {
		return fmt.Errorf("VMMs run as users of their own and may not run %s: chmod a+rx %s", path, path)
	}
	return nil
}

func (p *preflight) address() (string, error) {
	if err := p.cfg.checkServe(); err != nil {
		return "", err
	}
	return "replicas call " + p.cfg.Advertise, nil
}

func (p *preflight) certificate() (string, error) {
	c, err := loadCredentials(p.cfg.PKIDir, p.cfg.HostID)
	if err != nil {
		return "", err
	}
	if len(p.cfg.Peers) == 0 && len(c.peers) == 0 {
		return "", fmt.Errorf("no replica is known: set BERTH_PEERS to the replicas' peer ports (%s is missing)", filepath.Join(p.cfg.PKIDir, filePeers))
	}
	leaf := c.cert.Leaf()
	if time.Now().After(leaf.NotAfter) {
		return "", fmt.Errorf("the certificate of %s expired on %s, and replicas refuse it: %s", leaf.Subject.CommonName, leaf.NotAfter.Format("2006-01-02"), renewByHand)
	}
	return fmt.Sprintf("%s, valid until %s, renewed before", leaf.Subject.CommonName, leaf.NotAfter.Format("2006-01-02")), nil
}

// storeCheckTimeout bounds the question to a snapshot store.
var storeCheckTimeout = timescale.Limit(15 * time.Second)

func (p *preflight) snapshots() (string, error) {
	if p.cfg.SnapshotStore == "" {
		return "none: snapshots stay on this host (BERTH_SNAPSHOT_STORE)", nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, storeCheckTimeout)
	defer cancel()
	s, err := snapshot.Open(ctx, p.cfg.SnapshotStore, snapshot.Options{})
	if err != nil {
		return "", fmt.Errorf("BERTH_SNAPSHOT_STORE: %w", err)
	}
	if err := errors.Join(s.Check(ctx), s.Close()); err != nil {
		return "", fmt.Errorf("BERTH_SNAPSHOT_STORE: %w", err)
	}
	url, _, _ := strings.Cut(p.cfg.SnapshotStore, "?")
	return url + ", written to and read from", nil
}

// totalMemoryMB is the machine's memory.
func totalMemoryMB() (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("size of memory: %w", err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "MemTotal:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				return 0, fmt.Errorf("size of memory: %w", err)
			}
			return kb / 1024, nil
		}
	}
	return 0, fmt.Errorf("size of memory: %w in /proc/meminfo", fs.ErrNotExist)
}
