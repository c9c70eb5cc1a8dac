package box

import (
	"fmt"
	"sync"

	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Reserve takes memory for a guest that is no box, as an admission of a box of
// these sizes does: a template's build is one. The caller releases it once the
// guest has ended.
func (h *Host) Reserve(memoryMB, diskMB int) (release func(), err error) {
	if err := h.room(0); err != nil {
		return nil, err
	}
	if err := h.diskFits(diskMB); err != nil {
		return nil, err
	}
	need := memoryMB + h.cfg.OverheadMB
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reservedMB+need > h.cfg.MemoryMB {
		return nil, fmt.Errorf("%w: it takes %d MB, and %d of %d MB are reserved", hosterr.ErrNoMemory, need, h.reservedMB, h.cfg.MemoryMB)
	}
	h.reservedMB += need
	return sync.OnceFunc(func() {
		h.mu.Lock()
		h.reservedMB -= need
		h.mu.Unlock()
		h.notify()
	}), nil
}
