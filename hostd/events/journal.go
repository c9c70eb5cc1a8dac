package events

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// journal is a bounded, append-only record of events: a directory of parts, each
// a file that is named after the key of its first event. Keys grow strictly. The
// oldest parts go by number and, with prune, by age; the newest stays.
//
// Appends are not synced: a daemon that is killed loses nothing, a power cut takes
// the last seconds.
type journal struct {
	dir   string
	limit limit
	key   func(*hostapi.Event) uint64

	mu    sync.Mutex
	parts []part
}

type limit struct {
	bytes int64 // of a part
	parts int
}

// part is one file, and where the events in it are.
type part struct {
	first  uint64 // which names it
	size   int64
	newest time.Time // of its events
	lines  []line
}

// line says where an event ends in its part.
type line struct {
	key uint64
	end int64
}

const partSuffix = ".events"

func (j *journal) path(first uint64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%020d%s", first, partSuffix))
}

// openJournal visits what is there, from the oldest event on. A line that was
// being written is cut off; lines that are damaged are left out.
func openJournal(dir string, l limit, key func(*hostapi.Event) uint64, log *slog.Logger, visit func(entry)) (*journal, error) {
	j := &journal{dir: dir, limit: l, key: key}
	files, err := os.ReadDir(dir) // sorted: the numbers have one length
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("open events: %w", err)
	}
	last, damaged := uint64(0), 0
	for _, f := range files {
		number, ok := strings.CutSuffix(f.Name(), partSuffix)
		first, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			continue
		}
		raw, err := os.ReadFile(j.path(first))
		if err != nil {
			return nil, fmt.Errorf("open events: %w", err)
		}
		p := part{first: first}
		var bad int
		bad, p.size = scan(raw, func(e entry, end int64) {
			if k := key(&e.Event); k > last {
				p.lines, p.newest, last = append(p.lines, line{k, end}), e.Time, k
				visit(e)
			}
		})
		damaged += bad
		if p.size < int64(len(raw)) {
			if err := os.Truncate(j.path(first), p.size); err != nil {
				return nil, fmt.Errorf("open events: %w", err)
			}
		}
		j.parts = append(j.parts, p)
	}
	if damaged > 0 {
		log.Warn("events have damaged lines, which are left out", "lines", damaged)
	}
	return j, nil
}

// append adds an event, whose line is text.
func (j *journal) append(e *hostapi.Event, text []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	key, n := j.key(e), len(j.parts)
	if n == 0 || j.parts[n-1].size > 0 && j.parts[n-1].size+int64(len(text)) > j.limit.bytes {
		if err := os.MkdirAll(j.dir, 0o700); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
		j.parts = append(j.parts, part{first: key})
		j.drop(func(part) bool { return len(j.parts) > j.limit.parts })
	}
	p := &j.parts[len(j.parts)-1]
	if err := writeAt(j.path(p.first), text, p.size); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	p.size += int64(len(text))
	p.newest, p.lines = e.Time, append(p.lines, line{key, p.size})
	return nil
}

// writeAt writes all of text or, as far as the disk lets it, nothing.
func writeAt(path string, text []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.WriteAt(text, at); err != nil {
		_ = f.Truncate(at) // or the next line goes over it
	}
	return err
}

// prune removes parts whose newest event is older than age.
func (j *journal) prune(now time.Time, age time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.drop(func(oldest part) bool { return now.Sub(oldest.newest) > age })
}

// drop removes the oldest part for as long as it should go, and is not the newest.
// One that cannot be removed is tried again the next time. The caller holds the lock.
func (j *journal) drop(goes func(oldest part) bool) {
	for len(j.parts) > 1 && goes(j.parts[0]) && ignoreMissing(os.Remove(j.path(j.parts[0].first))) == nil {
		j.parts = slices.Delete(j.parts, 0, 1)
	}
}

// setAside gives the record another directory beside its own, which may be another's then.
// It is read as before, and one that is left over is removed at the next start.
func (j *journal) setAside() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	aside := fmt.Sprintf("%s.%d", j.dir, time.Now().UnixNano())
	if err := os.Rename(j.dir, aside); err != nil {
		return err
	}
	j.dir = aside
	return nil
}

// remove removes the whole record.
func (j *journal) remove() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.parts = nil
	return os.RemoveAll(j.dir)
}

// span returns the keys of the oldest and the newest event, 0 where there is none,
// and the size of all parts.
func (j *journal) span() (first, last uint64, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range j.parts {
		bytes += p.size
		if n := len(p.lines); n > 0 {
			last = p.lines[n-1].key
			if first == 0 {
				first = p.lines[0].key
			}
		}
	}
	return first, last, bytes
}

// read returns the events whose keys are above after and below before, oldest
// first: at most so many, and of each part about so many bytes of lines.
func (j *journal) read(after, before uint64, most int, bytes int64) (found []hostapi.Event, err error) {
	j.mu.Lock()
	parts := slices.Clone(j.parts)
	j.mu.Unlock()
	for len(parts) > 0 {
		p := &parts[0]
		from := sort.Search(len(p.lines), func(i int) bool { return p.lines[i].key > after })
		to := sort.Search(len(p.lines), func(i int) bool { return p.lines[i].key >= before })
		if to = min(to, from+min(most-len(found), len(p.lines))); from >= to {
			parts = parts[1:]
			continue
		}
		start := int64(0)
		if from > 0 {
			start = p.lines[from-1].end
		}
		for to > from+1 && p.lines[to-1].end-start > bytes {
			to--
		}
		raw, err := j.readBetween(p.first, start, p.lines[to-1].end)
		if errors.Is(err, os.ErrNotExist) {
			parts = parts[1:] // dropped meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		scan(raw, func(e entry, _ int64) { found = append(found, e.Event) })
		if len(found) > 0 && to < len(p.lines) {
			break
		}
		after = p.lines[to-1].key // none of these, if they were damaged meanwhile
	}
	return found, nil
}

func (j *journal) readBetween(first uint64, start, end int64) ([]byte, error) {
	j.mu.Lock() // or it may be set aside before its name is opened
	f, err := os.Open(j.path(first))
	j.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, start, end-start))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
