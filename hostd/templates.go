package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

const (
	// scanInterval is how late a template that another process built or removed
	// is told of.
	scanInterval    = 5 * time.Second
	collectInterval = 10 * time.Minute
	// groupTime bounds the removal of a build's control group.
	groupTime = 10 * time.Second
)

// The statuses of a template, as hostapi.TemplateState has them.
const (
	templateReady  = "ready"
	templateFailed = "failed"
)

// templates is the store as boxes and heartbeats see it.
type templates struct {
	store  *image.Store
	dir    string // of definitions that can be built here; empty: none
	ahead  []string
	daemon string // this host, in the store's record of who uses what
	log    *slog.Logger
	inUse  func() []string // build ids of boxes

	rescan chan struct{}

	mu      sync.Mutex
	states  map[string]hostapi.TemplateState // by name
	sources map[string]definition            // by name
	kernel  string
}

// newTemplates opens the store. lease is where a build's guest gets its network.
func newTemplates(ctx context.Context, cfg Config, engine vmm.Engine, lease func(context.Context, image.Guest) (image.Lease, error), log *slog.Logger) (*templates, error) {
	guestd, err := cfg.guestd()
	if err != nil {
		return nil, err
	}
	store, err := image.Open(ctx, image.Config{
		Dir: cfg.TemplateDir, Engine: engine, Kernel: cfg.Kernel, Guestd: guestd, Lease: lease, Logger: log,
		OCIAllow: cfg.OCIAllow, OCIMaxMB: cfg.OCIMaxMB, GuestCAs: cfg.GuestCAs,
	})
	if err != nil {
		return nil, err
	}
	return &templates{
		store: store, dir: cfg.TemplateSources, ahead: cfg.TemplatesAhead, daemon: cfg.AgentID, log: log,
		rescan: make(chan struct{}, 1), states: map[string]hostapi.TemplateState{},
	}, nil
}

// guestd finds the agent that goes into templates: beside the running program,
// where every build and package puts it.
func (c Config) guestd() (string, error) {
	if c.Guestd != "" {
		return c.Guestd, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find guestd: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "guestd"), nil
}

// Get returns what a box is made from. The store is asked each time: it looks
// at the files, so a damaged template is refused by name and not by its guest.
func (t *templates) Get(_ context.Context, name string) (box.Template, error) {
	tpl, err := t.store.Get(name)
	if err != nil {
		return box.Template{}, fmt.Errorf("%w: %w", hosterr.ErrTemplate, err)
	}
	return asBoxTemplate(tpl), nil
}

// Build returns a build that a box or a capture was made from.
func (t *templates) Build(_ context.Context, id string) (box.Template, error) {
	tpl, err := t.store.Build(id)
	if err != nil {
		return box.Template{}, fmt.Errorf("%w: %w", hosterr.ErrTemplate, err)
	}
	return asBoxTemplate(tpl), nil
}

func asBoxTemplate(tpl image.Template) box.Template {
	vm := func(m box.Machine) image.VM {
		return image.VM{Overlay: m.Overlay, RAM: m.RAM, Serial: m.Serial, Disks: m.Volumes}
	}
	return box.Template{
		Name: tpl.Name, BuildID: tpl.BuildID, CPU: tpl.CPU, MemoryMB: tpl.MemoryMB, DiskMB: tpl.DiskMB, OverlaySeed: tpl.OverlaySeed,
		OpenConnections: tpl.OpenConnections > 0,
		Restore:         func(dir string, m box.Machine) error { return tpl.WriteRestore(dir, vm(m)) },
		RestoreFrom:     func(dir, state string, m box.Machine) error { return tpl.WriteRestoreFrom(dir, state, vm(m)) },
		Cold:            func(m box.Machine) vmm.VMConfig { return tpl.VMConfig(vm(m)) },
	}
}

// States is what a heartbeat tells, ordered by name.
func (t *templates) States() []hostapi.TemplateState {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Collect(maps.Values(t.states))
	slices.SortFunc(out, func(a, b hostapi.TemplateState) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Ready are the builds of the templates that are ready.
func (t *templates) Ready() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, s := range t.states {
		if s.Status == templateReady {
			out = append(out, s.BuildID)
		}
	}
	slices.Sort(out)
	return out
}

// KernelVersion is that of the guests, empty while no template is ready.
func (t *templates) KernelVersion() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kernel
}

