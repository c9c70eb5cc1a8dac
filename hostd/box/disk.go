package box

import (
	"fmt"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// A box's disk is a sparse file that may grow to its size, and most never do. So
// what all of them may still take is promised by a factor more than there is: the
// operator says which.

// diskRoom is how the disk was found, outside of the host's lock.
type diskRoom struct {
	free   int64
	others int64            // what volumes may still take
	growth map[string]int64 // what each box may still take
}

func (h *Host) lookForRoom() (diskRoom, error) {
	free, err := h.diskFree(h.paths.Data)
	if err != nil {
		return diskRoom{}, fmt.Errorf("look for free disk space: %w", err)
	}
	room := diskRoom{free: free, growth: map[string]int64{}}
	if h.promised != nil {
		room.others = h.promised()
	}
	h.mu.Lock()
	boxes := make([]*box, 0, len(h.boxes))
	for _, b := range h.boxes {
		boxes = append(boxes, b)
	}
	h.mu.Unlock()
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

// diskFits refuses a disk that the host could not hold if it had nothing else,
// whatever it promises.
func (h *Host) diskFits(diskMB int) error {
	size, err := h.diskSize(h.paths.Data)
	if err != nil {
		return fmt.Errorf("look for the disk's size: %w", err)
	}
	if headroom := int64(h.cfg.DiskHeadroomMB) << 20; int64(diskMB)<<20 > size-headroom {
		return fmt.Errorf("%w: it has %d MB, and all of %s has %d, of which %d must stay free", hosterr.ErrNoDisk, diskMB, h.paths.Data, size>>20, headroom>>20)
	}
	return nil
}

// admitDiskLocked refuses a disk of a size for which there is no room, and says how
// many bytes are missing. Boxes that came since the look have all of theirs before
// them. The caller holds the lock.
func (h *Host) admitDiskLocked(room diskRoom, diskMB int) (missing int64, err error) {
	promised := int64(diskMB) << 20
	for id, b := range h.boxes {
		if left, seen := room.growth[id]; seen {
			promised += left
		} else {
			promised += int64(b.record().DiskMB) << 20
		}
	}
	factor := int64(max(h.cfg.DiskOvercommit, 1))
	headroom := int64(h.cfg.DiskHeadroomMB) << 20
	if left := room.free - room.others - promised/factor; left < headroom {
		return headroom - left, fmt.Errorf("%w: %d MB are free under %s, %d of them are promised to volumes; all sandboxes may still write %d MB, of which one in %d is kept for them, and %d must stay free",
			hosterr.ErrNoDisk, room.free>>20, h.paths.Data, room.others>>20, promised>>20, factor, headroom>>20)
	}
	return 0, nil
}

// DiskPromised is what is kept on the disk for what boxes may still write.
func (h *Host) DiskPromised() int64 {
	room, err := h.lookForRoom()
	if err != nil {
		return 0
	}
	sum := int64(0)
	for _, left := range room.growth {
		sum += left
	}
	return sum / int64(max(h.cfg.DiskOvercommit, 1))
}

// room refuses what would not leave the headroom free.
func (h *Host) room(need int64) error {
	return h.captures.MakeRoom(func() (missing int64, err error) {
		free, err := h.diskFree(h.paths.Data)
		if err != nil {
			return 0, fmt.Errorf("look for free disk space: %w", err)
		}
		headroom := int64(h.cfg.DiskHeadroomMB) << 20
		if missing = headroom + need - free; missing > 0 {
			err = fmt.Errorf("%w: %d MB are free under %s, up to %d are needed and %d must stay free",
				hosterr.ErrNoDisk, free>>20, h.paths.Data, need>>20, headroom>>20)
		}
		return missing, err
	})
}
