package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// proposer gathers the transactions of concurrent callers into log entries. It
// does not wait for more of them: it hands an entry to Raft as soon as Raft takes
// one, with what has come in while Raft was writing the one before. DESIGN.md,
// "Entries", has what this gains over an entry a transaction.
type proposer struct {
	s *Store

	mu      sync.Mutex
	queue   []*proposal
	bytes   int // of the queue
	stopped bool
	wake    chan struct{} // capacity 1
	done    chan struct{} // closed by stop
	exited  chan struct{} // closed when run has returned
}

// The most that may wait for the log. While the log is being written, far less waits.
const (
	maxQueued      = 4096
	maxQueuedBytes = 64 << 20
)

// proposal is one transaction on its way into the log.
type proposal struct {
	data   []byte
	answer chan outcome // capacity 1
}

func newProposer(s *Store) *proposer {
	return &proposer{s: s, wake: make(chan struct{}, 1), done: make(chan struct{}), exited: make(chan struct{})}
}

// propose waits until the transaction is applied or refused. When ctx ends
// first, a transaction that is still queued is withdrawn; one that is not may
// still be applied.
func (p *proposer) propose(ctx context.Context, data []byte) outcome {
	pr := &proposal{data: data, answer: make(chan outcome, 1)}
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return outcome{err: p.s.gone()}
	}
	if len(p.queue) >= maxQueued || p.bytes+len(data) > maxQueuedBytes {
		p.mu.Unlock()
		return outcome{err: ErrOverloaded}
	}
	p.queue = append(p.queue, pr)
	p.bytes += len(data)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	select {
	case out := <-pr.answer:
		return out
	case <-ctx.Done():
	}
	if p.withdraw(pr) {
		return outcome{err: fmt.Errorf("nothing written: %w", ctx.Err())}
	}
	select {
	case out := <-pr.answer: // both were ready
		return out
	default:
		return outcome{err: fmt.Errorf("%w: %w", ErrLeadershipLost, ctx.Err())}
	}
}

func (p *proposer) withdraw(pr *proposal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, q := range p.queue {
		if q == pr {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			p.bytes -= len(pr.data)
			return true
		}
	}
	return false
}

func (p *proposer) run() {
	defer close(p.exited)
	for {
		batch := p.next()
		if len(batch) == 0 {
			select {
			case <-p.wake:
				continue
			case <-p.done:
				return
			}
		}
		// Blocks while Raft's main loop is busy, which is when a batch grows.
		future := p.s.raft.Apply(encodeBatch(batch), 0)
		p.s.counters.entries.Add(1)
		p.s.waits.start(func() { p.settle(future, batch) })
	}
}

// next takes what is queued, up to the size of an entry.
func (p *proposer) next() []*proposal {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size := 0, 0
	for n < len(p.queue) && (n == 0 || size+len(p.queue[n].data) <= maxEntryBytes) {
		size += len(p.queue[n].data)
		n++
	}
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	p.bytes -= size
	if len(p.queue) == 0 {
		p.queue = nil
	}
	return batch
}

func encodeBatch(batch []*proposal) []byte {
	size := 16
	for _, pr := range batch {
		size += len(pr.data)
	}
	b := appendEntryHeader(make([]byte, 0, size), len(batch))
	for _, pr := range batch {
		b = append(b, pr.data...)
	}
	return b
}

// settle answers every caller of an entry.
func (p *proposer) settle(future raft.ApplyFuture, batch []*proposal) {
	err := applyError(future.Error())
	var outcomes []outcome
	if err == nil {
		switch r := future.Response().(type) {
		case []outcome:
			outcomes = r
		case error:
			// It is committed, and others who understand it have applied it.
			err = fmt.Errorf("%w: %w", ErrLeadershipLost, r)
		}
	}
	for i, pr := range batch {
		if err != nil {
			pr.answer <- outcome{err: err}
		} else {
			pr.answer <- outcomes[i]
		}
	}
}

// applyError tells what certainly did not happen from what may have.
func applyError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	default:
		return fmt.Errorf("%w: %w", ErrLeadershipLost, err)
	}
}

// stop refuses new transactions and answers those still queued.
func (p *proposer) stop() {
	p.mu.Lock()
	queue := p.queue
	p.queue, p.bytes = nil, 0
	first := !p.stopped
	p.stopped = true
	p.mu.Unlock()
	for _, pr := range queue {
		pr.answer <- outcome{err: p.s.gone()}
	}
	if first {
		close(p.done)
	}
}
