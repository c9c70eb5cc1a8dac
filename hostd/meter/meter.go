// Package meter measures what the boxes of a host use, and keeps it in a file until the
// leader has written it down. It looks at the boxes every second; what it saw is on disk
// ten seconds later at most. Nothing is counted twice: what was handed out is handed out
// again, unchanged and under the same number, until the leader names that number.
//
// docs/billing.md says what is counted; DESIGN.md in controlplane/usage how it goes on.
package meter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

const (
	lookEvery  = time.Second
	writeEvery = 10 * time.Second
	// maxDrift is how far the host's idea of the leader's clock may be off.
	maxDrift = 5 * time.Second
	// maxSegments bounds those that wait for a leader: each run of the daemon and each
	// month begins one.
	maxSegments = 32
)

// Box is what is looked at of a box.
type Box struct {
	ID        string
	Status    hostapi.Status
	StartedAt time.Time // by the host's clock
}

// Config is what a Meter needs.
type Config struct {
	File string
	// Boxes returns every box; false: the daemon does not know them yet.
	Boxes func() ([]Box, bool)
	// CPU is the processor time that a box has used since its group was made; false: it
	// has none.
	CPU func(id string) (time.Duration, bool)
	// Now is the host's clock, which may jump. Elapsed does not: it is the time since
	// some beginning.
	Now     func() time.Time
	Elapsed func() time.Duration
	// Uptime is the time since the machine started, by a clock that does not jump, and
	// the name of that start; nil, or an empty name: it is not known, and nothing is
	// counted of the time in which no daemon ran.
	Uptime func() (boot string, up time.Duration)
	Log    *slog.Logger
}

// Meter measures. Its methods may be called concurrently.
type Meter struct {
	cfg Config

	mu       sync.Mutex
	journal  journal
	epoch    string
	sequence uint64              // of the last batch
	sealed   *hostapi.UsageBatch // handed out; nil: none
	open     []*segment          // on disk, the oldest first
	pending  *segment            // not on disk yet; nil: nothing was looked at
	begun    bool                // a segment of this run is on disk
	written  *lastSeen           // how boxes were where that ends which is on disk; nil: not known

	base time.Time     // the leader's clock when Elapsed was 0, as far as is known
	last time.Duration // Elapsed at the last look
	seen map[string]*sighting
}

// sighting is how a box was at the last look.
type sighting struct {
	status hostapi.Status
	cpu    time.Duration
	known  bool // cpu is
}

// Open reads the file of an earlier daemon, or begins one.
func Open(cfg Config) (*Meter, error) {
	m := &Meter{cfg: cfg, journal: journal{path: cfg.File}}
	err := readJournal(cfg.File, m.apply)
	if errors.Is(err, errDamaged) {
		cfg.Log.Error("what boxes used and no leader has written down is lost", "file", cfg.File+".damaged", "error", err)
		m.sealed, m.open, m.epoch, m.written = nil, nil, "", nil
		err = setAside(cfg.File)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what boxes used: %w", err)
	}
	if m.epoch == "" {
		raw := make([]byte, 8)
		rand.Read(raw) // never fails: crypto/rand ends the process first
		m.epoch, m.sequence = hex.EncodeToString(raw), 0
	}
	// A clock that was set back must not make this run look like an earlier one.
	now, gap := cfg.Now(), m.gap()
	if n := len(m.open); n > 0 {
		now = maxTime(now, m.open[n-1].To.Add(gap))
	} else if m.sealed != nil {
		now = maxTime(now, m.sealed.To.Add(gap))
	}
	m.base = now.Add(-m.elapsed())
	if err := m.rewrite(); err != nil {
		// The disk may be full, and the host must start to make room on it. The next
		// write is a rewrite, too.
		cfg.Log.Error("what boxes use is not written down now, it is tried again", "file", cfg.File, "error", err)
		m.journal.broken = true
	}
	return m, nil
}

// apply takes a line of the journal.
func (m *Meter) apply(l line) error {
	switch {
	case l.Header != nil:
		m.epoch, m.sequence, m.written = l.Header.Epoch, l.Header.Sequence, l.Header.Seen
	case l.Sealed != nil:
		m.sealed = l.Sealed
	case l.Sample != nil:
		m.keep(l.Sample)
		m.written = l.Seen // none, if an earlier version wrote it
	case l.Seal > 0 && len(m.open) > 0:
		m.seal(l.Seal)
	default:
		return errors.New("a line without meaning")
	}
	return nil
}

