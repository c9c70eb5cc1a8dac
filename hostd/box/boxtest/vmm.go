package boxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/vmm"
)

type engine struct{ w *World }

func (e engine) Start(ctx context.Context, l box.Launch) (box.VMM, error) {
	if err := e.w.step(ctx, "start"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return nil, err
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.w.pids++
	v := &VMM{world: e.w, dir: l.Dir, slot: l.Slot.Number, maxFile: l.MaxFile, pid: e.w.pids, state: vmm.StateCreated, done: make(chan struct{})}
	e.w.vmms[l.Dir] = v
	return v, nil
}

func (e engine) Detach(string) error { return e.w.step(context.Background(), "detach") }

func (e engine) Adopt(_ context.Context, dir string) (box.VMM, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if v := e.w.vmms[dir]; v != nil {
		return v, nil
	}
	return nil, vmm.ErrGone
}

type boxKey struct{}

// BoxID is, in a step that a VMM makes, the box that it is of.
func BoxID(ctx context.Context) string {
	id, _ := ctx.Value(boxKey{}).(string)
	return id
}

// VMM is a VMM process in memory.
type VMM struct {
	world   *World
	dir     string
	slot    int
	pid     int
	adopted bool
	maxFile int64
	done    chan struct{}

	mu     sync.Mutex
	state  vmm.State
	still  bool // the CPUs stand still
	memory string
	shared string // the file that is the memory
	disks  map[string]string
	signal syscall.Signal
	ended  bool

	rebooted bool
	console  string // of a guest that rebooted
}

// Die ends it as the signal does.
func (v *VMM) Die(s syscall.Signal) {
	v.world.mu.Lock()
	if v.world.vmms[v.dir] == v {
		delete(v.world.vmms, v.dir)
	}
	v.world.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.ended {
		v.ended, v.signal = true, s
		close(v.done)
	}
}

// Reboot is what a guest's own reboot looks like to the daemon, after it wrote
// this to its console.
func (v *VMM) Reboot(console string) {
	v.mu.Lock()
	v.rebooted, v.console = true, console
	v.mu.Unlock()
	v.Die(syscall.SIGKILL)
}

// Rebooted reports whether Reboot was called.
func (v *VMM) Rebooted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.rebooted
}

// LastConsole returns what Reboot was told.
func (v *VMM) LastConsole() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.console
}

func (v *VMM) PID() int { return v.pid }

// MaxFile is how large a file the VMM may write.
func (v *VMM) MaxFile() int64 { return v.maxFile }

func (v *VMM) StartTime() uint64     { return uint64(v.pid) }
func (v *VMM) Done() <-chan struct{} { return v.done }

// Exit is known to a parent alone, as with a real process.
func (v *VMM) Exit() (int, syscall.Signal, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return -1, v.signal, v.ended && !v.adopted
}

func (v *VMM) Kill(ctx context.Context) error {
	if err := v.world.step(ctx, "kill"); err != nil {
		return err
	}
	v.Die(syscall.SIGKILL)
	return nil
}

func (v *VMM) enter(ctx context.Context, name string, to vmm.State) error {
	if err := v.world.step(context.WithValue(ctx, boxKey{}, filepath.Base(v.dir)), name); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return syscall.ECONNRESET
	}
	v.state = to
	return nil
}

func (v *VMM) Create(ctx context.Context, cfg vmm.VMConfig) error {
	v.mu.Lock()
	if zones := cfg.Memory.Zones; len(zones) == 1 && zones[0].Shared {
		v.shared = zones[0].File
	}
	v.mu.Unlock()
	return v.enter(ctx, "create", vmm.StateCreated)
}

// Boot begins to use the RAM file.
func (v *VMM) Boot(ctx context.Context) error {
	v.Remember("booted")
	return v.enter(ctx, "boot", vmm.StateRunning)
}

// Restore takes the memory from the RAM file that the configuration names.
func (v *VMM) Restore(ctx context.Context, cfg vmm.RestoreConfig) error {
	if err := v.enter(ctx, "restore", vmm.StatePaused); err != nil {
		return err
	}
	c, err := readConfig(strings.TrimPrefix(cfg.SourceURL, "file://"))
	if err != nil {
		return err
	}
	memory := []byte("template")
	if c.RAM != "" {
		if memory, err = os.ReadFile(c.RAM); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory, v.disks = string(memory), c.Volumes
	return nil
}

// Pause stops the CPUs before the disks, which is a step of its own, "drain". Like Cloud
// Hypervisor's, a VM whose disks do not come to rest stands still and is said to run.
func (v *VMM) Pause(ctx context.Context) error {
	if err := v.world.step(context.WithValue(ctx, boxKey{}, filepath.Base(v.dir)), "pause"); err != nil {
		return err
	}
	v.mu.Lock()
	v.still = true
	v.mu.Unlock()
	return v.enter(ctx, "drain", vmm.StatePaused)
}

// Resume lets the CPUs of a paused VM run on. It is refused for one that is said to run.
func (v *VMM) Resume(ctx context.Context) error {
	v.mu.Lock()
	running := v.state == vmm.StateRunning
	v.mu.Unlock()
	if running {
		return &vmm.Error{Op: "vm.resume", Status: http.StatusInternalServerError, Messages: []string{"Invalid transition: InvalidStateTransition(Running, Running)"}}
	}
	if err := v.enter(ctx, "resume", vmm.StateRunning); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.still = false
	return nil
}

// StandsStill reports whether the CPUs stand still, whatever State says.
func (v *VMM) StandsStill() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.still
}

// Snapshot writes the memory into memory-ranges, unless it is shared with a file.
func (v *VMM) Snapshot(ctx context.Context, dir string) error {
	if err := v.world.step(ctx, "snapshot"); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended || v.state != vmm.StatePaused {
		return fmt.Errorf("the VM is %s", v.state)
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, vmm.FileConfig), []byte("{}"), 0o600),
		os.WriteFile(filepath.Join(dir, vmm.FileState), []byte("{}"), 0o600),
	)
	if v.shared == "" {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, vmm.FileMemory), []byte(v.memory), 0o600))
	}
	if err != nil {
		return err
	}
	return v.world.step(ctx, "snapshot-done")
}

// AddDisk plugs a disk in.
func (v *VMM) AddDisk(ctx context.Context, d vmm.DiskConfig) error {
	if err := v.world.step(ctx, "add-disk"); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.disks == nil {
		v.disks = map[string]string{}
	}
	v.disks[d.ID] = d.Path
	return nil
}

// Memory is what the guest remembers.
func (v *VMM) Memory() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory
}

// Remember changes what the guest remembers.
func (v *VMM) Remember(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory = s
	if v.shared != "" {
		if err := os.WriteFile(v.shared, []byte(s), 0o600); err != nil {
			panic(err)
		}
	}
}

// Disks are the volumes that the guest has, by id.
func (v *VMM) Disks() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.disks)
}

// config is what a fake VMM restores from.
type config struct {
	Overlay string
	RAM     string
	Volumes map[string]string
}

func writeConfig(dir string, c config) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, vmm.FileConfig), raw, 0o600)
}

func readConfig(dir string) (config, error) {
	var c config
	raw, err := os.ReadFile(filepath.Join(dir, vmm.FileConfig))
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(raw, &c)
}

// State is a step of its own, "state".
func (v *VMM) State(ctx context.Context) (vmm.State, error) {
	if err := v.world.step(ctx, "state"); err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state, nil
}

// SetState moves the VM behind the daemon's back.
func (v *VMM) SetState(s vmm.State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state, v.still = s, s == vmm.StatePaused
}
