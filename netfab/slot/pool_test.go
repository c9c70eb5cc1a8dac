package slot

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeSlots is a kernel in memory, in which making a slot takes 20 ms and
// removing one 50.
type fakeSlots struct {
	mu      sync.Mutex
	count   int
	exist   map[int]bool
	inUse   map[int]bool
	old     map[int]bool // made by an earlier daemon, not ensured since
	listErr error
	fail    error // of Ensure
	made    []int
	running int
	busiest int
}

func newFakeSlots(count int, exist ...int) *fakeSlots {
	f := &fakeSlots{count: count, exist: make(map[int]bool), inUse: make(map[int]bool), old: make(map[int]bool)}
	for _, n := range exist {
		f.exist[n], f.old[n] = true, true
	}
	return f
}

func (f *fakeSlots) Count() int { return f.count }

func (f *fakeSlots) pause(ctx context.Context, d time.Duration) error {
	f.mu.Lock()
	f.running++
	f.busiest = max(f.busiest, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeSlots) Ensure(ctx context.Context, n int) (Slot, error) {
	if err := f.pause(ctx, 20*time.Millisecond); err != nil {
		return Slot{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return Slot{}, f.fail
	}
	if f.exist[n] && !f.old[n] {
		return Slot{}, errors.New("made twice")
	}
	f.exist[n] = true
	delete(f.old, n)
	f.made = append(f.made, n)
	return Slot{Number: n}, nil
}

func (f *fakeSlots) Remove(ctx context.Context, n int) error {
	if err := f.pause(ctx, 50*time.Millisecond); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.exist, n)
	delete(f.old, n)
	return nil
}

func (f *fakeSlots) List(context.Context) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []int
	for n := range f.exist {
		out = append(out, n)
	}
	slices.Sort(out)
	return out, f.listErr
}

func (f *fakeSlots) InUse(_ context.Context, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inUse[n] {
		return ErrInUse
	}
	return nil
}

func (f *fakeSlots) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// pooled runs a pool over the slots in a bubble of fake time.
func pooled(t *testing.T, slots *fakeSlots, cfg PoolConfig, test func(t *testing.T, p *Pool)) {
	pooledHolding(t, slots, cfg, nil, test)
}

func pooledHolding(t *testing.T, slots *fakeSlots, cfg PoolConfig, held []int, test func(t *testing.T, p *Pool)) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(slots, cfg, slog.New(slog.DiscardHandler))
		p.Hold(held...)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		test(t, p)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func settle(d time.Duration) {
	<-time.After(d) // in the bubble's time
	synctest.Wait()
}

func wantStatus(t *testing.T, p *Pool, want PoolStatus) {
	t.Helper()
	if got := p.Status(); got != want {
		t.Errorf("pool is %+v, want %+v", got, want)
	}
}

func TestPoolFillsWithBoundedParallelism(t *testing.T) {
	slots := newFakeSlots(100)
	pooled(t, slots, PoolConfig{Ready: 8, Workers: 3}, func(t *testing.T, p *Pool) {
		settle(59 * time.Millisecond)
		wantStatus(t, p, PoolStatus{Ready: 6, Making: 2})
		settle(time.Second)
		wantStatus(t, p, PoolStatus{Ready: 8})
		start := time.Now()
		seen := make(map[int]bool)
		for range 8 {
			s, err := p.Take(t.Context())
			if err != nil || seen[s.Number] {
				t.Errorf("took slot %d, %v, of %v", s.Number, err, seen)
			}
			seen[s.Number] = true
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("taking what is ready took %v", took)
		}
		settle(time.Second)
		wantStatus(t, p, PoolStatus{Ready: 8, Held: 8})
		if slots.busiest > 3 {
			t.Errorf("%d were made at once, with 3 workers", slots.busiest)
		}
	})
}

func TestTakersWithoutAReadySlotAreServedInTurn(t *testing.T) {
	pooled(t, newFakeSlots(10), PoolConfig{Ready: 0, Workers: 2}, func(t *testing.T, p *Pool) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := make(map[int]bool)
		for range 6 {
			wg.Go(func() {
				s, err := p.Take(t.Context())
				mu.Lock()
				defer mu.Unlock()
				if err != nil || seen[s.Number] {
					t.Errorf("took slot %d, %v, of %v", s.Number, err, seen)
				}
				seen[s.Number] = true
			})
		}
		wg.Wait()
		wantStatus(t, p, PoolStatus{Held: 6})
	})
}

func TestReturnedSlotIsRemovedBeforeItIsUsedAgain(t *testing.T) {
	slots := newFakeSlots(2)
	pooled(t, slots, PoolConfig{Ready: 1, Workers: 1}, func(t *testing.T, p *Pool) {
		a, err := p.Take(t.Context())
		check(t, err)
		b, err := p.Take(t.Context())
		check(t, err)
		if _, err := p.Take(t.Context()); !errors.Is(err, ErrExhausted) {
			t.Errorf("third of two: %v", err)
		}
		p.Return(a.Number)
		p.Return(a.Number) // once more, to no effect
		c, err := p.Take(t.Context())
		check(t, err)
		if c.Number != a.Number {
			t.Errorf("took %d, want the returned %d", c.Number, a.Number)
		}
		if want := []int{a.Number, b.Number, a.Number}; !slices.Equal(slots.made, want) {
			t.Errorf("made %v, want %v", slots.made, want)
		}
	})
}

