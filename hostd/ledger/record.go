package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// State is the state of a box, as far as the disk knows.
//
// A record that is still Creating or Deleting when the daemon starts was cut
// off by a crash: the first is cleaned up and forgotten, the second is finished
// and buried.
//
// Waking means that the box's saved memory is spent: a VM that was restored
// from it may have run, so it must not be restored again. Booting is a box whose
// VM vanished and that is booted from its disk, because it is persistent or the
// leader has said so; if it vanishes again, the box is booted again.
type State string

// The states.
const (
	Creating   State = "creating"
	Running    State = "running"
	Paused     State = "paused"
	Hibernated State = "hibernated"
	Waking     State = "waking"
	Booting    State = "booting"
	Failed     State = "failed"
	Deleting   State = "deleting"
)

// transitions are the states that follow each. Every state may be written again.
var transitions = map[State][]State{
	Creating:   {Running, Hibernated, Deleting}, // Hibernated: it has come from another host
	Running:    {Paused, Hibernated, Booting, Failed, Deleting},
	Paused:     {Running, Waking, Booting, Failed, Deleting}, // Waking: its memory is saved (Stopped)
	Hibernated: {Waking, Booting, Failed, Deleting},
	Waking:     {Running, Hibernated, Paused, Booting, Failed, Deleting}, // what it was before, if it could not wake
	Booting:    {Running, Failed, Deleting},
	Failed:     {Booting, Deleting},
	Deleting:   {},
}

// ErrTransition refuses a change of a record that transitions does not have.
var ErrTransition = errors.New("a sandbox cannot change from this state to that one")

// MayBecome returns ErrTransition where a record may not go from one state to
// another.
func (s State) MayBecome(next State) error {
	if s == next || slices.Contains(transitions[s], next) {
		return nil
	}
	return fmt.Errorf("%w: %q to %q", ErrTransition, s, next)
}

// Boot says how the box came to life.
type Boot string

// The two boots.
const (
	BootRestore Boot = "restore"
	BootCold    Boot = "cold"
)

// NoSlot is the Slot of a record that holds none.
const NoSlot = -1

// Record is one box on disk. Env may hold a tenant's secrets: the file is
// readable by root only, as is the memory of the guest that has them too.
type Record struct {
	ID          string            `json:"id"`
	Generation  uint64            `json:"generation"`
	State       State             `json:"state"`
	Seq         uint64            `json:"seq,omitempty"` // grows with every change of State that others see
	WorkspaceID string            `json:"workspace_id"`
	Template    string            `json:"template"`
	BuildID     string            `json:"build_id"` // of the template at create
	Boot        Boot              `json:"boot"`
	Hostname    string            `json:"hostname"`
	MachineID   string            `json:"machine_id"`
	HostKey     []byte            `json:"host_key,omitempty"` // seed of the guest's SSH host key, which it has in memory alone
	Env         map[string]string `json:"env,omitempty"`
	Persistent  bool              `json:"persistent,omitempty"`
	Exclusive   bool              `json:"exclusive,omitempty"` // see hostapi.BoxSpec
	Volumes     []Volume          `json:"volumes,omitempty"`
	// Database makes the box a database's. It has the key of its archive.
	Database *hostapi.DatabaseSpec `json:"database,omitempty"`

	CPU        int `json:"cpu"`
	MemoryMB   int `json:"memory_mb"`
	ReservedMB int `json:"reserved_mb"` // memory and the engine's own
	DiskMB     int `json:"disk_mb"`

	Slot int `json:"slot"` // NoSlot: none
	VMM  VMM `json:"vmm,omitzero"`

	// SharedRAM says that the VM's RAM is the box's own file, and not a private
	// mapping of a saved one.
	SharedRAM bool `json:"shared_ram,omitempty"`
	// SavedBy is the engine that saved the box's memory, which alone goes on from it.
	SavedBy string `json:"saved_by,omitempty"`
	// Stopped is a Paused box without VMM and slot: its memory is saved, and
	// WarmChild is the box that took its slot over.
	Stopped   bool   `json:"stopped,omitempty"`
	WarmChild string `json:"warm_child,omitempty"`
	// Leaving is a Hibernated box that does not wake here: it is being moved to another
	// host, which may have it already.
	Leaving bool `json:"leaving,omitempty"`
	// Settled says of a database's box that it was last hibernated with all its WAL archived.
	Settled bool `json:"settled,omitempty"`
	// KeepDisk says of a database's box that is Deleting that a copy of its disk stays.
	KeepDisk bool `json:"keep_disk,omitempty"`
	// ResetTCP says that the guest's connections are to be cut when it goes on.
	ResetTCP bool `json:"reset_tcp,omitempty"`

	CreatedAt time.Time     `json:"created_at"`
	StartedAt time.Time     `json:"started_at,omitzero"`
	FailedAt  time.Time     `json:"failed_at,omitzero"`
	Error     string        `json:"error,omitempty"`
	ExitCode  *int          `json:"exit_code,omitempty"`
	Signal    string        `json:"signal,omitempty"`
	Stages    []Stage       `json:"stages,omitempty"`
	Took      time.Duration `json:"took_ns,omitempty"`  // of the whole create
	Own       time.Duration `json:"own_ns,omitempty"`   // of it, what was not the engine's
	PauseMS   int64         `json:"pause_ms,omitempty"` // of a warm fork: how long its parent had stood still
}

// Volume is a volume of a box, and where its guest has it.
type Volume struct {
	ID        string `json:"id"`
	MountPath string `json:"mount_path"`
}

// Enter changes the record to a state that others see.
func (r *Record) Enter(s State) {
	r.State = s
	r.Seq++
}

// VMM is the identity of a box's VMM process: a pid means nothing without the
// time at which its process began.
type VMM struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks after boot, field 22 of /proc/<pid>/stat
	Engine    string `json:"engine"`
}

// Stage is how long one part of a create took.
type Stage struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration_ns"`
	Engine   bool          `json:"engine,omitempty"`
}
