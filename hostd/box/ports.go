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
	// Take returns a slot that nobody else has, or hosterr.ErrNoSlot.
	Take(ctx context.Context) (Slot, error)
	// Claim makes slot n, which a box holds already, complete again: a reboot
	// of the host removes it.
	Claim(ctx context.Context, n int) (Slot, error)
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
	// MaxFile is how many bytes any file may have that the VMM writes.
	MaxFile int64
}

// Engine starts and finds VMMs.
type Engine interface {
	Start(ctx context.Context, l Launch) (VMM, error)
	// Adopt finds the VMM of a runtime directory by its identity; vmm.ErrGone
	// where none runs.
	Adopt(ctx context.Context, dir string) (VMM, error)
	// Detach changes a saved state, which no VMM uses any more, so that several
	// VMs at once can be restored from it.
	Detach(dir string) error
}

// VMM is one VMM process and its API.
type VMM interface {
	PID() int
	StartTime() uint64
	Done() <-chan struct{}
	Exit() (code int, signal syscall.Signal, known bool)
	// Rebooted reports whether the guest rebooted, for which the VMM is ended.
	Rebooted() bool
	// LastConsole returns what a guest that rebooted wrote last to its console.
	LastConsole() string
	Kill(ctx context.Context) error

	Create(ctx context.Context, cfg vmm.VMConfig) error
	Boot(ctx context.Context) error
	Restore(ctx context.Context, cfg vmm.RestoreConfig) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot saves a paused VM into an empty directory.
	Snapshot(ctx context.Context, dir string) error
	// AddDisk plugs a disk into a VM that was booted or restored.
	AddDisk(ctx context.Context, disk vmm.DiskConfig) error
	State(ctx context.Context) (vmm.State, error)
}

// Limits are what a box may use of the host.
type Limits struct {
	CPUs       int
	MemoryMB   int // guest RAM
	OverheadMB int // the engine's own
	Exclusive  bool
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
	// RAM is the path of the RAM file, of the template's memory size: of a cold
	// boot, whose guest writes to it, or of a saved state, which is only read.
	RAM string
	// Volumes are the paths of the volumes that a saved state has, by their id.
	Volumes map[string]string
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
	// RestoreFrom writes into dir what vm.restore reads to go on from a state
	// that a box of this build was saved in: hosterr.ErrBadSnapshot where that is
	// not whole.
	RestoreFrom func(dir, state string, m Machine) error
	// Cold returns the configuration of a boot from the kernel.
	Cold func(m Machine) vmm.VMConfig
}

// Templates finds templates by name: hosterr.ErrTemplate where one is missing, broken,
// or made by another engine.
type Templates interface {
	Get(ctx context.Context, name string) (Template, error)
	// Build finds a build that boxes or captures were made from, whatever its
	// name means by now.
	Build(ctx context.Context, id string) (Template, error)
	// Bootable finds a build whichever engine made it. A box that has its disk
	// already is booted with it, or goes on from its own saved state.
	Bootable(ctx context.Context, id string) (Template, error)
}

// Volumes are the disks that outlive boxes. Every call may be repeated.
type Volumes interface {
	// Size returns a volume's bytes.
	Size(volumeID string) (int64, error)
	// Attach gives a volume to a box and to the user of its VMM, and returns
	// the path of its image. Another box's volume is hosterr.ErrInUse, one that is not
	// there hosterr.ErrInvalid.
	Attach(ctx context.Context, boxID, volumeID string, uid, gid int) (path string, err error)
	// Flush has on disk what was written to a volume.
	Flush(volumeID string) error
	// Detach takes a volume back. The box's VMM has ended.
	Detach(boxID, volumeID string) error
}
