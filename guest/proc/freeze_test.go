package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// counting starts a command that appends to a file without pause, in a session
// of its own and with a child that does the same.
func counting(t *testing.T, groups Groups) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "count")
	p, err := Start(groups, Spec{Argv: sh("setsid sh -c 'while :; do echo >> " + file + "; done' & while :; do echo >> " + file + "; done")})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); finish(p) }()
	t.Cleanup(func() { _ = p.group.Kill(); p.Kill(); <-ended })
	await(t, "it counts", func() bool { return size(file) > 10 })
	return file
}

func size(file string) int64 {
	st, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return st.Size()
}

func TestFrozenProcessesDoNothingUntilTheyAreThawed(t *testing.T) {
	groups := testGroups(t)
	one, two := counting(t, groups), counting(t, groups)
	f := NewFreezer(groups, time.Minute, func() error { t.Error("it was reseeded"); return nil })
	moving, err := f.Freeze(time.Minute, 10*time.Second)
	if err != nil || moving != nil {
		t.Fatalf("freeze: %v, %v", moving, err)
	}
	at1, at2 := size(one), size(two)

	// A command that is started now waits.
	entered := make(chan struct{})
	go func() {
		if leave, ok := f.Enter(nil); ok {
			leave()
		}
		close(entered)
	}()
	gone := make(chan struct{})
	close(gone)
	if _, ok := f.Enter(gone); ok {
		t.Error("a command was let in whose caller is gone, while all is frozen")
	}
	// What was not frozen would have written by now: a hook, which starts meanwhile, has.
	other := counting(t, groups)
	await(t, "another goes on", func() bool { return size(other) > 1000 })
	if size(one) != at1 || size(two) != at2 {
		t.Error("a frozen process went on")
	}
	select {
	case <-entered:
		t.Error("a command was let in while all is frozen")
	default:
	}
	f.Thaw()
	<-entered
	await(t, "they go on", func() bool { return size(one) > at1 && size(two) > at2 })
	f.Thaw() // nothing to do
}

func TestWhatNobodyThawsIsReseededAndThawed(t *testing.T) {
	groups := testGroups(t)
	file := counting(t, groups)
	reseeded := make(chan int64, 2)
	f := NewFreezer(groups, time.Minute, func() error { reseeded <- size(file); return errors.New("no device") })
	if moving, err := f.Freeze(200*time.Millisecond, 100*time.Millisecond); err != nil || len(moving) > 0 {
		t.Fatalf("freeze: %v, %v", moving, err)
	}
	at := <-reseeded
	await(t, "it goes on", func() bool { return size(file) > at })

	// An agent that is started anew thaws what the one before it left.
	if _, err := f.Freeze(time.Hour, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	NewFreezer(groups, time.Millisecond, func() error { reseeded <- size(file); return nil })
	at = <-reseeded
	await(t, "it goes on", func() bool { return size(file) > at })
	f.Thaw()
}

// Where KVM gives the guest its clock, a copy's clock jumps when it goes on, and its
// ticker with it.
func TestAClockThatJumpsCostsAHoldOneTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reseeded := false
		f := NewFreezer(Groups{}, time.Minute, func() error { reseeded = true; return nil })
		tick := make(chan time.Time)
		var stopped bool
		f.ticks = func(every time.Duration) (<-chan time.Time, func()) {
			if every != time.Second {
				t.Errorf("it ticks every %s", every)
			}
			return tick, func() { stopped = true }
		}
		frozen := func() bool {
			synctest.Wait()
			f.starting.RLock()
			defer f.starting.RUnlock()
			return f.thawed != nil
		}
		if _, err := f.Freeze(30*time.Second, time.Second); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for n := range 29 {
			now = now.Add(time.Second)
			if n == 3 {
				now = now.Add(24 * time.Hour) // it slept
			}
			tick <- now
			if !frozen() {
				t.Fatalf("it is thawed after %d ticks", n+1)
			}
		}
		tick <- now.Add(time.Second)
		if frozen() || !reseeded || !stopped {
			t.Errorf("after the last tick: reseeded %v, stopped %v", reseeded, stopped)
		}
		reseeded, stopped = false, false

		// An identity ends it, and so does another freeze.
		for range 2 {
			if _, err := f.Freeze(30*time.Second, time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if !frozen() {
			t.Error("it is thawed")
		}
		f.Thaw()
		if frozen() || reseeded || !stopped {
			t.Errorf("after a thaw: reseeded %v, stopped %v", reseeded, stopped)
		}
	})
}