// Scan looks at every template of the store and returns those that are ready.
func (t *templates) Scan() []box.Template {
	names, err := t.store.Names()
	if err != nil {
		t.log.Error("templates cannot be listed", "error", err)
		return nil
	}
	states := map[string]hostapi.TemplateState{}
	var ready []box.Template
	kernel := ""
	for _, name := range names {
		tpl, err := t.store.Get(name)
		switch {
		case errors.Is(err, image.ErrNoTemplate): // removed meanwhile
		case err != nil:
			states[name] = hostapi.TemplateState{Name: name, Status: templateFailed, Error: err.Error()}
		default:
			ready = append(ready, asBoxTemplate(tpl))
			kernel = tpl.KernelVersion
			states[name] = hostapi.TemplateState{
				Name: name, BuildID: tpl.BuildID, Build: tpl.By, Status: templateReady, CPU: tpl.CPU, MemoryMB: tpl.MemoryMB, DiskMB: tpl.DiskMB,
				SizeBytes: tpl.SizeBytes, CreatedAt: tpl.CreatedAt,
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range states {
		if old := t.states[name]; old.Status != s.Status || old.BuildID != s.BuildID || old.Error != s.Error {
			t.log.Info("template", "template", name, "status", s.Status, "build_id", s.BuildID, "error", s.Error)
		}
	}
	t.states = states
	if kernel != "" {
		t.kernel = kernel
	}
	return ready
}

// Run tells offer what is ready, until ctx ends.
func (t *templates) Run(ctx context.Context, offer func([]box.Template)) {
	scan, collect := time.NewTicker(scanInterval), time.NewTicker(collectInterval)
	defer scan.Stop()
	defer collect.Stop()
	t.collect(ctx)
	for {
		offer(t.Scan())
		select {
		case <-ctx.Done():
			return
		case <-scan.C:
		case <-t.rescan:
		case <-collect.C:
			t.collect(ctx)
			t.readSources(ctx)
		}
	}
}

// collect tells the store which builds this host's boxes use, and removes what
// nobody does.
func (t *templates) collect(ctx context.Context) {
	if err := t.store.Collect(ctx, t.daemon, t.inUse()); err != nil && ctx.Err() == nil {
		t.log.Error("old template builds could not be removed", "error", err)
	}
}

// buildGroup begins the names of the control groups of builds' guests.
const buildGroup = "build-"

// removeBuildGroups removes those that a killed daemon left.
func removeBuildGroups(ctx context.Context, groups cgroups) error {
	names, err := groups.List()
	for _, name := range names {
		if strings.HasPrefix(name, buildGroup) {
			err = errors.Join(err, groups.Remove(ctx, name))
		}
	}
	return err
}

// slotPool is what a build's guest needs of the host's slots.
type slotPool interface {
	Take(ctx context.Context) (box.Slot, error)
	Return(n int)
	Dial(ctx context.Context, n, port int) (net.Conn, error)
}

// poolLease takes a slot of the running host for a build's guest, and confines
// its VMM as a box's.
func poolLease(s slotPool, groups []int, confine cgroups, overheadMB int) func(context.Context, image.Guest) (image.Lease, error) {
	return func(ctx context.Context, g image.Guest) (image.Lease, error) {
		got, err := s.Take(ctx)
		if err != nil {
			return image.Lease{}, err
		}
		group := buildGroup + strconv.Itoa(got.Number)
		cg, entered, err := confine.Create(ctx, group, box.Limits{CPUs: g.CPU, MemoryMB: g.MemoryMB, OverheadMB: overheadMB})
		if err != nil {
			s.Return(got.Number)
			return image.Lease{}, err
		}
		return image.Lease{
			Cgroup: cg,
			NetNS:  got.NetNSPath, UID: got.UID, GID: got.GID, Groups: groups,
			Dial: func(ctx context.Context, port int) (net.Conn, error) { return s.Dial(ctx, got.Number, port) },
			Release: func() {
				entered()
				rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTime)
				defer cancel()
				// What stays is in the way of nothing: the slot's next guest takes it over.
				_ = confine.Remove(rctx, group)
				s.Return(got.Number)
			},
		}, nil
	}
}

// TemplateStore opens a host's templates for a command. Its builds use the one
// slot that the daemon leaves alone, so the daemon may be running. close gives
// the slot back.
func TemplateStore(ctx context.Context, cfg Config, log *slog.Logger) (store *image.Store, closeStore func() error, err error) {
	e, err := vmm.Detect(ctx, cfg.VMM)
	if err != nil {
		return nil, nil, err
	}
	b := &builder{cfg: cfg, log: log}
	if eng, err := newEngine(e); err == nil {
		b.groups = eng.groups
	}
	t, err := newTemplates(ctx, cfg, e, b.lease, log)
	if err != nil {
		return nil, nil, err
	}
	return t.store, b.close, nil
}

// builder gives a command's builds their slot.
type builder struct {
	cfg    Config
	log    *slog.Logger
	groups []int

	mu     sync.Mutex
	fabric *slot.Fabric
	lock   *os.File // of the slot, against other commands
}

func (b *builder) lease(ctx context.Context, _ image.Guest) (image.Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fabric == nil {
		if err := b.open(ctx); err != nil {
			return image.Lease{}, err
		}
	}
	s, err := b.fabric.Ensure(ctx, b.cfg.Slots)
	if err != nil {
		return image.Lease{}, err
	}
	return image.Lease{
		NetNS: s.NetNSPath, UID: s.UID, GID: s.UID, Groups: b.groups,
		Dial: func(ctx context.Context, port int) (net.Conn, error) { return b.fabric.Dial(ctx, s.Number, port) },
		// The slot stays for the next guest of the build; close removes it.
		Release: func() {},
	}, nil
}

func (b *builder) open(ctx context.Context) error {
	lock, err := b.turn(ctx, filepath.Join(b.cfg.RunDir, "build.lock"))
	if err != nil {
		return err
	}
	// The rules are the host's, the daemon's too: they must deny the replicas
	// whichever process writes them.
	peers := b.cfg.Peers
	if len(peers) == 0 {
		if peers, err = loadPeers(b.cfg.PKIDir); err != nil {
			lock.Close()
			return err
		}
	}
	fabric, err := newFabric(ctx, b.cfg, peers, b.log)
	if err == nil {
		err = errors.Join(openTun(b.log), fabric.EnsureHost(ctx))
	}
	if err != nil {
		lock.Close()
		return err
	}
	b.fabric, b.lock = fabric, lock
	return nil
}

// turn waits until no other hostd builds templates for this host. Whoever is
// done removes the lock and its directory: they are made again for each try.
func (b *builder) turn(ctx context.Context, path string) (*os.File, error) {
	for said := false; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
			return nil, err
		}
		lock, err := lockFile(path)
		switch {
		case err == nil && isAt(lock, path):
			return lock, nil
		case err == nil: // it was removed between our open and our lock
			lock.Close()
			continue
		case errors.Is(err, fs.ErrNotExist): // as was its directory
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, err
		}
		if !said {
			b.log.Warn("another hostd builds a template for this host; waiting until it is done", "lock", path)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another hostd builds a template for this host: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(lockPause):
		}
	}
}

// isAt reports whether an open file is the one that its path names now.
func isAt(f *os.File, path string) bool {
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(here, there)
}

const lockPause = 200 * time.Millisecond

// close removes the slot, and the host's rules with it where no other slot is
// left: a host that only built templates leaves nothing.
func (b *builder) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fabric == nil {
		return nil
	}
	defer b.lock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timescale.Limit(30*time.Second))
	defer cancel()
	err := b.fabric.Remove(ctx, b.cfg.Slots)
	left, listErr := b.fabric.List(ctx)
	if err = errors.Join(err, listErr); err == nil && len(left) == 0 {
		err = errors.Join(b.fabric.Purge(ctx), os.Remove(b.lock.Name()))
		_ = os.Remove(b.cfg.RunDir) // if it is empty
	}
	return errors.Join(err, b.fabric.Close())
}
