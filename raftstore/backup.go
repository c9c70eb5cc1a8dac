package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"
)

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

// RestoreBackup replaces the state of the whole cluster by a backup, on the
// leader. The backup is read and checked in full before anything is changed.
// Transactions under way are waited for; everything written after the backup
// was taken is gone.
func (s *Store) RestoreBackup(ctx context.Context, r io.Reader) (err error) {
	f, err := os.CreateTemp(s.cfg.Dir, "restore-*.tmp")
	if err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	size, err := io.Copy(f, r)
	if err != nil {
		return fmt.Errorf("restore backup: copy: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restore backup: %w", err)
	}
	// Raft panics on a snapshot that the state machine refuses.
	_, index, err := readSnapshot(f, s.fsm.set)
	if err != nil {
		return fmt.Errorf("restore backup: %w", err)
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
