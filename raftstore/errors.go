package raftstore

import (
	"errors"
	"fmt"
)

var (
	// ErrNotLeader means that this replica is not the leader, or is about to
	// stop being it. Nothing was written; ask the one that Leader names.
	ErrNotLeader = errors.New("not the leader")

	// ErrLeadershipLost means that the outcome is unknown: the transaction was
	// handed to Raft and no answer came back. It may be in the log already, may
	// enter it later or never. Read the rows again by id, on the new leader.
	ErrLeadershipLost = errors.New("leadership lost: outcome unknown")

	// ErrConflict means that a unique index has the key already. It is always
	// wrapped by a *ConflictError that names table, index and key.
	ErrConflict = errors.New("unique index conflict")

	// ErrOverloaded means that more waits for the log than is admitted: it is slow,
	// or hangs.
	ErrOverloaded = errors.New("too many writes wait for the log")
	// ErrContention means that the rows a transaction read changed again and
	// again before it could be applied. Nothing was written.
	ErrContention = errors.New("too much contention on the rows read")

	// ErrTooLarge means that a transaction is larger than a log entry may be.
	// Nothing was written.
	ErrTooLarge = errors.New("transaction too large")

	// ErrNoRoom means that the disk of this replica has no room for a backup that is to be
	// restored. Nothing was changed.
	ErrNoRoom = errors.New("no room on the disk")

	// ErrClosed means that the store is closed or closing. Nothing was written.
	ErrClosed = errors.New("store closed")

	// ErrFailed means that this replica met a log entry that it cannot
	// understand and stopped rather than diverge from the others.
	ErrFailed = errors.New("replica stopped")
)

// ConflictError says which unique index refused a row.
type ConflictError struct {
	Table, Index, Key string
	ID                string // the row that was refused
	HolderID          string // the row that has the key
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: %s.%s %q is held by %s", ErrConflict, e.Table, e.Index, e.Key, e.HolderID)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }
