package hostd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/netfab/slot"
)

// fakeFabric has slots without a kernel.
type fakeFabric struct {
	mu     sync.Mutex
	made   map[int]bool
	opened map[int]int // sockets that answer for names, by slot
	fails  error
}

func (f *fakeFabric) Count() int                       { return 3 }
func (f *fakeFabric) InUse(context.Context, int) error { return nil }
func (f *fakeFabric) List(context.Context) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.made)), nil
}

func (f *fakeFabric) Ensure(_ context.Context, n int) (slot.Slot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made[n] = true
	return slot.Slot{Number: n}, nil
}

func (f *fakeFabric) Remove(_ context.Context, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened[n] != 0 {
		return fmt.Errorf("slot %d still has %d sockets", n, f.opened[n])
	}
	delete(f.made, n)
	return nil
}

func (f *fakeFabric) Dial(context.Context, int, int) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}

func (f *fakeFabric) Names(n int) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.made[n]:
		return nil, fs.ErrNotExist
	case f.fails != nil:
		return nil, f.fails
	}
	f.opened[n]++
	return closer(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.opened[n]--
		return nil
	}), nil
}

type closer func() error

func (c closer) Close() error { return c() }

func (f *fakeFabric) answered(t *testing.T, want ...int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []int
	for n, sockets := range f.opened {
		if sockets > 1 {
			t.Errorf("slot %d has %d sockets", n, sockets)
		}
		if sockets > 0 {
			got = append(got, n)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("answered for names are slots %v, want %v", got, want)
	}
}

// A guest is answered for names of databases as long as it has its slot, also by the
// daemon after the one that gave it the slot.
func TestNamesAreAnsweredWhileASlotIsTaken(t *testing.T) {
	f := &fakeFabric{made: map[int]bool{1: true}, opened: map[int]int{}}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	pool := slot.NewPool(f, slot.PoolConfig{Ready: 1, Workers: 1}, logger)
	s := newSlots(f, pool, logger)
	s.hold(1) // its guest runs
	s.hold(2) // it is hibernated, and the machine was rebooted
	f.answered(t, 1)

	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- pool.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	got, err := s.Take(t.Context())
	if err != nil || got.Number != 0 {
		t.Fatalf("took %+v, %v", got, err)
	}
	f.answered(t, 0, 1)
	for range 2 {
		if _, err := s.Claim(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		f.answered(t, 0, 1, 2)
	}
	s.Return(0)
	f.answered(t, 1, 2)
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}

	f.mu.Lock()
	f.fails = errors.New("too many open files")
	f.mu.Unlock()
	if _, err := s.Take(t.Context()); err != nil || !strings.Contains(log.String(), "too many open files") {
		t.Errorf("where none can be opened: %v, logged %s", err, log.String())
	}
	s.close()
	f.answered(t)
	if _, err := s.Claim(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	f.answered(t)
}
