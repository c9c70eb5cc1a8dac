package events

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// stream is one sandbox's events: the last size in memory, more on disk. The
// time of its events grows strictly, so that a time names a place in it.
type stream struct {
	disk *journal // by time
	size int      // of ring, at most

	mu                  sync.Mutex
	workspace, template string
	ring                []hostapi.Event
	last                time.Time // of the newest event
	keys                map[string]struct{}
	keyOrder            []string // oldest first
	closed              bool
	followers           int           // who may have yet to read what is on disk
	changed             chan struct{} // closed at the next event, or the end
}

const (
	defaultRing = 512
	maxKeys     = 4096 // remembered, a sandbox
	all         = math.MaxInt
)

// millis is the key of a sandbox's events.
func millis(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) }

// openStream reads what is on disk of a sandbox's events.
func openStream(dir string, ring int, partBytes int64, log *slog.Logger) (s *stream, err error) {
	s = &stream{size: ring, keys: map[string]struct{}{}, changed: make(chan struct{})}
	byTime := func(e *hostapi.Event) uint64 { return millis(e.Time) }
	s.disk, err = openJournal(dir, limit{partBytes, 2}, byTime, log, func(e entry) { s.push(&e) })
	return s, err
}

// push adds an event to what is in memory. The caller holds the lock.
func (s *stream) push(e *entry) {
	if len(s.ring) == s.size {
		s.ring = slices.Delete(s.ring, 0, 1)
	}
	s.ring = append(s.ring, e.Event)
	s.last = e.Time
	if e.WorkspaceID != "" {
		s.workspace, s.template = e.WorkspaceID, e.Template
	}
	if _, known := s.keys[e.Key]; e.Key == "" || known {
		return
	}
	if len(s.keyOrder) >= maxKeys {
		delete(s.keys, s.keyOrder[0])
		s.keyOrder = s.keyOrder[1:]
	}
	s.keys[e.Key] = struct{}{}
	s.keyOrder = append(s.keyOrder, e.Key)
}

// stamp is the time of the next event. The caller holds the lock.
func (s *stream) stamp(now time.Time) time.Time {
	now = now.UTC().Truncate(time.Millisecond)
	if !now.After(s.last) {
		now = s.last.Add(time.Millisecond)
	}
	return now
}

// wake tells those who follow. The caller holds the lock.
func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// after returns the oldest events that are later than t and still there, at most
// so many, a channel that is closed when there are more, and whether there will
// be none.
func (s *stream) after(t time.Time, most int) (found []hostapi.Event, changed <-chan struct{}, closed bool, err error) {
	s.mu.Lock()
	ring, changed, closed := slices.Clone(s.ring), s.changed, s.closed
	s.mu.Unlock()
	if len(ring) == s.size && ring[0].Time.After(t) {
		if found, err = s.disk.read(millis(t), millis(ring[0].Time), most, all); err != nil {
			return nil, changed, closed, err
		}
	}
	for _, e := range ring {
		if e.Time.After(t) && len(found) < most {
			found = append(found, e)
		}
	}
	return found, changed, closed, nil
}

// tail returns how many events are asked for at most, unless it is all since a time.
func tail(q hostapi.EventQuery) (n int, bounded bool) {
	if q.Tail != nil {
		return *q.Tail, true
	}
	return hostapi.DefaultEventTail, q.Since.IsZero()
}

// start returns the time after which the events that are asked for come.
func (s *stream) start(q hostapi.EventQuery) (time.Time, error) {
	n, bounded := tail(q)
	if !bounded {
		return q.Since, nil
	}
	s.mu.Lock()
	newest, last := slices.Clone(s.ring), s.last
	s.mu.Unlock()
	if n > len(newest) {
		var err error
		if newest, _, _, err = s.after(q.Since, all); err != nil {
			return q.Since, err
		}
	}
	at := last
	if n = min(n, len(newest)); n > 0 {
		at = newest[len(newest)-n].Time.Add(-time.Millisecond)
	}
	if at.Before(q.Since) {
		at = q.Since
	}
	return at, nil
}

// join counts a follower, for whom what is on disk stays until it leaves, also after the
// stream's end.
func (s *stream) join() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return hosterr.ErrNotFound
	}
	s.followers++
	return nil
}

// leave removes what is on disk if this was the last follower of a closed stream.
func (s *stream) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followers--; s.followers > 0 || !s.closed {
		return nil
	}
	return s.remove()
}

// end closes the stream and removes what is on disk, or sets it aside for its followers.
func (s *stream) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.wake()
	if s.followers > 0 && s.disk.setAside() == nil {
		return nil
	}
	return s.remove()
}

func (s *stream) remove() error {
	if err := s.disk.remove(); err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return nil
}
