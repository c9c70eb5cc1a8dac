package boxtest

import (
	"context"
	"os"
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
	v := &VMM{world: e.w, dir: l.Dir, pid: e.w.pids, state: vmm.StateCreated, done: make(chan struct{})}
	e.w.vmms[l.Dir] = v
	return v, nil
}

func (e engine) Adopt(_ context.Context, dir string) (box.VMM, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if v := e.w.vmms[dir]; v != nil {
		return v, nil
	}
	return nil, vmm.ErrGone
}

// VMM is a VMM process in memory.
type VMM struct {
	world   *World
	dir     string
	pid     int
	adopted bool
	done    chan struct{}

	mu     sync.Mutex
	state  vmm.State
	signal syscall.Signal
	ended  bool
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

func (v *VMM) PID() int              { return v.pid }
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

func (v *VMM) move(ctx context.Context, name string, to vmm.State) error {
	if err := v.world.step(ctx, name); err != nil {
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

func (v *VMM) Create(ctx context.Context, _ vmm.VMConfig) error {
	return v.move(ctx, "create", vmm.StateCreated)
}
func (v *VMM) Boot(ctx context.Context) error { return v.move(ctx, "boot", vmm.StateRunning) }
func (v *VMM) Restore(ctx context.Context, _ vmm.RestoreConfig) error {
	return v.move(ctx, "restore", vmm.StatePaused)
}
func (v *VMM) Pause(ctx context.Context) error  { return v.move(ctx, "pause", vmm.StatePaused) }
func (v *VMM) Resume(ctx context.Context) error { return v.move(ctx, "resume", vmm.StateRunning) }
func (v *VMM) State(context.Context) (vmm.State, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state, nil
}

// SetState moves the VM behind the daemon's back.
func (v *VMM) SetState(s vmm.State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state = s
}
