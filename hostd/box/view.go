package box

import (
	"fmt"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// view converts the box to its type on the wire. A failed create that is still
// being cleaned up is not shown: its caller was told that there is no box.
func (b *box) view() (v hostapi.Box, shown bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removal == removalForget {
		return hostapi.Box{}, false
	}
	r := &b.rec
	v = hostapi.Box{
		ID: r.ID, Generation: r.Generation, Seq: r.Seq, Persistent: r.Persistent, Template: r.Template, Boot: hostapi.Boot(r.Boot),
		CPU: r.CPU, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB, Slot: r.Slot,
		Error: r.Error, ExitCode: r.ExitCode, Signal: r.Signal,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt,
		CreateDuration: r.Took, CreateOwnDuration: r.Own, PauseMS: r.PauseMS,
	}
	if r.Database != nil {
		v.Archive = r.Database.Archive.Name
	}
	v.Status = b.statusLocked()
	if b.vmm != nil && r.State != ledger.Failed {
		v.VMMPID = b.vmm.PID()
	}
	for _, s := range r.Stages {
		v.Stages = append(v.Stages, hostapi.Stage{Name: s.Name, Duration: s.Duration, Engine: s.Engine})
	}
	return v, true
}

// statusLocked is the status that others see. The caller holds b.mu.
func (b *box) statusLocked() hostapi.Status {
	if b.removal == removalBury {
		return hostapi.StatusDeleting
	}
	switch b.rec.State {
	case ledger.Creating, ledger.Booting:
		return hostapi.StatusStarting
	case ledger.Waking:
		// It is shown as before until its guest has its identity.
		if b.rec.Stopped {
			return hostapi.StatusPaused
		}
		return hostapi.StatusHibernated
	default:
		return hostapi.Status(b.rec.State)
	}
}

func (b *box) status() hostapi.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.statusLocked()
}

// record returns a copy of what is known of the box.
func (b *box) record() ledger.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec
}

// StateError is a transition that the state table does not have. It is an
// hosterr.ErrIllegalState.
type StateError struct {
	Status hostapi.Status // as it is
	Remedy string         // what to do first, if anything helps
}

func (e *StateError) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s: it is %s", hosterr.ErrIllegalState, e.Status)
	}
	return fmt.Sprintf("%s: it is %s: %s", hosterr.ErrIllegalState, e.Status, e.Remedy)
}

// Is makes it an hosterr.ErrIllegalState.
func (e *StateError) Is(target error) bool { return target == hosterr.ErrIllegalState }

// illegal refuses a transition of a box as it is now.
func (b *box) illegal(transition string) error {
	s := b.status()
	remedy := ""
	switch {
	case s == hostapi.StatusPaused && transition != "pause":
		remedy = "resume it first"
	case s == hostapi.StatusHibernated && transition != "hibernate" && transition != "wake":
		remedy = "wake it first"
	}
	return &StateError{Status: s, Remedy: remedy}
}
