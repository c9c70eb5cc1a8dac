// Package boxtest is a host's kernel in memory: slots, cgroups, VMMs and
// guests, so that tests of boxes can fail any step, end the daemon at any step,
// and then look at what is left. Files are real, in a temporary directory.
package boxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// ErrInjected is what a failing step returns.
var ErrInjected = errors.New("injected failure")

// World is one machine. Its kernel part survives the daemons that run on it.
type World struct {
	Dir   string
	Paths box.Paths

	mu      sync.Mutex
	slots   map[int]bool // taken
	cgroups map[string]bool
	vmms    map[string]*VMM // by runtime directory; gone when they have ended
	pids    int
	told    map[string]guestapi.Identity // the last one, by hostname

	// Step is called before each change, with its name; it may block, and its
	// error fails the step. Once boxes are made, SetStep sets it.
	Step func(ctx context.Context, name string) error
	// Guest, where it is set, answers for every guest instead of a good one.
	Guest http.Handler
	// Port, where it is set, connects to the other ports of every guest.
	Port func(ctx context.Context, slot, port int) (net.Conn, error)
	// Slots is how many there are.
	Slots int
	// MemoryMB is the template's memory; 512 where it is zero.
	MemoryMB int
}

// Steps are the names that Step is called with during a create, in order of
// their appearance (some run beside each other), and then during a delete.
var (
	// HibernateSteps, WakeSteps and CaptureSteps are those of their transitions.
	HibernateSteps = []string{"pause", "snapshot", "detach", "kill", "remove-cgroup"}
	WakeSteps      = []string{"cgroup", "start", "configure", "restore", "resume", "identity"}
	CaptureSteps   = []string{"pause", "snapshot", "resume", "detach"}

	CreateSteps = []string{"take", "cgroup", "start", "overlay", "configure", "restore", "resume", "identity"}
	DeleteSteps = []string{"kill", "remove-cgroup"}
)

