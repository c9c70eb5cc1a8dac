package box

import (
	"fmt"
	"sync"

	"github.com/berth-cloud/berth/hostd/hosterr"
)

// memory counts what is promised to boxes, and to the guests of builds, in MB.
type memory struct {
	limit int

	mu       sync.Mutex
	reserved int
}

// fits refuses what is more than is left. size is for the message: all that the
// box takes.
func (m *memory) fits(mb, size int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fitsLocked(mb, size)
}

func (m *memory) fitsLocked(mb, size int) error {
	if m.reserved+mb > m.limit {
		return fmt.Errorf("%w: it takes %d MB, and %d of %d MB are reserved", hosterr.ErrNoMemory, size, m.reserved, m.limit)
	}
	return nil
}

// take reserves memory if it fits.
func (m *memory) take(mb, size int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fitsLocked(mb, size); err != nil {
		return err
	}
	m.reserved += mb
	return nil
}

// add reserves memory whether or not it fits, because it is in use. A negative
// amount is given back.
func (m *memory) add(mb int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserved += mb
}

func (m *memory) total() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reserved
}

// reserve takes memory for a box that has none.
func (b *box) reserve() error {
	b.mu.Lock()
	want := b.rec.ReservedMB - b.reserved
	b.mu.Unlock()
	if err := b.host.memory.take(want, want); err != nil {
		return err
	}
	b.mu.Lock()
	b.reserved += want
	b.mu.Unlock()
	return nil
}

// unreserve gives a box's memory back.
func (b *box) unreserve() {
	b.mu.Lock()
	mb := b.reserved
	b.reserved = 0
	b.mu.Unlock()
	b.host.memory.add(-mb)
}

// adoptReserve reserves the memory that a recovered box has, or is entitled to,
// once.
func (b *box) adoptReserve() {
	b.mu.Lock()
	mb := b.rec.ReservedMB - b.reserved
	b.reserved += mb
	b.mu.Unlock()
	b.host.memory.add(mb)
}

// passReserve hands the box's reservation over to another box.
func (b *box) passReserve(to *box) {
	b.mu.Lock()
	mb := b.reserved
	b.reserved = 0
	b.mu.Unlock()
	to.mu.Lock()
	to.reserved += mb
	to.mu.Unlock()
}

// Reserve takes memory for a guest that is no box, as an admission of a box of
// these sizes does: a template's build is one. The caller releases it once the
// guest has ended.
func (h *Host) Reserve(memoryMB, diskMB int) (release func(), err error) {
	if err := h.disk.room(0); err != nil {
		return nil, err
	}
	if err := h.disk.fits(diskMB); err != nil {
		return nil, err
	}
	need := memoryMB + h.cfg.OverheadMB
	if err := h.memory.take(need, need); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		h.memory.add(-need)
		h.notify()
	}), nil
}

// ReservedMB is the memory that boxes have been promised.
func (h *Host) ReservedMB() int { return h.memory.total() }

// OverheadMB is what admission adds to each box's memory for its engine.
func (h *Host) OverheadMB() int { return h.cfg.OverheadMB }
