package core

import (
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ByOperator is the creator of keys that an operator made.
const ByOperator = "operator"

// KeyRole returns the role that bounds a key, and whether the key is valid: one that a
// person made can do no more than that person may now, and nothing once the person has
// left the workspace. One that an operator made, or nobody in particular, is the
// workspace's own.
func KeyRole(r raftstore.Reader, k *record.APIKey) (record.Role, bool) {
	if k.CreatedBy == "" || k.CreatedBy == ByOperator {
		return "", true
	}
	u, ok := raftstore.Get(r, record.Users, k.CreatedBy)
	if !ok {
		return "", false
	}
	return u.RoleIn(k.WorkspaceID)
}
