package ledger

import (
	"errors"
	"maps"
	"sync"
	"time"
)

// maxWaiting is how many changes wait for the disk at most. Every box has one at
// a time, so a disk that works has far fewer.
const maxWaiting = 1024

var errClosed = errors.New("ledger is closed")

// change is something that the writer does to the journal.
type change struct {
	entry entry
	line  []byte // the entry, as it is written

	prune  time.Time // instead of an entry: tombstones from before go
	pruned int

	done chan struct{} // closed when err is set, and the change is shown
	err  error
}

// writer is the only one who writes the journal. Changes that arrive while the
// disk is busy are written together, with one flush.
type writer struct {
	ledger *Ledger
	log    *journal
	wake   chan struct{} // capacity 1: something waits, or it is to end
	ended  chan struct{}

	mu      sync.Mutex // short, too
	waiting []*change
	closed  bool
	since   time.Time // when the present write began; zero: there is none
}

func newWriter(l *Ledger, log *journal) *writer {
	w := &writer{ledger: l, log: log, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// do returns when c is on disk, or has failed.
func (w *writer) do(c *change) error {
	c.done = make(chan struct{})
	w.mu.Lock()
	switch {
	case w.closed:
		w.mu.Unlock()
		return errClosed
	case len(w.waiting) >= maxWaiting:
		w.mu.Unlock()
		return ErrOverloaded
	}
	w.waiting = append(w.waiting, c)
	w.mu.Unlock()
	w.kick()
	<-c.done
	return c.err
}

func (w *writer) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *writer) close() error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if !first {
		return errClosed
	}
	w.kick()
	<-w.ended
	return w.log.close()
}

func (w *writer) stalled() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}

func (w *writer) run() {
	defer close(w.ended)
	for range w.wake {
		for {
			batch, closed := w.next()
			if len(batch) == 0 {
				if closed {
					return
				}
				break
			}
			w.write(batch)
		}
	}
}

// next takes everything that waits.
func (w *writer) next() (batch []*change, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch, w.waiting = w.waiting, nil
	return batch, w.closed
}

// timed writes to the disk, and lets others see for how long.
func (w *writer) timed(write func() error) error {
	w.work(time.Now())
	defer w.work(time.Time{})
	return write()
}

func (w *writer) work(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = since
}

// write does changes in their order. Entries go to the disk together.
func (w *writer) write(batch []*change) {
	for len(batch) > 0 {
		n := 0
		for n < len(batch) && batch[n].line != nil {
			n++
		}
		if n == 0 {
			batch[0].pruned, batch[0].err = w.prune(batch[0].prune)
			close(batch[0].done)
			batch = batch[1:]
			continue
		}
		w.append(batch[:n])
		batch = batch[n:]
	}
}

// append writes entries, or none of them, and shows them.
func (w *writer) append(batch []*change) {
	var lines []byte
	for _, c := range batch {
		lines = append(lines, c.line...)
	}
	err := w.timed(func() error {
		if w.log.full() {
			// Nobody else changes the state.
			if err := w.log.rewrite(w.ledger.state.entries()); err != nil && !w.log.canWait(err, len(lines)) {
				return err
			}
		}
		return w.log.append(lines)
	})
	w.ledger.mu.Lock()
	for _, c := range batch {
		if c.err = err; err == nil {
			c.err = w.ledger.state.apply(c.entry)
		}
	}
	w.ledger.mu.Unlock()
	for _, c := range batch {
		close(c.done)
	}
}

func (w *writer) prune(before time.Time) (int, error) {
	now := w.ledger.state
	kept := now
	kept.tombstones = maps.Clone(now.tombstones)
	maps.DeleteFunc(kept.tombstones, func(_ string, s Tombstone) bool { return s.DeletedAt.Before(before) })
	n := len(now.tombstones) - len(kept.tombstones)
	if n == 0 {
		return 0, nil
	}
	if err := w.timed(func() error { return w.log.rewrite(kept.entries()) }); err != nil {
		return 0, err
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.ledger.state = kept
	return n, nil
}
