package box

import (
	"bytes"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// DatabaseBox is a box that is a database's, as it is now.
type DatabaseBox struct {
	ID            string
	Spec          *hostapi.DatabaseSpec // not to be changed
	CPU, MemoryMB int
	DiskMB        int
	// Run is closed when its VMM has ended, and another channel for each VMM; nil where
	// it does not run.
	Run <-chan struct{}
	// Since is when that VMM was started; zero: before the daemon came. Settled is whether
	// it goes on then from a sleep before which all WAL was archived.
	Since   time.Time
	Settled bool
}

// SetDatabase makes a box a database's. Its archive, and where its data comes from,
// never change.
func (h *Host) SetDatabase(id string, spec *hostapi.DatabaseSpec) error {
	b, err := h.lookup(id)
	if err != nil {
		return err
	}
	if b.removing() != removalNone {
		return hosterr.ErrNotFound
	}
	spec = spec.Clone()
	var refused error
	err = b.commit(func(r *ledger.Record) bool {
		if was := r.Database; was != nil {
			if !sameArchive(was.Archive, spec.Archive) || !sameRestore(was.Restore, spec.Restore) {
				refused = fmt.Errorf("%w: it has another archive, or another source", hosterr.ErrIllegalState)
				return false
			}
			if was.ArchiveIntervalSeconds == spec.ArchiveIntervalSeconds && was.FirstBackupSeconds == spec.FirstBackupSeconds &&
				was.BackupIntervalSeconds == spec.BackupIntervalSeconds {
				return false
			}
		}
		r.Database = spec
		return true
	})
	if err == nil {
		err = refused
	}
	if err == nil {
		h.notify()
	}
	return err
}

func sameArchive(a, b hostapi.Archive) bool { return a.Name == b.Name && bytes.Equal(a.Key, b.Key) }

func sameRestore(a, b *hostapi.DatabaseRestore) bool {
	if a == nil || b == nil {
		return a == b
	}
	at, bt := a.TargetTime, b.TargetTime
	return sameArchive(a.From, b.From) && a.WithDisk == b.WithDisk && (at == nil) == (bt == nil) && (at == nil || at.Equal(*bt))
}

// Databases returns the boxes that are databases.
func (h *Host) Databases() []DatabaseBox {
	var out []DatabaseBox
	for _, b := range h.all() {
		if d, ok := b.database(); ok {
			out = append(out, d)
		}
	}
	return out
}

// Database returns one of them, or ErrNotFound.
func (h *Host) Database(id string) (DatabaseBox, error) {
	b, err := h.lookup(id)
	if err != nil {
		return DatabaseBox{}, err
	}
	d, ok := b.database()
	if !ok {
		return DatabaseBox{}, fmt.Errorf("%w: it is no database", hosterr.ErrNotFound)
	}
	return d, nil
}

func (b *box) database() (DatabaseBox, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rec.Database == nil || b.removal == removalForget {
		return DatabaseBox{}, false
	}
	d := DatabaseBox{ID: b.id, Spec: b.rec.Database, CPU: b.rec.CPU, MemoryMB: b.rec.MemoryMB, DiskMB: b.rec.DiskMB}
	if b.runs() == nil {
		d.Run, d.Since, d.Settled = b.vmm.Done(), b.launched, b.rec.Settled && !b.booted
	}
	return d, true
}

// Tunnels is how many connections callers have to a box's ports, and when the last
// one ended that there was; zero where none did.
func (h *Host) Tunnels(id string) (open int, ended time.Time) {
	b, err := h.lookup(id)
	if err != nil {
		return 0, time.Time{}
	}
	return b.line.Tunnels()
}
