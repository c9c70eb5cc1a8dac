package events

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// stream is one sandbox's events: the last ringSize in memory, more in two
// files that replace each other. The time of its events grows strictly, so that
// a time names a place in it.
type stream struct {
	path string // of the newer file; the older one has olderSuffix
	keep int64  // size at which the newer becomes the older, in bytes

	mu                  sync.Mutex
	workspace, template string
	ring                []hostapi.Event
	dropped             time.Time // of the newest event that is not in the ring
	last                time.Time // of the newest event
	size                int64     // of the newer file
	keys                map[string]struct{}
	keyOrder            []string // oldest first
	closed              bool
	changed             chan struct{} // closed at the next event, or the end
}

const (
	ringSize    = 512
	maxKeys     = 4096 // remembered, a sandbox
	olderSuffix = ".1"
)

// openStream reads what is on disk of a sandbox's events.
func openStream(path string, keep int64) (s *stream, damaged int, err error) {
	s = &stream{path: path, keep: keep, keys: map[string]struct{}{}, changed: make(chan struct{})}
	for _, name := range []string{path + olderSuffix, path} {
		raw, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read events: %w", err)
		}
		bad, end := scan(raw, func(e entry, _, _ int) bool {
			s.remember(e.Key)
			if e.Time.After(s.last) {
				s.push(e.Event)
			}
			return true
		})
		damaged += bad
		if name == path {
			s.size = int64(end)
			if end < len(raw) {
				if err := os.Truncate(path, s.size); err != nil {
					return nil, 0, fmt.Errorf("read events: %w", err)
				}
			}
		}
	}
	return s, damaged, nil
}

// push adds an event to the ring. The caller holds the lock.
func (s *stream) push(e hostapi.Event) {
	if len(s.ring) == ringSize {
		s.dropped = s.ring[0].Time
		copy(s.ring, s.ring[1:])
		s.ring = s.ring[:ringSize-1]
	}
	s.ring = append(s.ring, e)
	s.last = e.Time
	if e.WorkspaceID != "" {
		s.workspace, s.template = e.WorkspaceID, e.Template
	}
}

// remember keeps a key, and forgets the oldest. The caller holds the lock.
func (s *stream) remember(key string) {
	if key == "" {
		return
	}
	if _, ok := s.keys[key]; ok {
		return
	}
	if len(s.keyOrder) >= maxKeys {
		delete(s.keys, s.keyOrder[0])
		s.keyOrder = s.keyOrder[1:]
	}
	s.keys[key] = struct{}{}
	s.keyOrder = append(s.keyOrder, key)
}

// stamp is the time of the next event. The caller holds the lock.
func (s *stream) stamp(now time.Time) time.Time {
	now = now.UTC().Truncate(time.Millisecond)
	if !now.After(s.last) {
		now = s.last.Add(time.Millisecond)
	}
	return now
}

// write appends a line to the file. It is not synced: a process that is killed
// loses nothing, a power cut the last seconds. The caller holds the lock.
func (s *stream) write(line []byte) error {
	if s.size > 0 && s.size+int64(len(line)) > s.keep {
		if err := os.Rename(s.path, s.path+olderSuffix); err != nil {
			return fmt.Errorf("rotate events: %w", err)
		}
		s.size = 0
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteAt(line, s.size); err != nil {
		_ = f.Truncate(s.size)
		return fmt.Errorf("write event: %w", err)
	}
	s.size += int64(len(line))
	return nil
}

// wake tells those who follow. The caller holds the lock.
func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// lastOnes returns the newest n events, at most those of the ring.
func (s *stream) lastOnes(n int) (found []hostapi.Event, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ring[max(0, len(s.ring)-n):]), s.last
}

// after returns every event that is later than t and still there, a channel that
// is closed when there are more, and whether there will be none.
func (s *stream) after(t time.Time) (found []hostapi.Event, changed <-chan struct{}, closed bool, err error) {
	s.mu.Lock()
	changed, closed = s.changed, s.closed
	missing := t.Before(s.dropped) && !s.closed
	ring := slices.Clone(s.ring)
	s.mu.Unlock()
	if missing {
		// Without the lock: a rotation meanwhile moves events from one file to the
		// other, so the older one is read last, and what is in both counts once.
		var newer, older []hostapi.Event
		if newer, err = readAfter(s.path, t, ring[0].Time); err == nil {
			older, err = readAfter(s.path+olderSuffix, t, ring[0].Time)
		}
		if err != nil {
			return nil, changed, closed, err
		}
		found = append(older, newer...)
		slices.SortFunc(found, func(a, b hostapi.Event) int { return a.Time.Compare(b.Time) })
		found = slices.CompactFunc(found, func(a, b hostapi.Event) bool { return a.Time.Equal(b.Time) })
	}
	for _, e := range ring {
		if e.Time.After(t) {
			found = append(found, e)
		}
	}
	return found, changed, closed, nil
}

// readAfter returns a file's events that are later than t and earlier than end.
func readAfter(path string, t, end time.Time) (found []hostapi.Event, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	scan(raw, func(e entry, _, _ int) bool {
		if e.Time.After(t) && e.Time.Before(end) {
			found = append(found, e.Event)
		}
		return true
	})
	return found, nil
}

// end closes the stream and removes its files.
func (s *stream) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.wake()
	err := errors.Join(ignoreMissing(os.Remove(s.path)), ignoreMissing(os.Remove(s.path+olderSuffix)))
	if err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
