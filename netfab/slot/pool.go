package slot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// ErrExhausted: every slot of the host is taken.
var ErrExhausted = errors.New("every network slot is taken")

// Waits between attempts at what failed, such as a slot that is still in use.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Slots is what a Pool needs of a Fabric.
type Slots interface {
	Count() int
	Ensure(ctx context.Context, n int) (Slot, error)
	Remove(ctx context.Context, n int) error
	List(ctx context.Context) ([]int, error)
	InUse(ctx context.Context, n int) error
}

// PoolConfig says how many slots a Pool keeps ready and how many it makes or
// cleans at once.
type PoolConfig struct {
	Ready   int
	Workers int
}

// Pool keeps slots ready in advance. A slot that comes back is removed and
// made anew before another guest gets it: a fresh namespace has no connections,
// neighbours or counters of the last guest. Numbers are used in turn, so that a
// number is reused as late as possible.
//
// Run does the work; the other methods only queue it, and never wait for the
// kernel.
type Pool struct {
	slots Slots
	cfg   PoolConfig
	log   *slog.Logger

	mu      sync.Mutex
	change  chan struct{} // closed and replaced whenever anything below changes
	listed  bool          // Run has read the kernel's list
	ready   []Slot
	free    []int // nothing of them exists, longest rested first
	held    map[int]struct{}
	dirty   map[int]*job // to be removed
	making  int
	waiting int // calls of Take
	retry   time.Duration
	makeAt  time.Time // no attempt at a new slot before
	failure error     // of the last attempt at a new slot
}

// job is one slot that waits to be removed, or is being removed.
type job struct {
	at      time.Time // not before
	wait    time.Duration
	running bool
}

// NewPool makes an empty pool; Run fills it.
func NewPool(slots Slots, cfg PoolConfig, log *slog.Logger) *Pool {
	cfg.Workers = max(cfg.Workers, 1)
	cfg.Ready = min(max(cfg.Ready, 0), slots.Count())
	return &Pool{
		slots: slots, cfg: cfg, log: log,
		change: make(chan struct{}),
		held:   make(map[int]struct{}),
		dirty:  make(map[int]*job),
	}
}

// Hold marks slots as taken by guests that were there before the pool. It must come
// before Run, which removes the slots that it finds in the kernel and that are not
// held.
func (p *Pool) Hold(numbers ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range numbers {
		p.held[n] = struct{}{}
	}
}

// Take returns a free slot. Where none is ready it waits for one, until ctx ends;
// where none can become ready it returns ErrExhausted.
func (p *Pool) Take(ctx context.Context) (Slot, error) {
	p.mu.Lock()
	p.waiting++
	defer func() {
		p.waiting--
		p.mu.Unlock()
	}()
	for asked := false; ; {
		if err := ctx.Err(); err != nil {
			return Slot{}, fmt.Errorf("take a network slot: %w", errors.Join(err, p.failure))
		}
		if len(p.ready) > 0 {
			s := p.ready[0]
			p.ready = slices.Delete(p.ready, 0, 1)
			p.held[s.Number] = struct{}{}
			p.changed()
			return s, nil
		}
		if p.listed && p.making == 0 && len(p.free) == 0 && len(p.dirty) == 0 {
			return Slot{}, fmt.Errorf("take a network slot of %d: %w", p.slots.Count(), ErrExhausted)
		}
		if !asked {
			asked = true
			p.changed() // the workers make more for one who waits
		}
		change := p.change
		p.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
}

// Return gives slot n back. Its guest should have ended; while its tap is
// still open, the slot stays out of use.
func (p *Pool) Return(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.held[n]; !ok {
		return
	}
	delete(p.held, n)
	p.dirty[n] = &job{wait: firstRetry}
	p.changed()
}

// PoolStatus counts slots by what is happening to them.
type PoolStatus struct {
	Ready, Held, Making, Cleaning int
	// Stuck slots could not be removed at the first attempt, usually because
	// their tap is still open; they are tried again.
	Stuck int
}

// Status counts the pool's slots at this moment.
func (p *Pool) Status() PoolStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PoolStatus{Ready: len(p.ready), Held: len(p.held), Making: p.making}
	for _, j := range p.dirty {
		if j.wait > firstRetry {
			s.Stuck++
		} else {
			s.Cleaning++
		}
	}
	return s
}

