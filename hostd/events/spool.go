package events

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// spool keeps every event of the host, in the order of Seq, for replicas that
// are away: segments named after their first Seq, of which the oldest go by
// size and age. The newest always stays: it says which numbers were given.
type spool struct {
	dir     string
	segment int64 // size at which the next one begins, in bytes
	total   int64 // size of all, in bytes
	age     time.Duration

	mu       sync.Mutex
	segments []segment // by their first Seq
	file     *os.File  // the newest, nil before the first event
	last     uint64
	changed  chan struct{} // closed at the next append
}

type segment struct {
	first  uint64
	last   uint64
	size   int64
	newest time.Time // of its events
}

const segmentSuffix = ".events"

func (sp *spool) path(first uint64) string {
	return filepath.Join(sp.dir, fmt.Sprintf("%020d%s", first, segmentSuffix))
}

// openSpool reads what is there. A line that was being written is cut off.
func openSpool(dir string, segmentSize, total int64, age time.Duration) (*spool, int, error) {
	sp := &spool{dir: dir, segment: segmentSize, total: total, age: age, changed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, fmt.Errorf("open event spool: %w", err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("open event spool: %w", err)
	}
	damaged := 0
	for _, n := range names { // sorted: the numbers have one length
		first, err := strconv.ParseUint(strings.TrimSuffix(n.Name(), segmentSuffix), 10, 64)
		if err != nil || !strings.HasSuffix(n.Name(), segmentSuffix) {
			continue
		}
		raw, err := os.ReadFile(sp.path(first))
		if err != nil {
			return nil, 0, fmt.Errorf("open event spool: %w", err)
		}
		seg := segment{first: first, last: first - 1}
		bad, end := scan(raw, func(e entry, _, _ int) bool {
			seg.last, seg.newest = max(seg.last, e.Seq), e.Time
			return true
		})
		damaged += bad
		seg.size = int64(end)
		if end < len(raw) {
			if err := os.Truncate(sp.path(first), seg.size); err != nil {
				return nil, 0, fmt.Errorf("open event spool: %w", err)
			}
		}
		sp.segments = append(sp.segments, seg)
		sp.last = max(sp.last, seg.last)
	}
	return sp, damaged, nil
}

// append adds the line of the event with number seq.
func (sp *spool) append(line []byte, seq uint64, at time.Time) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if n := len(sp.segments); n == 0 || sp.file == nil || sp.segments[n-1].size >= sp.segment {
		if err := sp.begin(seq); err != nil {
			return err
		}
	}
	seg := &sp.segments[len(sp.segments)-1]
	n, err := sp.file.WriteAt(line, seg.size)
	if err != nil {
		if n > 0 {
			_ = sp.file.Truncate(seg.size) // or the next line goes over it
		}
		return fmt.Errorf("spool event: %w", err)
	}
	seg.size += int64(len(line))
	seg.last, seg.newest = seq, at
	sp.last = seq
	close(sp.changed)
	sp.changed = make(chan struct{})
	return nil
}

// begin opens the newest segment or, where that is full, another.
func (sp *spool) begin(seq uint64) error {
	n := len(sp.segments)
	fresh := n == 0 || sp.segments[n-1].size >= sp.segment
	first := seq
	if !fresh {
		first = sp.segments[n-1].first
	}
	f, err := os.OpenFile(sp.path(first), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("spool event: %w", err)
	}
	if sp.file != nil {
		sp.file.Close()
	}
	sp.file = f
	if fresh {
		sp.segments = append(sp.segments, segment{first: first, last: first - 1})
	}
	return nil
}

// prune removes the oldest segments that are too many or too old.
func (sp *spool) prune(now time.Time) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	var sum int64
	for _, s := range sp.segments {
		sum += s.size
	}
	for len(sp.segments) > 1 {
		oldest := sp.segments[0]
		if sum <= sp.total && now.Sub(oldest.newest) <= sp.age {
			return nil
		}
		if err := os.Remove(sp.path(oldest.first)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("prune event spool: %w", err)
		}
		sum -= oldest.size
		sp.segments = slices.Delete(sp.segments, 0, 1)
	}
	return nil
}

// bytes is the size of all segments.
func (sp *spool) bytes() (sum int64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, s := range sp.segments {
		sum += s.size
	}
	return sum
}

// reader is one replica's place in the spool.
type reader struct {
	seq     uint64 // up to which the replica has all
	segment uint64 // where the next one is looked for, and from which byte
	offset  int64
}

// seek puts the place after seq.
func (r *reader) seek(seq uint64) {
	if seq < r.seq {
		r.segment, r.offset = 0, 0
	}
	r.seq = seq
}

// read returns the next events after the reader's place, of one segment, at most
// max of them and about maxBytes of their lines; the oldest Seq that is there;
// and a channel that is closed when there are more. The place stays where it is
// until seek.
func (sp *spool) read(r *reader, most int, maxBytes int64) (found []hostapi.Event, first uint64, changed <-chan struct{}, err error) {
	sp.mu.Lock()
	segments := slices.Clone(sp.segments)
	changed = sp.changed
	sp.mu.Unlock()
	if len(segments) > 0 {
		first = segments[0].first
	}
	for _, s := range segments {
		if s.last <= r.seq {
			continue
		}
		if s.first != r.segment {
			r.segment, r.offset = s.first, 0
		}
		var skipped int64
		if found, skipped, err = sp.readSegment(s, r.offset, r.seq, most, maxBytes); err != nil {
			return nil, first, changed, err
		}
		r.offset += skipped
		if len(found) > 0 {
			break
		}
	}
	return found, first, changed, nil
}

// readSegment returns events of one segment after seq, and how far from offset
// the last one before the first of them ends.
func (sp *spool) readSegment(s segment, offset int64, seq uint64, most int, maxBytes int64) (found []hostapi.Event, skipped int64, err error) {
	f, err := os.Open(sp.path(s.first))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil // pruned meanwhile
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read event spool: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.NewSectionReader(f, offset, s.size-offset))
	if err != nil {
		return nil, 0, fmt.Errorf("read event spool: %w", err)
	}
	var taken int64
	scan(raw, func(e entry, at, next int) bool {
		if e.Seq <= seq {
			skipped = int64(next)
			return true
		}
		if taken += int64(next - at); len(found) >= most || len(found) > 0 && taken > maxBytes {
			return false
		}
		found = append(found, e.Event)
		return true
	})
	return found, skipped, nil
}

func (sp *spool) close() error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.file == nil {
		return nil
	}
	err := sp.file.Close()
	sp.file = nil
	if err != nil {
		return fmt.Errorf("close event spool: %w", err)
	}
	return nil
}
