package meter

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// segment is what boxes used in a span of time within one month.
type segment struct {
	From, To time.Time
	// First says that it is the first of a run of the daemon, which has no clock in
	// common with the one before.
	First bool
	boxes map[string]*hostapi.BoxUsage
	own   bool // of this run of the daemon
}

// written is a segment on disk.
type written struct {
	From  time.Time          `json:"from"`
	To    time.Time          `json:"to"`
	First bool               `json:"first,omitempty"`
	Boxes []hostapi.BoxUsage `json:"boxes"`
}

// MarshalJSON implements json.Marshaler.
func (s *segment) MarshalJSON() ([]byte, error) {
	return json.Marshal(written{s.From, s.To, s.First, s.list()})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *segment) UnmarshalJSON(raw []byte) error {
	var w written
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	*s = segment{From: w.From, To: w.To, First: w.First, boxes: make(map[string]*hostapi.BoxUsage, len(w.Boxes))}
	for _, b := range w.Boxes {
		s.add(b)
	}
	return nil
}

func newSegment(at time.Time) *segment {
	return &segment{From: at, To: at, boxes: map[string]*hostapi.BoxUsage{}, own: true}
}

// list are the boxes in the order of their ids.
func (s *segment) list() []hostapi.BoxUsage {
	out := make([]hostapi.BoxUsage, 0, len(s.boxes))
	for _, b := range s.boxes {
		out = append(out, *b)
	}
	slices.SortFunc(out, func(a, b hostapi.BoxUsage) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (s *segment) add(u hostapi.BoxUsage) {
	b, ok := s.boxes[u.ID]
	if !ok {
		b = &hostapi.BoxUsage{ID: u.ID}
		s.boxes[u.ID] = b
	}
	b.RunMS += u.RunMS
	b.MemoryMS += u.MemoryMS
	b.DiskMS += u.DiskMS
	b.CPUMS += u.CPUMS
}

// join adds a later segment.
func (s *segment) join(later *segment) {
	for _, b := range later.boxes {
		s.add(*b)
	}
	s.To = maxTime(s.To, later.To)
}

// joinable reports whether a batch may have both.
func (s *segment) joinable(later *segment) bool { return monthEnd(s.From).Equal(monthEnd(later.From)) }

// monthEnd is when the month of a time ends, in UTC.
func monthEnd(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// clone returns a deep copy.
func (s *segment) clone() *segment {
	c := *s
	c.boxes = make(map[string]*hostapi.BoxUsage, len(s.boxes))
	for id, b := range s.boxes {
		u := *b
		c.boxes[id] = &u
	}
	return &c
}
