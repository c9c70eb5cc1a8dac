package raftstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

const (
	salvageBatch  = 512 // entries that Salvage applies at once
	manySnapshots = 100 // more than are kept
)

// Salvage writes a backup of what the directory of a replica holds to w, and returns the
// index of the last entry in it. It changes nothing there, and no replica may run in it.
// It is for a cluster that has lost its majority, whose last replica can neither say what
// was committed nor commit it. So the backup may have entries that were never committed:
// of those the client was told that the outcome is unknown, or nothing.
//
// amend, unless it is nil, returns what the backup is to have beyond. It is given the last
// members that the replica knew.
func Salvage(dir string, tables []AnyTable, w io.Writer, amend func(members []Server) []Amendment) (index uint64, err error) {
	set, err := newTableSet(tables)
	if err != nil {
		return 0, fmt.Errorf("salvage: %w", err)
	}
	f, err := newFSM(set, &counters{})
	if err != nil {
		return 0, fmt.Errorf("salvage: %w", err)
	}
	path := filepath.Join(dir, "raft.db")
	if _, err := os.Stat(path); err != nil {
		return 0, fmt.Errorf("salvage: %w", err)
	}
	logs, err := raftboltdb.New(raftboltdb.Options{
		Path: path, BoltOptions: &bbolt.Options{ReadOnly: true, Timeout: 2 * time.Second}, MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return 0, fmt.Errorf("salvage: a replica runs with %s: stop it", path)
	}
	if err != nil {
		return 0, fmt.Errorf("salvage: open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	members, err := f.salvage(dir, logs)
	if err != nil {
		return 0, fmt.Errorf("salvage: %w", err)
	}
	if f.index == 0 {
		return 0, fmt.Errorf("salvage: %s holds no records", dir)
	}
	if amend != nil {
		if err := set.amend(f.db, f.index, time.Now().UTC(), amend(serversOf(members))); err != nil {
			return 0, fmt.Errorf("salvage: %w", err)
		}
	}
	if _, err := writeSnapshot(w, &Snapshot{state: newState(f.db, f.index, 0), set: set}); err != nil {
		return 0, fmt.Errorf("salvage: %w", err)
	}
	return f.index, nil
}

// salvage restores the newest snapshot that is intact, and applies the log behind it. It
// returns the last members in both.
func (f *fsm) salvage(dir string, logs raft.LogStore) (members raft.Configuration, err error) {
	first, err := logs.FirstIndex()
	if err != nil {
		return members, fmt.Errorf("read the log: %w", err)
	}
	last, err := logs.LastIndex()
	if err != nil {
		return members, fmt.Errorf("read the log: %w", err)
	}
	applied, members, err := f.salvageSnapshot(dir)
	if err != nil && (first != 1 || last == 0) { // a log from its beginning needs no snapshot
		return members, err
	}
	if last > applied && first > applied+1 {
		return members, errors.Join(fmt.Errorf("the log begins with entry %d, the snapshot ends with %d", first, applied), err)
	}
	for at := applied + 1; at <= last; {
		var batch []*raft.Log
		for ; at <= last && len(batch) < salvageBatch; at++ {
			entry := &raft.Log{}
			if err := logs.GetLog(at, entry); err != nil {
				return members, fmt.Errorf("read entry %d: %w", at, err)
			}
			if entry.Type == raft.LogConfiguration { // it counts from the moment it is in the log
				if members, err = configurationOf(entry); err != nil {
					return members, err
				}
			}
			batch = append(batch, entry)
		}
		f.ApplyBatch(batch)
		if f.hasFailed() {
			return members, f.failure
		}
	}
	return members, nil
}

// configurationOf reads the members in a log entry. The library panics if it cannot.
func configurationOf(entry *raft.Log) (members raft.Configuration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("entry %d: %v", entry.Index, p)
		}
	}()
	return raft.DecodeConfiguration(entry.Data), nil
}

func serversOf(conf raft.Configuration) (out []Server) {
	for _, s := range conf.Servers {
		out = append(out, Server{ID: string(s.ID), Address: string(s.Address)})
	}
	return out
}

// salvageSnapshot restores the newest snapshot that is intact and returns its index and its
// members; 0 if there is none at all.
func (f *fsm) salvageSnapshot(dir string) (index uint64, members raft.Configuration, err error) {
	if _, err := os.Stat(filepath.Join(dir, "snapshots")); errors.Is(err, os.ErrNotExist) {
		return 0, members, nil
	}
	snaps, err := raft.NewFileSnapshotStore(dir, manySnapshots, io.Discard)
	if err != nil {
		return 0, members, fmt.Errorf("open snapshots: %w", err)
	}
	all, err := snaps.List()
	if err != nil {
		return 0, members, fmt.Errorf("list snapshots: %w", err)
	}
	var errs []error
	for _, meta := range all {
		_, content, err := snaps.Open(meta.ID)
		if err == nil {
			err = errors.Join(f.Restore(content), content.Close())
		}
		if err == nil {
			return meta.Index, meta.Configuration, nil
		}
		errs = append(errs, fmt.Errorf("snapshot %s: %w", meta.ID, err))
	}
	return 0, members, errors.Join(errs...)
}
