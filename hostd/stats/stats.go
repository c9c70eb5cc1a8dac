// Package stats measures what boxes use: CPU time and memory from their cgroups, bytes
// from the counters of their taps, and the blocks of their disks. It keeps totals, and
// an hour of samples in memory.
//
// The kernel counts only while a cgroup or a tap exists, so each reading is added to a
// total as the difference to the one before. Both are in a file of the runtime
// directory, so a daemon that was killed loses nothing of the totals: the kernel goes
// on counting, and the next daemon adds the difference.
package stats

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Reading is what the kernel counts of a box at a moment.
type Reading struct {
	CPU         time.Duration // since its cgroup was made
	MemoryBytes int64
}

// Config says what is measured, and how. Clock and Every have defaults.
type Config struct {
	// Boxes are the boxes of this host, complete. Box finds one of them.
	Boxes func() []hostapi.Box
	Box   func(id string) (hostapi.Box, error)
	// Group reads a box's cgroup; there is none of a box without a VMM.
	Group func(id string) (r Reading, there bool, err error)
	// Traffic reads the counters of a slot, which begin at zero when it is made.
	Traffic func(ctx context.Context, slot int) (received, sent int64, err error)
	Disk    func(id string) int64 // bytes that the box's disk takes
	Dir     string                // of the totals; it goes with a reboot of the machine, as what the kernel counts does
	Every   time.Duration         // between samples; default 10 s
	Clock   func() time.Time
	Log     *slog.Logger
}

const (
	defaultEvery = 10 * time.Second
	// fresh is how old a reading may be that answers instead of another one.
	fresh = time.Second
)

// Stats measures the boxes of a host. Its methods may be called concurrently.
type Stats struct {
	cfg   Config
	began time.Time

	mu    sync.Mutex
	boxes map[string]*box
	taps  map[int]tap // by slot
}

// tap is which box was last seen to have a slot, and how far its counters had come.
type tap struct {
	box            string
	received, sent int64
}

// New returns a meter that measures when it is asked; Run also measures by itself.
func New(cfg Config) (*Stats, error) {
	if cfg.Every == 0 {
		cfg.Every = defaultEvery
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	return &Stats{cfg: cfg, began: cfg.Clock(), boxes: map[string]*box{}, taps: map[int]tap{}}, nil
}

// Run measures every box until ctx ends.
func (m *Stats) Run(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.Every)
	defer ticker.Stop()
	for {
		m.Sample(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Sample measures every box once, and forgets those that are gone.
func (m *Stats) Sample(ctx context.Context) {
	boxes := m.cfg.Boxes()
	m.forget(boxes)
	for _, b := range boxes {
		if ctx.Err() != nil {
			return
		}
		m.of(b.ID).sample(ctx, b)
	}
}

// Usage measures a box, and returns its history of so long.
func (m *Stats) Usage(ctx context.Context, id string, history time.Duration) (hostapi.BoxStats, error) {
	b, err := m.cfg.Box(id)
	if err != nil {
		return hostapi.BoxStats{}, err
	}
	if history < 0 || history > hostapi.MaxUsageHistory {
		return hostapi.BoxStats{}, hosterr.Invalid("history is %s, want up to %s", history, hostapi.MaxUsageHistory)
	}
	return m.of(id).show(ctx, b, history), nil
}

// Ending measures a box whose cgroup is about to be removed.
func (m *Stats) Ending(ctx context.Context, id string) {
	if b, err := m.cfg.Box(id); err == nil {
		m.of(id).end(ctx, b)
	}
}

func (m *Stats) of(id string) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.boxes[id]
	if b == nil {
		b = &box{meter: m, id: id}
		m.boxes[id] = b
	}
	return b
}

// forget drops what is known of boxes that are gone, and the files of those of which an
// earlier daemon knew.
func (m *Stats) forget(boxes []hostapi.Box) {
	there := make(map[string]bool, len(boxes))
	for _, b := range boxes {
		there[b.ID] = true
	}
	m.mu.Lock()
	for id := range m.boxes {
		if !there[id] {
			delete(m.boxes, id)
		}
	}
	for slot, t := range m.taps {
		if !there[t.box] {
			delete(m.taps, slot)
		}
	}
	m.mu.Unlock()
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		m.cfg.Log.Warn("totals of boxes that are gone stay", "error", err)
		return
	}
	for _, e := range entries {
		if !there[strings.TrimPrefix(e.Name(), ".")] {
			_ = os.Remove(filepath.Join(m.cfg.Dir, e.Name()))
		}
	}
}

// lastTap returns how far a slot's counters had come when another box, which is still
// there, had it: the parent of a warm fork, whose child goes on with the same tap.
func (m *Stats) lastTap(slot int, id string) (received, sent int64) {
	m.mu.Lock()
	t := m.taps[slot]
	m.mu.Unlock()
	if t.box == "" || t.box == id {
		return 0, 0
	}
	if _, err := m.cfg.Box(t.box); err != nil {
		return 0, 0 // gone, and its slot was made anew
	}
	return t.received, t.sent
}

func (m *Stats) noteTap(slot int, t tap) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taps[slot] = t
}
