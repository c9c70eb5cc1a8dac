package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