// keep adds what is on disk now.
func (m *Meter) keep(s *segment) {
	if n := len(m.open); n > 0 && !s.First && m.open[n-1].joinable(s) {
		m.open[n-1].join(s)
		return
	}
	m.open = append(m.open, s)
	for i := 0; len(m.open) > maxSegments && i+1 < len(m.open); {
		if !m.open[i].joinable(m.open[i+1]) {
			i++
			continue
		}
		m.open[i].join(m.open[i+1])
		m.open[i].own = false
		m.open = slices.Delete(m.open, i+1, i+2)
	}
}

// seal makes a batch of the oldest segment.
func (m *Meter) seal(sequence uint64) {
	s := m.open[0]
	m.open = m.open[1:]
	m.sequence = sequence
	m.sealed = &hostapi.UsageBatch{Epoch: m.epoch, Sequence: sequence, From: s.From, To: s.To, Boxes: s.list()}
}

// rewrite writes the whole state anew.
func (m *Meter) rewrite() error {
	lines := []line{{Header: &header{Format: format, Epoch: m.epoch, Sequence: m.sequence, Seen: m.written}}}
	if m.sealed != nil {
		lines = append(lines, line{Sealed: m.sealed})
	}
	for i, s := range m.open {
		first := *s
		first.First = i == 0 || s.First || !m.open[i-1].joinable(s)
		lines = append(lines, line{Sample: &first})
	}
	if len(m.open) > 0 {
		lines[len(lines)-1].Seen = m.written
	}
	return m.journal.rewrite(lines)
}

// append writes a line, or everything if it is time for that. The state has the line
// already.
func (m *Meter) append(l line) error {
	if m.journal.full() {
		return m.rewrite()
	}
	return m.journal.append(l)
}

// now is the leader's clock, as far as is known.
func (m *Meter) now() time.Time { return m.base.Add(m.elapsed()).UTC() }

// elapsed is in whole milliseconds, as everything that is counted.
func (m *Meter) elapsed() time.Duration { return m.cfg.Elapsed().Truncate(time.Millisecond) }

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var written time.Duration
	for {
		select {
		case <-ctx.Done():
			m.Look()
			m.Write()
			m.mu.Lock()
			m.journal.close()
			m.mu.Unlock()
			return
		case <-tick.C:
		}
		m.Look()
		if now := m.elapsed(); now-written >= writeEvery {
			written = now
			m.Write()
		}
	}
}

// Look counts the time since the last look. Boxes are taken to have been since then as
// they were found at that look.
func (m *Meter) Look() {
	boxes, ok := m.cfg.Boxes()
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok {
		m.look(boxes)
		m.countCPU() // a box that ends takes its counter with it
	}
}

// stretch is a time that ends with a look, which a box spent in one status.
type stretch struct {
	id     string
	status hostapi.Status
	took   time.Duration
}

func (m *Meter) look(boxes []Box) {
	slice, at := m.elapsed()-m.last, m.now()
	first := m.seen == nil
	m.last += slice
	gap := time.Duration(0)
	if first {
		gap = m.gap()
	}
	if m.pending == nil {
		m.pending = newSegment(at.Add(-gap))
	}
	seen := make(map[string]*sighting, len(boxes))
	spent := make([]stretch, 0, len(boxes))
	for _, b := range boxes {
		before, known := m.seen[b.ID]
		now := &sighting{status: b.Status}
		seen[b.ID] = now
		switch {
		case first: // what was before is known from the file, or not at all
			spent = append(spent, m.afterGap(b, now, gap))
		case known:
			now.cpu, now.known = before.cpu, before.known
			spent = append(spent, stretch{b.ID, during(before.status, b.Status), slice})
		default:
			now.known = true // a new box has used nothing before
			began := m.cfg.Now().Sub(b.StartedAt).Truncate(time.Millisecond)
			spent = append(spent, stretch{b.ID, b.Status, min(slice, max(0, began))})
		}
	}
	m.seen = seen
	if end := monthEnd(m.pending.From); at.After(end) { // a batch lies within one month
		in := at.Sub(end)
		for i := range spent {
			m.count(spent[i], max(0, spent[i].took-in))
			spent[i].took = min(spent[i].took, in)
		}
		for _, s := range spent { // what is written is of then, not of now
			if now := seen[s.id]; now != nil {
				now.status = s.status
			}
		}
		m.pending.To = end
		m.write()
		for _, b := range boxes {
			seen[b.ID].status = b.Status
		}
	}
	for _, s := range spent {
		m.count(s, s.took)
	}
	m.pending.To = maxTime(m.pending.To, at)
}

// during is the status that a box is taken to have had since the last look. One that
// ended meanwhile is taken to have ended at once.
func during(before, now hostapi.Status) hostapi.Status {
	if now == hostapi.StatusFailed || now == hostapi.StatusDeleting || now == hostapi.StatusStarting {
		return now
	}
	return before
}

