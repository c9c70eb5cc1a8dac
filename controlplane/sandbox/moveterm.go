package sandbox

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// term is the time to live of a persistent sandbox that runs. Waking begins it again,
// but one that only moves was not put to sleep by its owner, and goes on with what is
// left.
type term struct {
	TTLSeconds int64     `json:"ttl_seconds"`
	ExpiresAt  time.Time `json:"expires_at"`
}

func termOf(s *record.Sandbox) *term {
	if !s.Persistent || s.Status != record.SandboxRunning || s.TTLSeconds == nil || s.ExpiresAt.IsZero() {
		return nil
	}
	return &term{TTLSeconds: *s.TTLSeconds, ExpiresAt: s.ExpiresAt}
}

// holds reports whether the owner has not changed the time to live since.
func (t *term) holds(s *record.Sandbox) bool {
	return t != nil && s.Persistent && s.TTLSeconds != nil && *s.TTLSeconds == t.TTLSeconds
}

// over reports whether the sandbox would have been hibernated by now.
func (t *term) over(s *record.Sandbox, now time.Time) bool {
	return t.holds(s) && !now.Before(t.ExpiresAt)
}

// restore ends a move, and gives the sandbox the expiry that it had.
func (t *term) restore(id string) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if ok && t.holds(s) && s.Status == record.SandboxRunning && s.ExpiresAt.After(t.ExpiresAt) {
			c := s.Clone()
			c.ExpiresAt = t.ExpiresAt
			raftstore.Put(tx, record.Sandboxes, c)
		}
		return flow.Done(), nil
	}
}
