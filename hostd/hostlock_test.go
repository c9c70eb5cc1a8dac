package hostd

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Two daemons of one host kill each other's VMs, whatever their data directories.
func TestAHostHasOneDaemonOnAMachine(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	config := func() Config { return Config{HostID: "h1", DataDir: t.TempDir(), RunDir: run} }
	if lock, err := lockPurge(config()); lock != nil || err != nil {
		t.Errorf("a host without a runtime directory: %v, %v", lock, err)
	}
	first, err := lockHost(config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockHost(config()); !errors.Is(err, errHostInUse) {
		t.Errorf("a second daemon: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := Purge(t.Context(), config(), slog.New(slog.DiscardHandler)); !errors.Is(err, errHostInUse) {
			t.Errorf("a purge beside the daemon: %v", err)
		}
	}
	// A purge removes the directory, with the lock that it holds.
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
	second, err := lockHost(config())
	if err != nil {
		t.Fatalf("after a purge: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	third, err := lockHost(config())
	if err != nil {
		t.Fatalf("after the daemon's end: %v", err)
	}
	third.Close()
}
