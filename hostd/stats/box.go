package stats

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/redact"
)

// totals are what a box has used, and what of the kernel's counters is in that. The
// file of a box has them.
type totals struct {
	Since    time.Time     `json:"since"`
	CPU      time.Duration `json:"cpu_ns"`
	Received int64         `json:"received_bytes"`
	Sent     int64         `json:"sent_bytes"`

	SeenCPU      time.Duration `json:"seen_cpu_ns"` // of the present cgroup
	Slot         int           `json:"slot"`        // whose counters are meant
	SeenReceived int64         `json:"seen_received_bytes"`
	SeenSent     int64         `json:"seen_sent_bytes"`
}

// box is what is known of one box's use. mu is held while the kernel is asked, and never
// for a disk, which may hang.
type box struct {
	meter *Stats
	id    string

	mu      sync.Mutex
	known   bool // totals are those of the file, or new ones
	totals  totals
	at      time.Time // of the last reading
	memory  int64
	disk    int64
	history history
}

// hasVMM reports whether a box's counters may grow.
func hasVMM(b hostapi.Box) bool {
	return b.Status == hostapi.StatusRunning || b.Status == hostapi.StatusPaused || b.Status == hostapi.StatusStarting
}

// sample measures the box and adds to its history. One without a VMM uses nothing.
func (b *box) sample(ctx context.Context, is hostapi.Box) {
	disk := b.meter.cfg.Disk(b.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.meter.cfg.Clock()
	if hasVMM(is) {
		b.disk = disk
		b.read(ctx, is, now)
		b.history.add(now, b.totals, b.memory, b.disk)
	} else {
		b.history.begin(now, b.totals)
	}
	b.history.prune(now.Add(-hostapi.MaxUsageHistory))
}

// show measures the box, unless that was done a moment ago, and returns what is known.
func (b *box) show(ctx context.Context, is hostapi.Box, history time.Duration) hostapi.BoxStats {
	disk := b.meter.cfg.Disk(b.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.meter.cfg.Clock()
	if !b.known || now.Sub(b.at) >= fresh {
		b.disk = disk
		b.read(ctx, is, now)
	}
	return hostapi.BoxStats{
		At: b.at, Since: b.totals.Since, CPU: b.totals.CPU, ReceivedBytes: b.totals.Received, SentBytes: b.totals.Sent,
		MemoryBytes: b.memory, DiskBytes: b.disk, Every: b.meter.cfg.Every, History: b.history.since(now.Add(-history)),
	}
}

// end measures the box for the last time before its cgroup is removed. The next one
// counts from zero.
func (b *box) end(ctx context.Context, is hostapi.Box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read(ctx, is, b.meter.cfg.Clock())
	b.totals.SeenCPU = 0
	b.save()
}

// read asks the kernel. The caller holds the lock.
func (b *box) read(ctx context.Context, is hostapi.Box, now time.Time) {
	m := b.meter
	first := !b.known && !b.load(is)
	group, there, err := m.cfg.Group(b.id)
	if err != nil {
		m.cfg.Log.DebugContext(ctx, "use of a box's cgroup is not known", "sandbox_id", redact.ID(b.id), "error", err)
	}
	b.at, b.memory = now, 0
	before := b.totals
	if there && err == nil {
		b.memory = group.MemoryBytes
		b.totals.CPU += grown(group.CPU, b.totals.SeenCPU)
		b.totals.SeenCPU = group.CPU
	}
	if is.Slot >= 0 {
		b.readTap(ctx, is.Slot)
	}
	switch {
	case first && is.CreatedAt.Before(m.began):
		// The box ran before this daemon measured it. Totals from before may be incomplete,
		// so they begin now.
		b.totals.Since, b.totals.CPU, b.totals.Received, b.totals.Sent = now, 0, 0, 0
	case first:
		b.history.begin(b.totals.Since, totals{})
	}
	if b.totals != before || first {
		b.save()
	}
}

func (b *box) readTap(ctx context.Context, slot int) {
	m, t := b.meter, &b.totals
	if t.Slot != slot {
		t.Slot = slot
		t.SeenReceived, t.SeenSent = m.lastTap(slot, b.id)
	}
	received, sent, err := m.cfg.Traffic(ctx, slot)
	if err != nil {
		m.cfg.Log.DebugContext(ctx, "traffic of a box is not known", "sandbox_id", redact.ID(b.id), "error", err)
		return
	}
	t.Received += grown(received, t.SeenReceived)
	t.Sent += grown(sent, t.SeenSent)
	t.SeenReceived, t.SeenSent = received, sent
	m.noteTap(slot, tap{b.id, received, sent})
}

// grown is by how much a counter has grown. One that is lower than before began again.
func grown[T ~int64](now, before T) T {
	if now < before {
		return now
	}
	return now - before
}

// load takes the totals of the box's file, or begins with none and returns false.
func (b *box) load(is hostapi.Box) (found bool) {
	b.known = true
	b.totals = totals{Since: is.CreatedAt, Slot: -1}
	raw, err := os.ReadFile(b.path())
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	var t totals
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Since.IsZero() {
		b.meter.cfg.Log.Warn("the totals of a box are lost", "sandbox_id", redact.ID(b.id), "error", err)
		return false
	}
	b.totals = t
	return true
}

// save writes the totals. The file is replaced and not synced: it is in memory, and
// lives no longer than the kernel's counters.
func (b *box) save() {
	raw, err := json.Marshal(b.totals)
	if err == nil {
		tmp := filepath.Join(b.meter.cfg.Dir, "."+b.id)
		if err = os.WriteFile(tmp, raw, 0o600); err == nil {
			err = os.Rename(tmp, b.path())
		}
	}
	if err != nil {
		b.meter.cfg.Log.Warn("the totals of a box were not written", "sandbox_id", redact.ID(b.id), "error", err)
	}
}

func (b *box) path() string { return filepath.Join(b.meter.cfg.Dir, b.id) }