// count adds a part of a stretch.
func (m *Meter) count(s stretch, part time.Duration) {
	u := hostapi.BoxUsage{ID: s.id}
	ms := part.Milliseconds()
	switch s.status {
	case hostapi.StatusRunning:
		u.RunMS, u.MemoryMS, u.DiskMS = ms, ms, ms
	case hostapi.StatusPaused:
		u.MemoryMS, u.DiskMS = ms, ms
	case hostapi.StatusHibernated, hostapi.StatusFailed:
		u.DiskMS = ms
	default:
		return
	}
	if ms > 0 {
		m.pending.add(u)
	}
}

// Write puts what was counted on disk.
func (m *Meter) Write() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write()
}

func (m *Meter) write() {
	if m.pending == nil {
		return
	}
	m.countCPU()
	if len(m.pending.boxes) == 0 {
		m.pending = newSegment(m.pending.To)
		return
	}
	s := m.pending
	s.First = !m.begun
	before, seenBefore := m.open, m.written
	m.open = slices.Clone(before)
	for i, o := range m.open { // what is joined must stay as it is if the write fails
		if i == len(before)-1 || len(before) >= maxSegments {
			m.open[i] = o.clone()
		}
	}
	m.keep(s.clone())
	m.written = m.seenAt(s.To)
	if err := m.append(line{Sample: s, Seen: m.written}); err != nil {
		m.cfg.Log.Error("what boxes use cannot be written down; it is kept in memory", "error", err)
		m.open, m.written = before, seenBefore
		m.journal.broken = true
		return
	}
	m.begun = true
	m.pending = newSegment(s.To)
}

// countCPU adds the processor time that boxes used since it was read last.
func (m *Meter) countCPU() {
	for id, s := range m.seen {
		if s.status == hostapi.StatusStarting {
			continue // what it uses until it runs is read then
		}
		if s.status != hostapi.StatusRunning && s.status != hostapi.StatusPaused {
			// Its group is gone, and the next one counts from zero.
			s.cpu, s.known = 0, s.status == hostapi.StatusHibernated
			continue
		}
		total, ok := m.cfg.CPU(id)
		switch {
		case !ok:
			continue
		case !s.known:
			s.cpu, s.known = total, true
			continue
		case total < s.cpu: // another group
			s.cpu = 0
		}
		if ms := (total - s.cpu).Milliseconds(); ms > 0 {
			m.pending.add(hostapi.BoxUsage{ID: id, CPUMS: ms})
			s.cpu += time.Duration(ms) * time.Millisecond
		}
	}
}

// Next returns the batch after one that was written down; without a sequence: nothing
// was used. now is the leader's clock.
func (m *Meter) Next(after hostapi.UsageCursor, now time.Time) (hostapi.UsageBatch, error) {
	boxes, ready := m.cfg.Boxes()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.follow(now); err != nil {
		return hostapi.UsageBatch{}, err
	}
	if after.Epoch == m.epoch {
		if m.sealed != nil && after.Sequence >= m.sealed.Sequence {
			m.sealed = nil
		}
		m.sequence = max(m.sequence, after.Sequence) // this file may be a restored one
	}
	if m.sealed == nil {
		if ready {
			m.look(boxes)
			m.write()
		}
		if len(m.open) == 0 {
			return hostapi.UsageBatch{}, nil
		}
		open, sequence := m.open, m.sequence
		m.seal(sequence + 1)
		if err := m.append(line{Seal: m.sequence}); err != nil {
			m.open, m.sequence, m.sealed, m.journal.broken = open, sequence, nil, true
			return hostapi.UsageBatch{}, fmt.Errorf("write down a batch of usage: %w", err)
		}
	}
	out := *m.sealed
	out.More = len(m.open) > 0
	return out, nil
}

// follow sets the clock by which usage is dated to the leader's, and with it what was
// dated by the wrong one and not handed out.
func (m *Meter) follow(now time.Time) error {
	if now.IsZero() {
		return nil
	}
	off := now.Sub(m.now())
	if off.Abs() <= maxDrift {
		return nil
	}
	m.cfg.Log.Warn("the host's clock differs from the leader's; usage is dated by the leader's", "seconds", off.Seconds())
	m.base = m.base.Add(off)
	if m.pending != nil {
		m.pending.From, m.pending.To = m.pending.From.Add(off), m.pending.To.Add(off)
	}
	moved := false
	for i, s := range m.open {
		if s.own {
			c := s.clone()
			c.From, c.To = s.From.Add(off), s.To.Add(off)
			m.open[i], moved = c, true
		}
	}
	if !moved {
		return nil
	}
	if err := m.rewrite(); err != nil {
		m.journal.broken = true
		return fmt.Errorf("date usage anew: %w", err)
	}
	return nil
}
