// Package applog keeps what a build or an app writes: a bounded log on disk that is
// read by offset, also while it grows.
package applog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// DefaultMax is how much of a log is kept at least, in bytes. Twice as much, less one
// byte, at most: a segment goes when the next is full.
const DefaultMax = 2 << 20

// Log is a log: segments in a directory, each named after the offset of its first byte,
// so that offsets go on after a restart. Only the last two are kept.
type Log struct {
	dir string
	max int64

	mu      sync.Mutex
	f       *os.File // the last segment; nil: it could not be opened
	base    int64    // its first offset
	first   int64    // of the oldest segment
	end     int64
	more    chan struct{} // closed when something is added, or the log ends
	ended   bool
	dropped int64 // bytes that the disk did not take since the last that it took
}

// Open opens the log in dir, or makes it. max is the size of a segment; 0: DefaultMax.
func Open(dir string, max int64) (*Log, error) {
	if max <= 0 {
		max = DefaultMax
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &Log{dir: dir, max: max, more: make(chan struct{})}
	segments, err := l.segments()
	if err != nil {
		return nil, err
	}
	if len(segments) > 0 {
		l.first, l.base = segments[0], segments[len(segments)-1]
	}
	if l.f, err = os.OpenFile(l.path(l.base), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	st, err := l.f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.end = l.base + st.Size()
	return l, nil
}

// segments lists the first offsets of what there is, in order.
func (l *Log) segments() ([]int64, error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	var out []int64
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n >= 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (l *Log) path(base int64) string { return filepath.Join(l.dir, fmt.Sprintf("%020d", base)) }

// Write adds to the log. It never fails: a command must not end because its log's disk
// is full. What is lost so is told in the log, once there is room.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		if l.end-l.base >= l.max {
			l.rotate()
		}
		if l.dropped > 0 {
			note := fmt.Sprintf("\n[%d bytes were lost: the disk is full]\n", l.dropped)
			if l.add([]byte(note)) < len(note) {
				l.dropped += int64(len(rest))
				break
			}
			l.dropped = 0
		}
		part := rest[:min(int64(len(rest)), max(l.max-(l.end-l.base), 1))]
		n := l.add(part)
		rest = rest[n:]
		if n < len(part) {
			l.dropped += int64(len(rest))
			break
		}
	}
	l.wake()
	return len(p), nil
}

func (l *Log) add(p []byte) int {
	if l.f == nil {
		return 0
	}
	n, _ := l.f.Write(p)
	l.end += int64(n)
	return n
}

// rotate begins a segment. If the disk has no room for one, the last goes on.
func (l *Log) rotate() {
	f, err := os.OpenFile(l.path(l.end), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	_ = l.f.Close()
	if l.first < l.base {
		_ = os.Remove(l.path(l.first))
	}
	l.f, l.first, l.base = f, l.base, l.end
}

func (l *Log) wake() {
	close(l.more)
	l.more = make(chan struct{})
}

// Finish ends the log: followers get what there is, and no more is taken.
func (l *Log) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
}

// End is the offset behind the last byte.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Close closes the files. Nothing is read or written afterwards.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// Remove closes the log and deletes it.
func (l *Log) Remove() error { return errors.Join(l.Close(), os.RemoveAll(l.dir)) }
