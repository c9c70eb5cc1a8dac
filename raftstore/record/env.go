package record

import "bytes"

// EnvPart is a part of the environment of sandboxes and snapshots. An environment is not
// in their rows, which change often and may be a hundredth of its size, and is in parts
// because a transaction has no room for the largest. It goes with the last row that
// refers to it.
type EnvPart struct {
	Meta
	EnvID  string `json:"env_id"`
	Sealed []byte `json:"sealed"` // of what is in /proc/<pid>/environ; the parts are in the order of their ids
}

// Clone returns a deep copy.
func (e *EnvPart) Clone() *EnvPart {
	c := *e
	c.Sealed = bytes.Clone(e.Sealed)
	return &c
}

// EnvRef is the environment of a row.
type EnvRef struct {
	EnvID     string `json:"env_id,omitempty"`     // empty: it has none, or EnvSealed
	EnvBytes  int    `json:"env_bytes,omitempty"`  // its size
	EnvSealed []byte `json:"env_sealed,omitempty"` // of an earlier version's row: a JSON string map, sealed
}

func (r EnvRef) clone() EnvRef {
	r.EnvSealed = bytes.Clone(r.EnvSealed)
	return r
}

// LargeEnv is the size from which an environment counts among those that a workspace has
// only so many bytes of.
const LargeEnv = 64<<10 + 1

// Large reports whether the environment is a large one.
func (r EnvRef) Large() bool { return r.EnvBytes >= LargeEnv }

// largeEnv is the key of the index "large_env".
func (r EnvRef) largeEnv(workspaceID string) []string {
	if !r.Large() {
		return nil
	}
	return []string{workspaceID}
}
