package meter

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Boxes go on while the daemon does not run. What they use meanwhile is counted when the
// next run finds them: from the moment at which the last sample on disk ends. A run that
// dies before it has written that down counts nothing, and the next one counts from the
// same moment, so no time counts twice.

// maxGap bounds what is counted of a time in which no daemon ran.
const maxGap = 24 * time.Hour

// lastSeen is how boxes were at the end of a sample.
type lastSeen struct {
	Boot  string    `json:"boot"`  // of the machine: after another boot, no box went on
	Up    int64     `json:"up_ms"` // of the machine, at the end of the sample
	Boxes []boxSeen `json:"boxes"`
}

type boxSeen struct {
	ID     string         `json:"id"`
	Status hostapi.Status `json:"status"`
	CPU    int64          `json:"cpu_ms"` // that is counted of its group; below 0: unknown
}

// seenAt is how boxes were at a time that was just looked at; nil: it cannot be said.
func (m *Meter) seenAt(at time.Time) *lastSeen {
	if m.cfg.Uptime == nil {
		return nil
	}
	boot, up := m.cfg.Uptime()
	if boot == "" {
		return nil
	}
	out := &lastSeen{Boot: boot, Up: (up - max(0, m.now().Sub(at))).Milliseconds(), Boxes: make([]boxSeen, 0, len(m.seen))}
	for id, s := range m.seen {
		b := boxSeen{ID: id, Status: s.status, CPU: -1}
		if s.known {
			b.CPU = s.cpu.Milliseconds()
		}
		out.Boxes = append(out.Boxes, b)
	}
	slices.SortFunc(out.Boxes, func(a, b boxSeen) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// gap is the time since the last sample of an earlier run of the daemon ended.
func (m *Meter) gap() time.Duration {
	if m.written == nil || m.cfg.Uptime == nil {
		return 0
	}
	boot, up := m.cfg.Uptime()
	if boot != m.written.Boot {
		return 0
	}
	return min(max(0, up.Truncate(time.Millisecond)-time.Duration(m.written.Up)*time.Millisecond), maxGap)
}

// afterGap is the stretch of a box that this run sees for the first time.
func (m *Meter) afterGap(b Box, now *sighting, gap time.Duration) stretch {
	if gap == 0 {
		return stretch{}
	}
	i, known := slices.BinarySearchFunc(m.written.Boxes, b.ID, func(s boxSeen, id string) int { return cmp.Compare(s.ID, id) })
	if !known { // it was made since
		now.known = true
		began := m.cfg.Now().Sub(b.StartedAt).Truncate(time.Millisecond)
		return stretch{b.ID, b.Status, min(gap, max(0, began))}
	}
	before := m.written.Boxes[i]
	now.cpu, now.known = time.Duration(max(0, before.CPU))*time.Millisecond, before.CPU >= 0
	return stretch{b.ID, lesser(before.Status, b.Status), gap}
}

// lesser is the status that uses less: when a box went from one to the other is not
// known.
func lesser(a, b hostapi.Status) hostapi.Status {
	uses := map[hostapi.Status]int{hostapi.StatusRunning: 3, hostapi.StatusPaused: 2, hostapi.StatusHibernated: 1, hostapi.StatusFailed: 1}
	if uses[a] < uses[b] {
		return a
	}
	return b
}
