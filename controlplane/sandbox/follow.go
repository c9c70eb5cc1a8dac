package sandbox

import (
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Follows reports whether what a host says of its box changes the row. A
// sandbox that is starting or being deleted has a flow that sees to it. What
// failed stays failed, but for a persistent sandbox, and for one that was
// unreachable and whose host has come back with it.
func Follows(s *record.Sandbox, b hostapi.BoxState) bool {
	if s.Generation != b.Generation {
		return false
	}
	switch b.Status {
	case hostapi.StatusRunning, hostapi.StatusPaused, hostapi.StatusHibernated:
		if b.Seq <= s.HostSeq {
			return false
		}
	case hostapi.StatusFailed: // the last word in any case
	default:
		return false
	}
	switch s.Status {
	case record.SandboxRunning, record.SandboxPaused, record.SandboxHibernated:
		return true
	case record.SandboxFailed:
		return Recoverable(s) && (s.Unreachable || b.Status != hostapi.StatusFailed)
	}
	return false
}

// Recoverable reports whether a sandbox that failed is taken up again where its host
// has its box still.
func Recoverable(s *record.Sandbox) bool { return !s.Exclusive && (s.Persistent || s.Unreachable) }

// Follow puts what a host says into the row where it is news, and returns the
// row as it is then.
func Follow(tx *raftstore.Tx, s *record.Sandbox, b hostapi.BoxState) *record.Sandbox {
	if !Follows(s, b) {
		return s
	}
	c := s.Clone()
	c.Status, c.HostSeq, c.Error, c.Unreachable = record.SandboxStatus(b.Status), max(s.HostSeq, b.Seq), "", false
	if b.Status == hostapi.StatusFailed {
		c.Error = FailureOf(b)
	}
	// Nobody woke what was unreachable: its end stays what it was.
	if !s.Unreachable || c.Status == record.SandboxHibernated || c.ExpiresAt.IsZero() {
		Expire(c, tx.Now(), s.Status)
	}
	raftstore.Put(tx, record.Sandboxes, c)
	return c
}

// FailureOf is the error of a sandbox whose host says that it failed.
func FailureOf(b hostapi.BoxState) string {
	if b.Error != "" {
		return b.Error
	}
	return "its virtual machine ended unexpectedly"
}

// Expire keeps the row's end in step with its status, which was before. A
// persistent sandbox has none while it hibernates, which is what its end would
// bring, and from its wake it has its whole time to live again.
func Expire(c *record.Sandbox, now time.Time, before record.SandboxStatus) {
	switch {
	case !c.Persistent:
	case c.Status == record.SandboxHibernated:
		c.ExpiresAt = time.Time{}
	case c.Status == record.SandboxRunning && before != record.SandboxPaused && c.TTLSeconds != nil:
		c.ExpiresAt = now.Add(time.Duration(*c.TTLSeconds) * time.Second)
	}
}
