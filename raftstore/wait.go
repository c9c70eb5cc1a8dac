package raftstore

import (
	"context"
	"errors"
	"sync"
)

// waits counts the goroutines that wait for an answer of Raft's, which cannot
// be told to stop waiting. Once it is closed no new one starts.
type waits struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // made by close; closed when none is left
}

// start runs f in a goroutine, unless the store is past taking work.
func (w *waits) start(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.n++
	go func() {
		defer w.end()
		f()
	}()
	return true
}

func (w *waits) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	if w.closed && w.n == 0 {
		close(w.idle)
	}
}

// close lets nothing start any more and returns a channel that is closed when
// everything has ended. It is called once.
func (w *waits) close() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.idle = make(chan struct{})
	if w.n == 0 {
		close(w.idle)
	}
	return w.idle
}

var errNoWait = errors.New("the store takes no work")

// call waits for f no longer than ctx. f goes on in its goroutine.
func (w *waits) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !w.start(func() { done <- f() }) {
		return errNoWait
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
