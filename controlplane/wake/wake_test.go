package wake

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAllWhoWaitShareOneWake(t *testing.T) {
	begun, finish := make(chan string, 10), make(chan error)
	s := New(time.Minute, func(ctx context.Context, id string) error {
		begun <- id
		select {
		case err := <-finish:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer s.Close()
	failed := errors.New("no memory")
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := s.Wait(t.Context(), "a"); !errors.Is(err, failed) {
				t.Error(err)
			}
		})
	}
	<-begun
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := s.Wait(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Whoever leaves ends its own wait alone. Those that are still to come may need a
	// wake of their own, once the first is over.
	go func() {
		all.Wait()
		close(begun)
	}()
	finish <- failed
	for open := true; open; {
		select {
		case _, open = <-begun:
		case finish <- failed:
		}
	}
}

func TestAWakeEndsWithItsLimitAndWithTheReplica(t *testing.T) {
	wait := func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	s := New(time.Millisecond, wait)
	if err := s.Wait(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s.Close()
	s = New(time.Minute, wait)
	ended := make(chan error)
	w := s.join(t.Context(), "a")
	go func() { <-w.over; ended <- w.err }()
	s.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := s.Wait(t.Context(), "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
