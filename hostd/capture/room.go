package capture

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// A capture that the snapshot store has can be fetched again, so the copy on this
// host is a cache: it is kept until its room on the disk is needed.

// evictionDelay is how long a capture that was made here stays after it was
// stored: until its record says so, only this host is known to have it.
var evictionDelay = timescale.Limit(30 * time.Minute)

// MakeRoom runs check, which admits something to the disk or says how many
// bytes are missing. If some are, it evicts captures that the snapshot store
// has, and runs check again.
func (l *Local) MakeRoom(check func() (missing int64, err error)) error {
	missing, err := check()
	if missing <= 0 {
		return err
	}
	l.evicting.Lock()
	defer l.evicting.Unlock()
	// Whoever had the lock before may have made room for this one, too.
	if missing, err = check(); missing <= 0 || !l.evict(missing) {
		return err
	}
	_, err = check()
	return err
}

// evict removes captures that take that many bytes together, the least recently
// used first. If all of them take less, none is removed.
func (l *Local) evict(bytes int64) bool {
	var chosen []*capture
	l.mu.Lock()
	for _, c := range l.evictable() {
		if bytes <= 0 {
			break
		}
		chosen = append(chosen, c)
		bytes -= c.info.MemoryBytes + c.info.DiskBytes
	}
	if bytes > 0 {
		chosen = nil
	}
	for _, c := range chosen {
		c.deleted, c.evicted = true, make(chan struct{})
	}
	l.mu.Unlock()
	l.cfg.Changed()
	for _, c := range chosen {
		gone := c.evicted
		err := l.drop(c)
		close(gone)
		if err != nil {
			l.cfg.Log.Error("a capture could not be given up for room on the disk", "capture_id", c.id, "error", err)
			continue
		}
		l.cfg.Log.Info("capture is given up for room on the disk, and stays in the snapshot store", "capture_id", c.id,
			"memory_bytes", c.info.MemoryBytes, "disk_bytes", c.info.DiskBytes)
	}
	l.cfg.Changed()
	return len(chosen) > 0
}

// evictable are the captures that can be fetched again and that nobody uses,
// the least recently used first. The caller holds mu.
func (l *Local) evictable() []*capture {
	var out []*capture
	if l.cfg.Remote == nil {
		return nil
	}
	for id := range l.byID {
		c := l.complete(id)
		if c != nil && c.info.Stored && c.users == 0 && l.cfg.Now().Sub(c.stored) >= evictionDelay {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *capture) int { return a.used.Compare(b.used) })
	return out
}

// touch notes that a capture is used now.
func (l *Local) touch(c *capture) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.used = l.cfg.Now()
}

// awaitEviction waits while a capture is being evicted. It reports whether one was.
func (l *Local) awaitEviction(ctx context.Context, id string) (bool, error) {
	l.mu.Lock()
	var gone chan struct{}
	if c := l.byID[id]; c != nil && c.deleted {
		gone = c.evicted
	}
	l.mu.Unlock()
	if gone == nil {
		return false, nil
	}
	return true, wait(ctx, gone)
}
