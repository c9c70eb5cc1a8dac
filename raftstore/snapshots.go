package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// snapshots is the library's store of snapshots, and removes what the library leaves of
// those that were not finished: at a kill, and where there was no room for one. Each may be
// as large as the store, and on a disk that is full already the log would find no room.
type snapshots struct {
	*raft.FileSnapshotStore
	dir string

	mu   sync.Mutex
	open map[string]bool // the names of those that are being written
}

const unfinished = ".tmp" // the end of the name of a snapshot that is not finished

// openSnapshots opens the snapshots in the directory of a store, in which nothing else runs.
func openSnapshots(dir string, retain int, log hclog.Logger) (*snapshots, error) {
	inner, err := raft.NewFileSnapshotStoreWithLogger(dir, retain, log)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	s := &snapshots{FileSnapshotStore: inner, dir: filepath.Join(dir, "snapshots"), open: map[string]bool{}}
	restores, err := filepath.Glob(filepath.Join(dir, restoreTemp))
	for _, path := range restores {
		err = errors.Join(err, os.Remove(path))
	}
	if err = errors.Join(err, s.sweep()); err != nil {
		return nil, fmt.Errorf("remove what was not finished: %w", err)
	}
	return s, nil
}

// sweep removes what is left of snapshots that nobody writes any more.
func (s *snapshots) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.dir, "*"+unfinished))
	for _, path := range left {
		if !s.open[filepath.Base(path)] {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sink, err := s.FileSnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, errors.Join(err, s.sweep())
	}
	s.open[sink.ID()+unfinished] = true
	return &sweptSink{sink, s}, nil
}

// sweptSink is a snapshot that is being written. If it is given up, nothing of it stays.
type sweptSink struct {
	raft.SnapshotSink
	store *snapshots
}

// Close implements raft.SnapshotSink.
func (k *sweptSink) Close() error { return k.end(k.SnapshotSink.Close) }

// Cancel implements raft.SnapshotSink.
func (k *sweptSink) Cancel() error { return k.end(k.SnapshotSink.Cancel) }

func (k *sweptSink) end(how func() error) error {
	err := how()
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	delete(k.store.open, k.ID()+unfinished)
	return errors.Join(err, k.store.sweep())
}
