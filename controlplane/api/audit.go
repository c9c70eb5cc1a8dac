package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AuditEntry tells who did what, and what came of it.
type AuditEntry struct {
	// Sequence counts the entries of a log from 1. It, previous and hash are absent for a
	// moment, until the entry has its place.
	Sequence    uint64 `json:"sequence,omitempty"` // counts the entries of one log from 1; absent for a moment, as previous and hash, until the entry has its place
	Time        Time   `json:"time"`
	WorkspaceID string `json:"workspace_id,omitempty"`                            // whose log it is in; absent: the operators'
	ActorType   string `json:"actor_type" enum:"user,key,operator,agent,replica"` // what actor_id is the id of
	ActorID     string `json:"actor_id,omitempty"`                                // a user's id, a key's prefix, a replica's or a host's id, or the name in an operator's certificate; absent: the operators' token
	Action      string `json:"action"`                                            // the request's operationId, or signUp, signIn, firstUseOfToken, moreActs, joinAgent, promotePeer
	Resource    string `json:"resource,omitempty"`                                // such as databases/<id>; of a sandbox only the beginning of its id
	RequestID   string `json:"request_id,omitempty"`                              // the request's X-Request-Id
	Outcome     string `json:"outcome" enum:"ok,refused,failed"`                  // ok: done, or begun; refused: nothing was done; failed: not or not completely done, or unknown
	Error       string `json:"error,omitempty"`                                   // the error that was answered
	Previous    string `json:"previous,omitempty" pattern:"^[0-9a-f]*$"`          // the hash of the entry before it; absent in the first
	Hash        string `json:"hash,omitempty" pattern:"^([0-9a-f]{64})?$"`        // hex SHA-256 of all of the above, which docs/operations.md describes
}

// Digest is what Hash has to be: the hex SHA-256 of the fields, each followed by a line
// feed, in the order of the type.
func (e AuditEntry) Digest() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{
		strconv.FormatUint(e.Sequence, 10), e.Time.String(), e.WorkspaceID, e.ActorType, e.ActorID, e.Action, e.Resource,
		e.RequestID, e.Outcome, e.Error, e.Previous, "",
	}, "\n")))
	return hex.EncodeToString(sum[:])
}

// AuditHead is the newest entry of a log that was verified.
type AuditHead struct {
	WorkspaceID string `json:"workspace_id,omitempty"` // absent: the operators' log
	First       uint64 `json:"first"`                  // sequence of the oldest entry
	Last        uint64 `json:"last"`                   // sequence of the newest entry
	Hash        string `json:"hash"`                   // of the newest entry
}

// VerifyAudit checks entries, in any order and of any number of logs: that each has the
// hash of its content, that each names the hash of the one before it, and that none is
// missing between the oldest and the newest of each log. It passes over entries that have
// no place yet. The error names the first entry that does not hold.
func VerifyAudit(entries []AuditEntry) ([]AuditHead, error) {
	logs := map[string][]AuditEntry{}
	for _, e := range entries {
		if e.Sequence != 0 {
			logs[e.WorkspaceID] = append(logs[e.WorkspaceID], e)
		}
	}
	var heads []AuditHead
	for id, log := range logs {
		slices.SortFunc(log, func(a, b AuditEntry) int {
			switch {
			case a.Sequence < b.Sequence:
				return -1
			case a.Sequence > b.Sequence:
				return 1
			}
			return 0
		})
		name := "the operators' log"
		if id != "" {
			name = "the log of " + id
		}
		for i, e := range log {
			switch {
			case e.Hash != e.Digest():
				return nil, fmt.Errorf("%s: entry %d was changed: its hash is not that of its content", name, e.Sequence)
			case i > 0 && e.Sequence != log[i-1].Sequence+1:
				return nil, fmt.Errorf("%s: after entry %d comes %d", name, log[i-1].Sequence, e.Sequence)
			case i > 0 && e.Previous != log[i-1].Hash, e.Sequence == 1 && e.Previous != "":
				return nil, fmt.Errorf("%s: entry %d follows another than the one before it", name, e.Sequence)
			}
		}
		last := log[len(log)-1]
		heads = append(heads, AuditHead{WorkspaceID: id, First: log[0].Sequence, Last: last.Sequence, Hash: last.Hash})
	}
	slices.SortFunc(heads, func(a, b AuditHead) int { return strings.Compare(a.WorkspaceID, b.WorkspaceID) })
	return heads, nil
}

// AuditQuery selects entries of the audit log. Empty fields select all.
type AuditQuery struct {
	WorkspaceID string // of operators' queries alone; AuditOperators: what concerns no workspace
	ActorID     string
	Action      string
	Outcome     string
	Since       time.Time // this and later
	Until       time.Time // earlier
}

// AuditOperators is the workspace of a query for the operators' own log.
const AuditOperators = "operators"
