package box

import (
	"fmt"
	"syscall"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// disk admits what is written to the file system of Paths.Data.
//
// A box's disk is a sparse file that may grow to its full size, and most never
// do. So more is promised to all boxes together than there is, by a factor that
// the operator sets.
type disk struct {
	path       string
	headroom   int64 // bytes that stay free
	overcommit int64
	free, size func(path string) (int64, error)
	promised   func() int64 // what others may still take, in bytes; nil: nothing
	// makeRoom runs check, which says how many bytes are missing, and runs it
	// again once it has freed as many.
	makeRoom func(check func() (missing int64, err error)) error
}

func newDisk(cfg *Config, d *Deps) disk {
	return disk{
		path: cfg.Paths.Data, headroom: int64(cfg.DiskHeadroomMB) << 20, overcommit: int64(max(cfg.DiskOvercommit, 1)),
		free: d.DiskFree, size: d.DiskSize, promised: d.Promised,
	}
}

// diskRoom is how the disk was found, outside of the host's lock.
type diskRoom struct {
	free   int64
	others int64            // what volumes may still take
	growth map[string]int64 // what each box may still take
}

func (d *disk) look(boxes []*box) (diskRoom, error) {
	free, err := d.free(d.path)
	if err != nil {
		return diskRoom{}, fmt.Errorf("look for free disk space: %w", err)
	}
	room := diskRoom{free: free, growth: map[string]int64{}}
	if d.promised != nil {
		room.others = d.promised()
	}
	for _, b := range boxes {
		room.growth[b.id] = b.growth()
	}
	return room, nil
}

// growth is what a box may still write to the disk.
func (b *box) growth() int64 {
	rec := b.record()
	left := max(int64(rec.DiskMB)<<20-capture.Allocated(b.host.paths.Overlay(b.id)), 0)
	if ram := capture.Allocated(b.host.paths.RAM(b.id)); ram > 0 { // the RAM of one that was booted is a file
		left += max(int64(rec.MemoryMB)<<20-ram, 0)
	}
	return left
}

// fits refuses a disk that the host could not hold even if it held nothing
// else.
func (d *disk) fits(diskMB int) error {
	size, err := d.size(d.path)
	if err != nil {
		return fmt.Errorf("look for the disk's size: %w", err)
	}
	if int64(diskMB)<<20 > size-d.headroom {
		return fmt.Errorf("%w: it has %d MB, and all of %s has %d, of which %d must stay free", hosterr.ErrNoDisk, diskMB, d.path, size>>20, d.headroom>>20)
	}
	return nil
}

// admit refuses a disk for which there is no room beside those of boxes, and
// says how many bytes are missing. A box that was made since the look is
// counted with its full size.
func (d *disk) admit(room diskRoom, boxes map[string]*box, diskMB int) (missing int64, err error) {
	promised := int64(diskMB) << 20
	for id, b := range boxes {
		if left, seen := room.growth[id]; seen {
			promised += left
		} else {
			promised += int64(b.record().DiskMB) << 20
		}
	}
	if left := room.free - room.others - promised/d.overcommit; left < d.headroom {
		return d.headroom - left, fmt.Errorf("%w: %d MB are free under %s, %d of them are promised to volumes; all sandboxes may still write %d MB, of which one in %d is kept for them, and %d must stay free",
			hosterr.ErrNoDisk, room.free>>20, d.path, room.others>>20, promised>>20, d.overcommit, d.headroom>>20)
	}
	return 0, nil
}

// room refuses what would not leave the headroom free.
func (d *disk) room(need int64) error {
	return d.makeRoom(func() (missing int64, err error) {
		free, err := d.free(d.path)
		if err != nil {
			return 0, fmt.Errorf("look for free disk space: %w", err)
		}
		if missing = d.headroom + need - free; missing > 0 {
			err = fmt.Errorf("%w: %d MB are free under %s, up to %d are needed and %d must stay free",
				hosterr.ErrNoDisk, free>>20, d.path, need>>20, d.headroom>>20)
		}
		return missing, err
	})
}

// DiskPromised is what is kept on the disk for what boxes may still write.
func (h *Host) DiskPromised() int64 {
	room, err := h.disk.look(h.all())
	if err != nil {
		return 0
	}
	sum := int64(0)
	for _, left := range room.growth {
		sum += left
	}
	return sum / h.disk.overcommit
}

func diskFree(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func diskSize(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Blocks-(st.Bfree-st.Bavail)) * st.Bsize, nil
}