// Run removes what an earlier run left behind, gives the slots of guests that
// were there before the rules of this version, and keeps the pool filled until
// ctx ends. Slots stay as they are when it returns.
func (p *Pool) Run(ctx context.Context) error {
	kept, err := p.readKernel(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("start the pool of network slots: %w", err)
	}
	var g errgroup.Group
	g.Go(func() error {
		p.renew(ctx, kept)
		return nil
	})
	for range p.cfg.Workers {
		g.Go(func() error {
			p.work(ctx)
			return nil
		})
	}
	return g.Wait()
}

// readKernel returns the slots that are there and held.
func (p *Pool) readKernel(ctx context.Context) (kept []int, err error) {
	found, err := p.slots.List(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	left := 0
	for _, n := range found {
		if _, ok := p.held[n]; ok {
			kept = append(kept, n)
		} else {
			p.dirty[n] = &job{wait: firstRetry}
			left++
		}
	}
	for n := range p.slots.Count() {
		_, held := p.held[n]
		_, dirty := p.dirty[n]
		if !held && !dirty {
			p.free = append(p.free, n)
		}
	}
	p.listed = true
	p.changed()
	if left > 0 {
		p.log.Info("network slots without an owner are being removed", "count", left)
	}
	return kept, nil
}

// renew completes slots under the guests that have them: an earlier version of
// the program, or another configuration, may have made them.
func (p *Pool) renew(ctx context.Context, numbers []int) {
	for _, n := range numbers {
		p.mu.Lock()
		_, held := p.held[n]
		p.mu.Unlock()
		if !held {
			continue // its guest has ended since
		}
		if _, err := p.slots.Ensure(ctx, n); err != nil && ctx.Err() == nil {
			p.log.Error("network slot of a guest could not be renewed", "slot", n, "error", err)
		}
	}
}

// work does one job after the other, first those that a caller waits for.
func (p *Pool) work(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		now := time.Now()
		number, kind, next := p.pick(now)
		change := p.change
		p.mu.Unlock()
		switch kind {
		case makeSlot:
			p.make(ctx, number)
			continue
		case cleanSlot:
			p.clean(ctx, number)
			continue
		}
		idle, stop := ctx, context.CancelFunc(func() {})
		if !next.IsZero() {
			idle, stop = context.WithDeadline(ctx, next)
		}
		select {
		case <-idle.Done():
		case <-change:
		}
		stop()
	}
}

type jobKind int

const (
	nothing jobKind = iota
	makeSlot
	cleanSlot
)

// pick chooses a worker's next job and marks it as begun. With nothing to do,
// it returns when there may be, or zero.
func (p *Pool) pick(now time.Time) (n int, kind jobKind, next time.Time) {
	wanted := max(p.cfg.Ready, p.waiting)
	if len(p.ready)+p.making < wanted && len(p.free) > 0 {
		if !now.Before(p.makeAt) {
			n, p.free = p.free[0], p.free[1:]
			p.making++
			return n, makeSlot, time.Time{}
		}
		next = p.makeAt
	}
	for n, j := range p.dirty {
		switch {
		case j.running:
		case !now.Before(j.at):
			j.running = true
			return n, cleanSlot, time.Time{}
		case next.IsZero() || j.at.Before(next):
			next = j.at
		}
	}
	return 0, nothing, next
}

func (p *Pool) make(ctx context.Context, n int) {
	s, err := p.slots.Ensure(ctx, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed()
	p.making--
	if err == nil {
		p.ready = append(p.ready, s)
		p.retry, p.makeAt, p.failure = 0, time.Time{}, nil
		return
	}
	p.dirty[n] = &job{wait: firstRetry}
	if ctx.Err() != nil {
		return
	}
	p.failure = err
	p.retry = longer(p.retry)
	p.makeAt = time.Now().Add(p.retry)
	p.log.Error("network slot could not be made", "slot", n, "error", err, "retry_in", p.retry)
}

func (p *Pool) clean(ctx context.Context, n int) {
	err := p.slots.InUse(ctx, n)
	if err == nil {
		err = p.slots.Remove(ctx, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed()
	if err == nil {
		delete(p.dirty, n)
		if n < p.slots.Count() {
			p.free = append(p.free, n)
		}
		return
	}
	j := p.dirty[n]
	j.running = false
	if ctx.Err() != nil {
		return
	}
	j.at = time.Now().Add(j.wait)
	p.log.Error("network slot could not be removed", "slot", n, "error", err, "retry_in", j.wait)
	j.wait = longer(j.wait)
}

func longer(wait time.Duration) time.Duration { return min(max(2*wait, firstRetry), lastRetry) }

// changed wakes everyone who waits. The caller holds the lock.
func (p *Pool) changed() {
	close(p.change)
	p.change = make(chan struct{})
}
