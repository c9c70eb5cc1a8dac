package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// strace replaces strace with a script.
func strace(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "strace"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestASlowDiskThatWasNeverSlowIsAnError(t *testing.T) {
	k := &soak{}
	strace(t, "echo 'attach: Operation not permitted' >&2; exit 1")
	err := k.slowDisk(t.Context(), &stack.Process{ID: "r1"}, time.Second, time.Hour)
	if err == nil || !strings.Contains(err.Error(), "Operation not permitted") {
		t.Errorf("strace cannot attach: %v", err)
	}
	strace(t, "exec sleep 3600")
	if err := k.slowDisk(t.Context(), &stack.Process{ID: "r1"}, time.Second, time.Millisecond); err != nil {
		t.Errorf("to the end: %v", err)
	}
}

func TestAFaultCountsWhenItWasDone(t *testing.T) {
	was := faults
	t.Cleanup(func() { faults = was })
	ctx, end := context.WithCancel(t.Context())
	refused := errors.New("it does not break")
	does := func(err error) func(context.Context, *soak, *rand.Rand) error {
		return func(context.Context, *soak, *rand.Rand) error { return err }
	}
	faults = []fault{
		{"done", does(nil)}, {"nothing to break", does(errNothing)}, {"an error", does(refused)},
		{"cut short", func(context.Context, *soak, *rand.Rand) error { end(); return nil }},
	}
	k := &soak{history: newHistory()}
	for name, want := range map[string]error{"done": nil, "nothing to break": nil, "an error": refused} {
		if err := k.inflict(ctx, name, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if err := k.inflict(ctx, "cut short", nil); err != nil {
		t.Error(err)
	}
	if want := map[string]int{"done": 1}; !maps.Equal(k.history.faults, want) {
		t.Errorf("counted: %v", k.history.faults)
	}
	k.history.call("exec", "", time.Second)
	k.history.call("create", "500", time.Second)
	never := k.history.never(faultNames())
	for what, want := range map[string]bool{
		"fault done": false, "fault nothing to break": true, "fault cut short": true, "call exec": false, "call create": true, "call wake": true,
	} {
		if got := slices.Contains(never, what); got != want {
			t.Errorf("%s is among those that never happened: %t", what, got)
		}
	}
}
