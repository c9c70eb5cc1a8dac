package raftstore

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// watches publishes states and wakes those who wait for a table to change.
// There is one channel for each distinct set of tables waited for, however
// many wait, so that a caller who gives up leaves nothing behind.
type watches struct {
	current atomic.Pointer[state]

	mu      sync.Mutex
	last    map[string]uint64 // table → generation that changed it last
	waiting map[string]*waiter
}

type waiter struct {
	tables []string
	ch     chan struct{}
}

var closedCh = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func newWatches(first *state) *watches {
	w := &watches{last: map[string]uint64{}, waiting: map[string]*waiter{}}
	w.current.Store(first)
	return w
}

// publish makes a state the current one and wakes the watchers of the tables.
// Both happen under one lock: who sees the new state is not woken for it.
func (w *watches) publish(s *state, touched map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current.Store(s)
	if len(touched) == 0 {
		return
	}
	for t := range touched {
		w.last[t] = s.gen
	}
	for key, wt := range w.waiting {
		if slices.ContainsFunc(wt.tables, func(t string) bool { return touched[t] }) {
			close(wt.ch)
			delete(w.waiting, key)
		}
	}
}

func (w *watches) changed(since uint64, tables []string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range tables {
		if w.last[t] > since {
			return closedCh
		}
	}
	sorted := slices.Clone(tables)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	key := strings.Join(sorted, "\x00")
	wt := w.waiting[key]
	if wt == nil {
		wt = &waiter{tables: sorted, ch: make(chan struct{})}
		w.waiting[key] = wt
	}
	return wt.ch
}
