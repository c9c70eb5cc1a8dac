package record

import "time"

// AuditOperators is the chain of what concerns no workspace.
const AuditOperators = "operators"

// AuditEntry tells who did what, and what came of it. It is written in the transaction
// of what it tells, and gets its place in the chain of its workspace a moment later: a
// transaction that took the place itself would conflict with every other of the
// workspace. Nothing of it is a secret.
type AuditEntry struct {
	Meta
	Chain     string    `json:"chain"` // a workspace's id, or AuditOperators
	Time      time.Time `json:"time"`
	ActorType string    `json:"actor_type"`         // user, key, operator or agent
	ActorID   string    `json:"actor_id,omitempty"` // user id, prefix of the key, or the operator's name
	Action    string    `json:"action"`
	Resource  string    `json:"resource,omitempty"` // such as databases/<id>; of a sandbox only what may be shown
	RequestID string    `json:"request_id,omitempty"`
	Outcome   string    `json:"outcome"`         // ok, refused or failed
	Error     string    `json:"error,omitempty"` // the error of the answer

	// Zero until the entry has its place.
	Sequence uint64 `json:"sequence,omitempty"` // from 1 in each chain
	Previous string `json:"previous,omitempty"` // the hash of the entry before it; empty for the first
	Hash     string `json:"hash,omitempty"`
}

// Clone returns a deep copy.
func (e *AuditEntry) Clone() *AuditEntry {
	c := *e
	return &c
}

// AuditChain is where a chain ends and where it begins. The id is the chain's.
type AuditChain struct {
	Meta
	Sequence uint64 `json:"sequence"` // of the last entry
	Hash     string `json:"hash"`     // of the last entry
	// Pruned is the sequence of the last entry that was removed, because the log would
	// have grown too long, and PrunedHash its hash: the first that is left follows it.
	Pruned     uint64 `json:"pruned,omitempty"`
	PrunedHash string `json:"pruned_hash,omitempty"`
}

// Clone returns a deep copy.
func (a *AuditChain) Clone() *AuditChain {
	c := *a
	return &c
}
