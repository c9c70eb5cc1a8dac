package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

// What a killed replica had not finished is gone when it starts again: unfinished snapshots
// would fill its disk.
func TestAStartRemovesWhatWasNotFinished(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.update(putWorkspace("w", "x"))
	r := c.leader()
	c.stop(r)
	unfinishedSnapshot := filepath.Join(r.dir, "snapshots", "2-18-1578141152709.tmp")
	unfinishedRestore := filepath.Join(r.dir, "restore-123.tmp")
	if err := os.MkdirAll(unfinishedSnapshot, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(unfinishedSnapshot, "state.bin"), unfinishedRestore} {
		if err := os.WriteFile(path, []byte("a part of it"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.start(r)
	for _, path := range []string{unfinishedSnapshot, unfinishedRestore} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	c.update(putWorkspace("w", "y"))
}

// smallDisk returns a directory on a disk of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	tier.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Of a snapshot that a full disk has no room for, nothing stays: the log needs the room. One
// that is written meanwhile goes on.
func TestNothingStaysOfASnapshotThatFindsNoRoom(t *testing.T) {
	dir := smallDisk(t, "64k")
	s, err := openSnapshots(dir, 2, newHCLog(quietLog()))
	if err != nil {
		t.Fatal(err)
	}
	_, transport := raft.NewInmemTransport("")
	create := func(index uint64) raft.SnapshotSink {
		t.Helper()
		sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, transport)
		if err != nil {
			t.Fatal(err)
		}
		return sink
	}
	other, sink := create(1), create(2)
	if _, err := other.Write([]byte("another")); err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte("more than there is room for")); err != nil { // it is in a buffer
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := sink.Cancel(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a snapshot was written to a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil || len(left) != 1 || left[0].Name() != other.ID() {
		t.Errorf("there are %v, %v, want %s", left, err, other.ID())
	}
}
