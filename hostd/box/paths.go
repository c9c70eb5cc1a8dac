package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/vmm"
)

// Paths is the one place that knows where a host keeps its files.
//
//	<Data>/ledger                  what is remembered (hostd/ledger)
//	<Data>/boxes/<id>/overlay.img  the box's writable disk
//	<Data>/boxes/<id>/ram.img      RAM of a cold-booted box
//	<Data>/boxes/<id>/restore/     config.json and state.json for vm.restore
//	<Data>/boxes/<id>/state/       memory and devices of a hibernated box
//	<Data>/captures/<id>/          the same and a disk, and capture.json
//	<Data>/kept/<id>/              the disk of a database's box that is gone, and kept.json
//	<Data>/overlays/<build>-<n>    clones made ahead of need
//	<Run>/<id>/                    the VMM: api.sock, vmm.json, logs
//	<Run>/lease.json               the leader's last word (hostd/lease)
//	<Run>/guard/                   the exclusive boxes (hostd/guard)
//	<Run>/usage/                   what boxes have used (hostd/stats)
//
// Data survives a reboot of the host. Run should not (it is on a tmpfs), and
// its path is short: a socket's may have 107 bytes.
type Paths struct {
	Data string
	Run  string
}

// Ledger is the path of the ledger.
func (p Paths) Ledger() string { return filepath.Join(p.Data, "ledger") }

// Boxes is the directory of the boxes' disks.
func (p Paths) Boxes() string { return filepath.Join(p.Data, "boxes") }

// Box is one box's directory of disks.
func (p Paths) Box(id string) string { return filepath.Join(p.Boxes(), id) }

// Overlay is a box's writable disk.
func (p Paths) Overlay(id string) string { return filepath.Join(p.Box(id), "overlay.img") }

// Kept is the directory of disks of databases' boxes that are gone.
func (p Paths) Kept() string { return filepath.Join(p.Data, "kept") }

// KeptDisk is the directory of one of them.
func (p Paths) KeptDisk(id string) string { return filepath.Join(p.Kept(), id) }

// RAM is the RAM file of a cold-booted box.
func (p Paths) RAM(id string) string { return filepath.Join(p.Box(id), "ram.img") }

// Overlays is the directory of the clones made ahead.
func (p Paths) Overlays() string { return filepath.Join(p.Data, "overlays") }

// VMM is a box's runtime directory.
func (p Paths) VMM(id string) string { return filepath.Join(p.Run, id) }

// Lease is where the leader's last word is.
func (p Paths) Lease() string { return filepath.Join(p.Run, "lease.json") }

// Guard is the directory that daemon and guard share.
func (p Paths) Guard() string { return filepath.Join(p.Run, "guard") }

// Usage is the directory of what boxes have used.
func (p Paths) Usage() string { return filepath.Join(p.Run, "usage") }

// Restore is where vm.restore reads a box's state from.
func (p Paths) Restore(id string) string { return filepath.Join(p.Box(id), "restore") }

// State is what a box was saved in, complete; StateTmp while its VMM writes it.
func (p Paths) State(id string) string { return filepath.Join(p.Box(id), "state") }

// StateTmp belongs to the VMM's user.
func (p Paths) StateTmp(id string) string { return filepath.Join(p.Box(id), "state.tmp") }

// Captures is the directory of the captures.
func (p Paths) Captures() string { return filepath.Join(p.Data, "captures") }

// VMMLog is what a box's VMM wrote.
func (p Paths) VMMLog(id string) string { return vmm.LogPath(p.VMM(id)) }

// Serial is the log of a box's serial console.
func (p Paths) Serial(id string) string { return vmm.SerialPath(p.VMM(id)) }

// Make makes the directories that every box needs. Others may pass through them
// and not list: VMMs that an earlier daemon started reach their files by path.
func (p Paths) Make() error {
	for _, dir := range []string{p.Data, p.Boxes(), p.Overlays(), p.Captures(), p.Kept(), p.Run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return nil
}

// Remove deletes every file of a box.
func (p Paths) Remove(id string) error {
	err := errors.Join(os.RemoveAll(p.Box(id)), os.RemoveAll(p.VMM(id)))
	if err != nil {
		return fmt.Errorf("remove files: %w", err)
	}
	return nil
}
