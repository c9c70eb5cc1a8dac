package pgedge

import (
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Entry is what the router needs to know of a database.
type Entry struct {
	ID              string                `json:"id"`
	Index           uint64                `json:"index"` // the row's; a higher index is a later version
	WorkspaceID     string                `json:"workspace_id"`
	Status          record.DatabaseStatus `json:"status"`
	Error           string                `json:"error,omitempty"` // why it has its status
	User            string                `json:"user"`
	Verifier        string                `json:"verifier"` // of the user's password; empty while there are no credentials
	BrokerTokenHash []byte                `json:"broker_token_hash"`

	// The database's box and host; empty between two boxes.
	SandboxID     string               `json:"sandbox_id,omitempty"`
	SandboxStatus record.SandboxStatus `json:"sandbox_status,omitempty"`
	HostID        string               `json:"host_id,omitempty"`
	HostAddress   string               `json:"host_address,omitempty"`
}

// Lookup finds a database in this replica's copy of the store.
type Lookup func(id string) (Entry, bool)

// Read makes a database's entry from the rows in a replica's copy of the store.
func Read(r raftstore.Reader, id string) (Entry, bool) {
	row, ok := raftstore.Get(r, record.Databases, id)
	if !ok {
		return Entry{}, false
	}
	e := Entry{ID: row.ID, Index: row.ModifyIndex, WorkspaceID: row.WorkspaceID, Status: row.Status, Error: row.Error, User: row.Username}
	if c := row.Credentials; c != nil {
		e.Verifier, e.BrokerTokenHash = c.Verifier, c.BrokerTokenHash
	}
	sandbox, ok := raftstore.Get(r, record.Sandboxes, row.SandboxID)
	if !ok {
		return e, true
	}
	e.SandboxID, e.SandboxStatus = sandbox.ID, sandbox.Status
	if host, ok := raftstore.Get(r, record.Hosts, sandbox.HostID); ok {
		e.HostID, e.HostAddress = host.ID, host.Address
	}
	return e, true
}

// known reports whether clients may learn that the database exists.
func (e Entry) known() bool {
	return e.Verifier != "" && e.Status != record.DatabaseDeleting
}

// runs reports whether the database's box should take connections, according to the row.
func (e Entry) runs() bool {
	return e.located() && e.SandboxStatus == record.SandboxRunning
}

// leaves reports whether the database has left a box, or is about to: what is written there
// from now on is lost.
func (e Entry) leaves(box string) bool {
	return e.SandboxID != box || e.Status != record.DatabaseReady
}

// located reports whether the database has a box on a known host.
func (e Entry) located() bool { return e.SandboxID != "" && e.HostAddress != "" }
