package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// follower keeps what a Follow hands on.
type follower struct {
	events chan hostapi.Event
	result chan error
	cancel context.CancelFunc
}

func follow(t *testing.T, r *Recorder, q hostapi.EventQuery) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{events: make(chan hostapi.Event), result: make(chan error, 1), cancel: cancel}
	began := make(chan struct{})
	go func() {
		f.result <- r.Follow(ctx, idA, q, func() { close(began) }, func(e hostapi.Event) error {
			select {
			case f.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	<-began
	t.Cleanup(cancel)
	return f
}

func TestAFollowerGetsTheBacklogAndThenWhatComes(t *testing.T) {
	r := open(t, t.TempDir())
	r.Open(idA, "", "")
	emit(r, idA, 0, 3)
	f := follow(t, r, hostapi.EventQuery{Tail: new(2)})
	for n := 1; n < 3; n++ {
		if e := <-f.events; e.Message != fmt.Sprint(n) {
			t.Errorf("got %q, want %d", e.Message, n)
		}
	}
	emit(r, idA, 3, 4)
	if e := <-f.events; e.Message != "3" {
		t.Errorf("got %q, want 3", e.Message)
	}
	emit(r, idA, 4, 5)
	r.Close(idA)
	if e := <-f.events; e.Message != "4" {
		t.Errorf("got %q, want 4", e.Message)
	}
	if err := <-f.result; err != nil {
		t.Errorf("end of a closed stream = %v, want nil", err)
	}
}

func TestAFollowerThatLagsMissesNothing(t *testing.T) {
	r := open(t, t.TempDir())
	r.Open(idA, "", "")
	f := follow(t, r, hostapi.EventQuery{})
	emit(r, idA, 0, 4*defaultRing) // nobody takes them
	for n := range 4 * defaultRing {
		if e := <-f.events; e.Message != fmt.Sprint(n) {
			t.Fatalf("got %q, want %d", e.Message, n)
		}
	}
	f.cancel()
	if err := <-f.result; !errors.Is(err, context.Canceled) {
		t.Errorf("follow = %v, want context.Canceled", err)
	}
}

// A follower gets what it has not seen also of a sandbox that is deleted meanwhile, and of
// another with the id nothing.
func TestAFollowerThatLagsMissesNothingOfTheEnd(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	f := follow(t, r, hostapi.EventQuery{})
	emit(r, idA, 0, 4*defaultRing) // nobody takes them
	r.Close(idA)
	if _, err := r.Query(idA, hostapi.EventQuery{}); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("query of a closed stream = %v", err)
	}
	r.Open(idA, "", "")
	emit(r, idA, -2, -1)
	for n := range 4 * defaultRing {
		if e := <-f.events; e.Message != fmt.Sprint(n) {
			t.Fatalf("got %q, want %d", e.Message, n)
		}
	}
	if err := <-f.result; err != nil {
		t.Errorf("end of a closed stream = %v, want nil", err)
	}
	r = open(t, dir) // what another has written is on disk
	got, err := r.Query(idA, hostapi.EventQuery{Tail: new(9)})
	if err != nil || messages(got) != "-2" {
		t.Errorf("events of another = %s, %v", messages(got), err)
	}
	r.Close(idA)
	left, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The backlog of a follower that takes nothing is on disk, and not held.
func TestABacklogIsReadInParts(t *testing.T) {
	const total = 8000
	r := open(t, t.TempDir())
	r.Open(idA, "", "")
	emit(r, idA, 0, total)
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, taken := inUse(), total
	err := r.Follow(t.Context(), idA, hostapi.EventQuery{Tail: new(total)}, func() {}, func(e hostapi.Event) error {
		if taken == total {
			n, err := strconv.Atoi(e.Message)
			must(t, err)
			taken = n // those before it are not kept on disk
			if grown := inUse() - before; grown > 1<<20 {
				t.Errorf("%d bytes are held", grown)
			}
		}
		if e.Message != strconv.Itoa(taken) {
			t.Fatalf("got %q, want %d", e.Message, taken)
		}
		if taken++; taken == total {
			r.Close(idA)
		}
		return nil
	})
	if err != nil || taken != total {
		t.Errorf("follow = %v, after %d", err, taken)
	}
}

// A follower that comes back with the time of the last event it saw gets each
// event once, while they are written, files are rotated and the daemon is killed.
func TestReconnectsHaveNeitherAGapNorADouble(t *testing.T) {
	const total, generations = 3000, 3
	dir := t.TempDir()
	small := func(c *Config) { c.StreamBytes = 512 << 10 }
	r := open(t, dir, small)
	r.Open(idA, "ws1", "base")
	emit(r, idA, 0, 1)
	seen, since := 0, time.Unix(1, 0)
	for g := range generations {
		written := make(chan struct{})
		go func() {
			defer close(written)
			emit(r, idA, 1+g*total/generations, 1+(g+1)*total/generations)
		}()
		for want := 1 + (g+1)*total/generations; seen < want; {
			f := follow(t, r, hostapi.EventQuery{Since: since})
			for range min(1+seen%97, want-seen) {
				e := <-f.events
				if e.Message != fmt.Sprint(seen) {
					t.Fatalf("got %q, want %d", e.Message, seen)
				}
				seen, since = seen+1, e.Time
			}
			f.cancel()
			<-f.result
		}
		<-written
		r = open(t, dir, small)
	}
}
