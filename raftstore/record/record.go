// Package record holds the rows of the control store: what is replicated, which
// indexes find it, and which moves between states are legal. It knows nothing
// of Raft, of HTTP or of hosts.
//
// A row that has been stored is shared by every reader and is never changed:
// Clone it, change the clone, put the clone.
package record

import "time"

// Row is one record of a table.
type Row interface {
	// RowMeta is the row's identity and history, set by the store on Put.
	RowMeta() *Meta
}

// Meta begins every row.
type Meta struct {
	ID          string    `json:"id"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
	CreateIndex uint64    `json:"create_index"` // Raft index of the row's first Put
	ModifyIndex uint64    `json:"modify_index"` // Raft index of its last Put
}

// RowMeta implements Row for every type that embeds Meta.
func (m *Meta) RowMeta() *Meta { return m }

// Table describes how rows of type T are kept.
type Table[T Row] struct {
	Name    string
	New     func() T
	Indexes []Index[T]
	// Check, if there is one, refuses a row in place of the one before, which is
	// nil for a new row: raftstore.Put fails with its error, and nothing of the
	// transaction is written. Only the leader asks it.
	Check func(before, after T) error
}

// Index finds rows by values other than the id. A row is listed under each
// string that Keys returns; an empty result leaves it out. A Unique index
// refuses a second row under the same key (raftstore.ErrConflict).
type Index[T Row] struct {
	Name   string
	Unique bool
	Keys   func(T) []string
}
