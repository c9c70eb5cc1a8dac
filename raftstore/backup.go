package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore/record"
)

// restoreTemp is what the copy of a backup that is being restored is called.
const restoreTemp = "restore-*.tmp"

// logRoom is how much a restore leaves free on the disk: the log goes on growing.
const logRoom = 64 << 20

// Backup writes this replica's whole state to w, in the format of snapshots.
// On the leader it has everything acknowledged before the call.
func (s *Store) Backup(w io.Writer) error {
	if _, err := writeSnapshot(w, s.View()); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// ErrBadBackup means that a backup is damaged, truncated or not one.
var ErrBadBackup = errSnapshot

// Amendment is a row that a restored backup is to have.
type Amendment struct {
	table, id string
	row       func(was record.Row) record.Row // was: the backup's own; nil: it has none
}

// AmendBy makes an Amendment of the row that the backup itself has with an id. ok is false
// if it has none. change must return another one.
func AmendBy[T record.Row](t record.Table[T], id string, change func(was T, ok bool) T) Amendment {
	return Amendment{t.Name, id, func(was record.Row) record.Row {
		row, ok := was.(T)
		return change(row, ok)
	}}
}

// RestoreBackup replaces the state of the whole cluster by a backup, on the
// leader. The backup is read and checked in full before anything is changed.
// Transactions under way are waited for; everything written after the backup
// was taken is gone. The amendments are part of the restored state: it
// is never seen without them. check, unless it is nil, may refuse what the backup has.
// ErrNoRoom: the disk has no room for it.
func (s *Store) RestoreBackup(ctx context.Context, r io.Reader, check func(Reader) error, amendments ...Amendment) (err error) {
	f, err := os.CreateTemp(s.cfg.Dir, restoreTemp)
	if err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	free, err := s.DiskFree()
	if err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	room := max(0, free-logRoom) / 2 // for this copy, and for the snapshot that Raft makes of it
	size, err := io.Copy(f, io.LimitReader(r, room+1))
	if err != nil {
		return fmt.Errorf("restore backup: copy: %w", err)
	}
	if size > room {
		return fmt.Errorf("restore backup: %w", ErrNoRoom)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	// Raft panics on a snapshot that the state machine refuses.
	db, index, err := readSnapshot(f, s.fsm.set)
	if err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	if check != nil {
		if err := check(&Snapshot{state: newState(db, index, 0), set: s.fsm.set}); err != nil {
			return fmt.Errorf("restore backup: %w", err)
		}
	}
	if len(amendments) > 0 {
		if err := s.fsm.set.amend(db, index, s.cfg.Clock().UTC(), amendments); err != nil {
			return fmt.Errorf("restore backup: %w", err)
		}
		if size, err = s.rewrite(f, db, index); err != nil {
			return fmt.Errorf("restore backup: %w", err)
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	if err := s.turn.Acquire(ctx, exclusive); err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	defer s.turn.Release(exclusive)
	if _, err := s.lead.await(ctx, s); err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	// Not abandoned when ctx ends: the file is in use until it is done.
	meta := &raft.SnapshotMeta{Version: 1, Index: index, Term: s.Term(), Size: size}
	err = s.waits.call(context.WithoutCancel(ctx), func() error { return s.raft.Restore(meta, f, 0) })
	return s.changeError("restore backup", err)
}

// amend gives a state what it is to have beyond.
func (ts *tableSet) amend(db *memdb.MemDB, index uint64, now time.Time, amendments []Amendment) error {
	txn := db.Txn(true)
	defer txn.Abort() // no effect after the commit below
	for _, a := range amendments {
		t := ts.byName[a.table]
		if t == nil {
			return fmt.Errorf("amend: no table %s", a.table)
		}
		var was record.Row
		if s := t.row(txn, a.id); s != nil {
			was = s.row
		}
		meta := record.Meta{ID: a.id, CreatedAt: now, UpdatedAt: now, CreateIndex: index, ModifyIndex: index}
		payload, err := encodeRow(a.row(was))
		if err != nil {
			return fmt.Errorf("amend %s: %w", a.table, err)
		}
		row, err := t.load(meta, payload)
		if err != nil {
			return fmt.Errorf("amend %s: %w", a.table, err)
		}
		if err := txn.Insert(a.table, row); err != nil {
			return fmt.Errorf("amend %s: %w", a.table, err)
		}
	}
	txn.Commit()
	return nil
}

// rewrite writes a state into a file in place of what is in it.
func (s *Store) rewrite(f *os.File, db *memdb.MemDB, index uint64) (size int64, err error) {
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return writeSnapshot(f, &Snapshot{state: newState(db, index, 0), set: s.fsm.set})
}