// NewWorld returns an empty machine.
func NewWorld(t testing.TB) *World {
	dir := t.TempDir()
	w := &World{
		Dir: dir, Paths: box.Paths{Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run")},
		slots: map[int]bool{}, cgroups: map[string]bool{}, vmms: map[string]*VMM{}, pids: 1000, Slots: 8,
	}
	if err := w.Paths.Make(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "seed.img"), []byte("empty file system"), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// Fork returns a copy of the machine as it is now, files included: what a
// daemon that is started after a crash at this moment finds.
func (w *World) Fork(t testing.TB) *World {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := NewWorld(t)
	c.Slots, c.pids = w.Slots, w.pids
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(c.Dir, os.DirFS(w.Dir)); err != nil {
		t.Fatal(err)
	}
	for id := range w.cgroups {
		c.cgroups[id] = true
	}
	for dir, v := range w.vmms {
		rel, err := filepath.Rel(w.Dir, dir)
		if err != nil {
			t.Fatal(err)
		}
		dup := &VMM{world: c, dir: filepath.Join(c.Dir, rel), slot: v.slot, pid: v.pid, state: v.state, still: v.still, memory: v.memory, adopted: true, done: make(chan struct{})}
		if v.shared != "" {
			if rel, err = filepath.Rel(w.Dir, v.shared); err != nil {
				t.Fatal(err)
			}
			dup.shared = filepath.Join(c.Dir, rel)
		}
		c.vmms[dup.dir] = dup
	}
	// Slots that nobody holds are the pool's business: it finds them free.
	return c
}

// Deps returns a daemon's parts on this machine.
func (w *World) Deps(l *ledger.Ledger) box.Deps {
	return box.Deps{
		Ledger: l, Slots: slots{w}, Engine: engine{w}, Cgroups: cgroups{w}, Templates: templates{w},
		Metrics: box.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	}
}

// Config returns bounds that allow four boxes.
func (w *World) Config() box.Config {
	return box.Config{
		Paths: w.Paths, MemoryMB: 4 * 600, OverheadMB: 88, CreateTimeout: 10 * time.Second,
		MaxExecs: 4, MaxTunnels: 64, OutputBudget: 64 << 20, Engine: "fake", DiskOvercommit: 20,
	}
}

// Left describes everything that is there for boxes, empty when nothing is.
func (w *World) Left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for n := range w.slots {
		out = append(out, fmt.Sprintf("slot %d", n))
	}
	for id := range w.cgroups {
		out = append(out, "cgroup "+id)
	}
	for dir := range w.vmms {
		out = append(out, "vmm "+dir)
	}
	for _, parent := range []string{w.Paths.Boxes(), w.Paths.Run} {
		entries, err := os.ReadDir(parent)
		if err != nil {
			out = append(out, err.Error())
		}
		for _, e := range entries {
			out = append(out, "file "+filepath.Join(parent, e.Name()))
		}
	}
	slices.Sort(out)
	return out
}

// VMM returns the VMM of a box, or nil.
func (w *World) VMM(id string) *VMM {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.vmms[w.Paths.VMM(id)]
}

// AddVMM starts a VMM that no daemon knows of.
func (w *World) AddVMM(t testing.TB, id string) *VMM {
	dir := w.Paths.VMM(id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cgroups[id] = true
	w.pids++
	v := &VMM{world: w, dir: dir, slot: ledger.NoSlot, pid: w.pids, state: vmm.StateRunning, done: make(chan struct{})}
	w.vmms[dir] = v
	return v
}

// standsStill reports whether the guest in a slot stands still.
func (w *World) standsStill(slot int) bool {
	w.mu.Lock()
	var in *VMM
	for _, v := range w.vmms {
		if v.slot == slot {
			in = v
		}
	}
	w.mu.Unlock()
	return in != nil && in.StandsStill()
}

// Told is the last identity that the guest of a hostname was given.
func (w *World) Told(hostname string) guestapi.Identity {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told[hostname]
}

func (w *World) note(id guestapi.Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told == nil {
		w.told = map[string]guestapi.Identity{}
	}
	w.told[id.Hostname] = id
}

// SetStep sets Step while boxes may be at work.
func (w *World) SetStep(f func(ctx context.Context, name string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Step = f
}

func (w *World) step(ctx context.Context, name string) error {
	w.mu.Lock()
	do := w.Step
	w.mu.Unlock()
	if do == nil {
		return ctx.Err()
	}
	if err := do(ctx, name); err != nil {
		return err
	}
	return ctx.Err()
}

// Traces, KillVMM, RemoveCgroup, RemoveFiles and HoldSlot are what reconcile
// asks of a machine.
func (w *World) Traces(context.Context) ([]string, error) {
	seen := map[string]bool{}
	for _, parent := range []string{w.Paths.Boxes(), w.Paths.Run} {
		entries, err := os.ReadDir(parent)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if hostapi.ValidID(e.Name()) {
				seen[e.Name()] = true
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.cgroups {
		seen[id] = true
	}
	var out []string
	for id := range seen {
		out = append(out, id)
	}
	return out, nil
}

// KillVMM kills the VMM of a box that has no record.
func (w *World) KillVMM(ctx context.Context, id string) (bool, error) {
	v := w.VMM(id)
	if v == nil {
		return false, nil
	}
	return true, v.Kill(ctx)
}

// RemoveCgroup removes a box's cgroup.
func (w *World) RemoveCgroup(ctx context.Context, id string) error {
	return cgroups{w}.Remove(ctx, id)
}

// RemoveFiles removes a box's directories.
func (w *World) RemoveFiles(id string) error {
	return errors.Join(os.RemoveAll(w.Paths.Box(id)), os.RemoveAll(w.Paths.VMM(id)))
}

// HoldSlot marks a slot as taken.
func (w *World) HoldSlot(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots[n] = true
}

type slots struct{ w *World }

func (s slots) Take(ctx context.Context) (box.Slot, error) {
	if err := s.w.step(ctx, "take"); err != nil {
		return box.Slot{}, err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for n := range s.w.Slots {
		if !s.w.slots[n] {
			s.w.slots[n] = true
			return box.Slot{Number: n, UID: os.Getuid(), GID: os.Getgid()}, nil
		}
	}
	return box.Slot{}, hosterr.ErrNoSlot
}

func (s slots) Claim(ctx context.Context, n int) (box.Slot, error) {
	if err := s.w.step(ctx, "claim"); err != nil {
		return box.Slot{}, err
	}
	return box.Slot{Number: n, UID: os.Getuid(), GID: os.Getgid()}, nil
}

func (s slots) Return(n int) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.w.slots[n] {
		panic(fmt.Sprintf("slot %d was returned twice", n))
	}
	delete(s.w.slots, n)
}

func (s slots) Dial(ctx context.Context, slot, port int) (net.Conn, error) {
	if port != guestapi.Port && s.w.Port != nil {
		return s.w.Port(ctx, slot, port)
	}
	if port != guestapi.Port {
		return nil, syscall.ECONNREFUSED
	}
	host, guest := net.Pipe()
	go s.w.serveGuest(slot, guest)
	return host, nil
}

type cgroups struct{ w *World }

func (c cgroups) Create(ctx context.Context, id string, _ box.Limits) (vmm.Cgroup, func(), error) {
	if err := c.w.step(ctx, "cgroup"); err != nil {
		return vmm.Cgroup{}, nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.cgroups[id] = true
	return vmm.Cgroup{}, func() {}, nil
}

func (c cgroups) Remove(ctx context.Context, id string) error {
	if err := c.w.step(ctx, "remove-cgroup"); err != nil {
		return err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	delete(c.w.cgroups, id)
	return nil
}

type templates struct{ w *World }

func (t templates) Get(_ context.Context, name string) (box.Template, error) {
	if name != "base" {
		return box.Template{}, fmt.Errorf("%w: no template %q", hosterr.ErrTemplate, name)
	}
	return box.Template{
		Name: "base", BuildID: "build1", CPU: 1, MemoryMB: cmp.Or(t.w.MemoryMB, 512), DiskMB: 1024,
		OverlaySeed: t.seed(),
		Restore: func(dir string, m box.Machine) error {
			if err := t.w.step(context.Background(), "configure"); err != nil {
				return err
			}
			return writeConfig(dir, config{Overlay: m.Overlay})
		},
		RestoreFrom: func(dir, state string, m box.Machine) error {
			if err := t.w.step(context.Background(), "configure"); err != nil {
				return err
			}
			for _, path := range []string{filepath.Join(state, vmm.FileConfig), filepath.Join(state, vmm.FileState), m.RAM} {
				if _, err := os.Stat(path); err != nil {
					return fmt.Errorf("%w: %w", hosterr.ErrBadSnapshot, err)
				}
			}
			return writeConfig(dir, config{Overlay: m.Overlay, RAM: m.RAM, Volumes: m.Volumes})
		},
		Cold: func(m box.Machine) vmm.VMConfig {
			return vmm.VMConfig{Memory: vmm.MemoryConfig{Zones: []vmm.MemoryZone{{ID: "ram", File: m.RAM, Shared: true}}}}
		},
	}, nil
}

// Build refuses the build where another engine is said to have stored it.
func (t templates) Build(ctx context.Context, id string) (box.Template, error) {
	if err := t.w.step(ctx, "build"); err != nil {
		return box.Template{}, fmt.Errorf("%w: %w: %w", hosterr.ErrTemplate, image.ErrOtherEngine, err)
	}
	return t.Bootable(ctx, id)
}

func (t templates) Bootable(ctx context.Context, id string) (box.Template, error) {
	if id != "build1" {
		return box.Template{}, fmt.Errorf("%w: no build %q", hosterr.ErrTemplate, id)
	}
	return t.Get(ctx, "base")
}

// seed names a missing file when the step "overlay" fails, which is how the
// clone of a full or damaged disk fails.
func (t templates) seed() string {
	if t.w.step(context.Background(), "overlay") != nil {
		return filepath.Join(t.w.Dir, "missing.img")
	}
	return filepath.Join(t.w.Dir, "seed.img")
}