func TestNumbersRest(t *testing.T) {
	slots := newFakeSlots(5)
	pooled(t, slots, PoolConfig{Ready: 1, Workers: 1}, func(t *testing.T, p *Pool) {
		for range 7 {
			s, err := p.Take(t.Context())
			check(t, err)
			p.Return(s.Number)
			settle(time.Second)
		}
		if want := []int{0, 1, 2, 3, 4, 0, 1, 2}; !slices.Equal(slots.made, want) {
			t.Errorf("made %v, want %v", slots.made, want)
		}
	})
}

func TestLeftoversAreRemovedAndHeldSlotsKept(t *testing.T) {
	// Slot 9 is past the count: an earlier configuration made it.
	slots := newFakeSlots(5, 0, 1, 2, 9)
	pooledHolding(t, slots, PoolConfig{Ready: 1, Workers: 4}, []int{1}, func(t *testing.T, p *Pool) {
		settle(time.Second)
		wantStatus(t, p, PoolStatus{Ready: 1, Held: 1})
		slots.set(func() {
			if !slots.exist[1] || slots.exist[0] || slots.exist[2] || slots.exist[9] {
				t.Errorf("left are %v", slots.exist)
			}
			if slots.old[1] {
				t.Error("the slot of a guest that was there before has the rules of an earlier daemon")
			}
		})
		p.Return(1)
		settle(time.Second)
		wantStatus(t, p, PoolStatus{Ready: 1})
	})
}

func TestSlotInUseStaysOutUntilItIsFree(t *testing.T) {
	slots := newFakeSlots(1)
	pooled(t, slots, PoolConfig{Ready: 1, Workers: 2}, func(t *testing.T, p *Pool) {
		s, err := p.Take(t.Context())
		check(t, err)
		slots.set(func() { slots.inUse[0] = true })
		p.Return(s.Number)
		settle(5 * time.Second)
		wantStatus(t, p, PoolStatus{Stuck: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while the only slot is in use: %v", err)
		}
		slots.set(func() { slots.inUse[0] = false })
		if _, err := p.Take(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestFailingToMakeSlotsBacksOffAndRecovers(t *testing.T) {
	broken := errors.New("no such device")
	slots := newFakeSlots(100)
	slots.fail = broken
	pooled(t, slots, PoolConfig{Ready: 2, Workers: 1}, func(t *testing.T, p *Pool) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := p.Take(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, broken) {
			t.Errorf("error %v; want it to say why", err)
		}
		slots.set(func() { slots.fail = nil })
		if _, err := p.Take(t.Context()); err != nil {
			t.Error(err)
		}
		settle(time.Minute)
		wantStatus(t, p, PoolStatus{Ready: 2, Held: 1})
	})
}

func TestPoolSaysWhyItCannotStart(t *testing.T) {
	slots := newFakeSlots(1)
	slots.listErr = errors.New("no permission")
	p := NewPool(slots, PoolConfig{}, slog.New(slog.DiscardHandler))
	if err := p.Run(t.Context()); !errors.Is(err, slots.listErr) {
		t.Errorf("Run: %v", err)
	}
}

// The real thing: guests that come and go, and a daemon that dies.
func TestPoolOverTheKernel(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.Count = 12 })
	run := func(p *Pool) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		return func() {
			cancel()
			check(t, <-done)
		}
	}
	filled := func(p *Pool) {
		t.Helper()
		await(t, "the pool is filled", func() bool {
			s := p.Status()
			return s.Ready == 3 && s.Making+s.Cleaning+s.Stuck == 0
		})
	}
	first := NewPool(f, PoolConfig{Ready: 3, Workers: 4}, f.log)
	stop := run(first)
	filled(first)
	kept, err := first.Take(t.Context())
	check(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				s, err := first.Take(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				g := newGuest(t, s)
				g.works(t)
				g.end(t)
				first.Return(s.Number)
			}
		})
	}
	wg.Wait()
	_, err = first.Take(t.Context()) // its guest dies with the daemon
	check(t, err)
	stop()

	second := NewPool(f, PoolConfig{Ready: 3, Workers: 4}, f.log)
	second.Hold(kept.Number)
	g := newGuest(t, kept)
	defer run(second)()
	filled(second)
	left, err := f.List(t.Context())
	check(t, err)
	if len(left) != 4 || !slices.Contains(left, kept.Number) {
		t.Errorf("slots after a restart: %v, want three ready ones and %d", left, kept.Number)
	}
	g.works(t)
	s, err := second.Take(t.Context())
	check(t, err)
	kill := startVMM(t, s)
	second.Return(s.Number) // before its VMM has ended
	await(t, "the slot in use is set aside", func() bool { return second.Status().Stuck == 1 })
	kill()
	g.end(t)
	second.Return(kept.Number)
	filled(second)
}
