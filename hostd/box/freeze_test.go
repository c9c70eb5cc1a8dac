package box_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// steps notes the order of what is done to a machine.
type steps struct {
	mu    sync.Mutex
	names []string
	fail  string
}

func (s *steps) note(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
	if name == s.fail {
		return boxtest.ErrInjected
	}
	return nil
}

func (s *steps) failAt(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = name
}

func (s *steps) saw(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.names, name)
}

// inOrder checks that names came in this order since the last call.
func (s *steps) inOrder(t *testing.T, names ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := -1
	for _, name := range names {
		i := slices.Index(s.names[at+1:], name)
		if i < 0 {
			t.Errorf("%q does not come after %q in %q", name, names[:slices.Index(names, name)], s.names)
			break
		}
		at += i + 1
	}
	s.names = nil
}

func TestMemoryIsSavedWhileTheTenantsProcessesStandStill(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(ctx, idA, spec(1))
	must(t, err)
	var s steps
	w.SetStep(s.note)
	capture := func(id string, memory bool) error {
		_, err := d.Captures().Make(ctx, id, hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: memory})
		return err
	}

	must(t, capture("memory", true))
	s.inOrder(t, "freeze", "pause", "snapshot", "resume", "identity") // the identity thaws
	must(t, capture("disk", false))
	if s.saw("freeze") {
		t.Error("a capture of the disk alone stops processes")
	}
	s.inOrder(t, "sync", "pause")

	// A save that fails lets the guest run on, and thaws it.
	s.failAt("snapshot")
	if _, err := d.Hibernate(ctx, idA); err == nil {
		t.Fatal("hibernate is said to have worked")
	}
	await(t, func() bool { return s.saw("identity") })
	s.inOrder(t, "freeze", "pause", "snapshot", "resume", "identity")

	// A guest that does not stand still is saved all the same.
	s.failAt("freeze")
	_, err = d.Hibernate(ctx, idA)
	must(t, err)
	s.inOrder(t, "freeze", "pause", "snapshot")
	_, err = d.Wake(ctx, idA)
	must(t, err)
	s.inOrder(t, "restore", "resume", "identity")
}

// A daemon that stood still before it noticed that a guest is frozen cannot know that the
// guest has not gone on by the time that it is paused.
func TestAGuestIsFrozenAnewWhereItMayGoOnTooSoon(t *testing.T) {
	var stood atomic.Int64
	w := boxtest.NewWorld(t)
	d := start(t, w, func(_ *box.Config, deps *box.Deps) {
		deps.Now = func() time.Time { return time.Now().Add(time.Duration(stood.Load())) }
	})
	put(t, d, idA)
	var s steps
	var freezes atomic.Int32
	w.SetStep(func(ctx context.Context, name string) error {
		if name == "freeze" && freezes.Add(1) == 1 {
			stood.Add(int64(timescale.Limit(20 * time.Second)))
		}
		return s.note(ctx, name)
	})
	_, err := d.Captures().Make(t.Context(), "c", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
	must(t, err)
	s.inOrder(t, "freeze", "freeze", "pause", "snapshot")
	_, err = d.Hibernate(t.Context(), idA)
	must(t, err)
	if s.inOrder(t, "freeze", "pause", "snapshot"); freezes.Load() != 3 {
		t.Errorf("it was frozen %d times, want 3", freezes.Load())
	}
}

// A pause that was not even begun in its time has let the guest go on.
func TestAGuestIsFrozenAnewForASecondPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t)
		put(t, d, idA)
		var s steps
		var pauses atomic.Int32
		w.SetStep(func(ctx context.Context, name string) error {
			_ = s.note(ctx, name)
			if name == "pause" && pauses.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		s.inOrder(t, "freeze", "pause", "freeze", "pause", "snapshot")
		d.Close()
	})
}
