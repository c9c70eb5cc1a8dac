package raftstore

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

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

// Of a snapshot that a full disk has no room for, nothing stays: the log needs the room. One
// that is written meanwhile goes on.
func TestNothingStaysOfASnapshotThatFindsNoRoom(t *testing.T) {
	tier.Slow(t) // its limit is the whole process's, and go test writes files, too
	dir := t.TempDir()
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
	withoutRoom(t, func() {
		if err := sink.Cancel(); err == nil {
			t.Error("a file grew beyond its limit")
		}
	})
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil || len(left) != 1 || left[0].Name() != other.ID() {
		t.Errorf("there are %v, %v, want %s", left, err, other.ID())
	}
}

// withoutRoom runs what may not write to any file, as on a disk that is full.
func withoutRoom(t *testing.T, do func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	do()
}
