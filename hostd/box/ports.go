package box

import (
	"context"
	"net"
	"syscall"

	"github.com/berth-cloud/berth/vmm"
)

// Slot is a network namespace with a tap, made ready for one guest.
type Slot struct {
	Number    int
	NetNSPath string
	UID, GID  int // who owns the tap and runs the VMM
}

// Slots hands out network slots.
type Slots interface {
	// Take returns a slot that nobody else has, or ErrNoSlot.
	Take(ctx context.Context) (Slot, error)
	// Return gives a slot back for the next box. The VMM that used it has ended.
	Return(n int)
	// Dial connects to a TCP port of the slot's guest.
	Dial(ctx context.Context, n, port int) (net.Conn, error)
}

// Launch says where a VMM starts.
type Launch struct {
	Dir    string
	Slot   Slot
	Cgroup vmm.Cgroup
}

// Engine starts and finds VMMs.
type Engine interface {
	Start(ctx context.Context, l Launch) (VMM, error)
	// Adopt finds the VMM of a runtime directory by its identity; vmm.ErrGone
	// where none runs.
	Adopt(ctx context.Context, dir string) (VMM, error)
}

// VMM is one VMM process and its API.
type VMM interface {
	PID() int
	StartTime() uint64
	Done() <-chan struct{}
	Exit() (code int, signal syscall.Signal, known bool)
	Kill(ctx context.Context) error

	Create(ctx context.Context, cfg vmm.VMConfig) error
	Boot(ctx context.Context) error
	Restore(ctx context.Context, cfg vmm.RestoreConfig) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	State(ctx context.Context) (vmm.State, error)
}

// Limits are what a box may use of the host.
type Limits struct {
	CPUs       int
	MemoryMB   int // guest RAM
	OverheadMB int // the engine's own
}

// Cgroups confine what runs for a box.
type Cgroups interface {
	// Create makes a box's cgroup, or finds it. The caller calls release once
	// the VMM was started.
	Create(ctx context.Context, id string, l Limits) (cg vmm.Cgroup, release func(), err error)
	// Remove kills whatever is left in a box's cgroup and removes it; one that
	// is gone is no error.
	Remove(ctx context.Context, id string) error
}

// Machine is what of a VM's configuration is one box's own.
type Machine struct {
	Overlay string // path of the read-write disk
	Serial  string // path of the serial console's log
	RAM     string // path of the RAM file of a cold boot, of the template's memory size
}

// Template is what boxes are made from. The functions are bound to one stored
// build and may be called concurrently.
type Template struct {
	Name, BuildID         string
	CPU, MemoryMB, DiskMB int
	OverlaySeed           string
	// OpenConnections says that the stored guest has connections to the
	// outside, which no restored one can go on with.
	OpenConnections bool
	// Restore writes into dir, an empty directory, what vm.restore reads.
	Restore func(dir string, m Machine) error
	// Cold returns the configuration of a boot from the kernel.
	Cold func(m Machine) vmm.VMConfig
}

// Templates finds templates by name: ErrTemplate where one is missing, broken,
// or made by another engine.
type Templates interface {
	Get(ctx context.Context, name string) (Template, error)
}
