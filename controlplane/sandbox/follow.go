package sandbox

import (
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Follows reports whether a host's report about its box changes the row. A sandbox
// that is starting or being deleted is left to its flow. A failed one stays failed,
// unless it is persistent, or was unreachable and its host has returned with it.
func Follows(s *record.Sandbox, b hostapi.BoxState) bool {
	if s.Generation != b.Generation {
		return false
	}
	switch b.Status {
	case hostapi.StatusRunning, hostapi.StatusPaused, hostapi.StatusHibernated:
		if b.Seq <= s.HostSeq {
			return false
		}
	case hostapi.StatusFailed: // final, whatever its number
	default:
		return false
	}
	switch s.Status {
	case record.SandboxRunning, record.SandboxPaused, record.SandboxHibernated:
		return true
	case record.SandboxFailed:
		return recoverable(s) && (s.Unreachable || b.Status != hostapi.StatusFailed)
	}
	return false
}

// recoverable reports whether a failed sandbox is used again if its host still has
// its box. An exclusive sandbox must never run twice, so it is given up, unless it
// has an owner: the owner gives it up by deleting it before another takes its place.
func recoverable(s *record.Sandbox) bool {
	if s.Exclusive {
		return s.Persistent && s.Owner != nil
	}
	return s.Persistent || s.Unreachable
}

// Follow applies a host's report to the row if it changes it, and returns the
// resulting row.
func Follow(tx *raftstore.Tx, s *record.Sandbox, b hostapi.BoxState) *record.Sandbox {
	if !Follows(s, b) {
		return s
	}
	c := s.Clone()
	// The number of a failure may be lower than the row's, as in a heartbeat from before a
	// restart. The row takes it all the same, so that the next heartbeat is followed.
	c.Status, c.HostSeq, c.Error, c.Unreachable = record.SandboxStatus(b.Status), b.Seq, "", false
	if b.Status == hostapi.StatusFailed {
		c.Error = failureOf(b)
	}
	// An unreachable sandbox was not woken, so its expiry stays.
	if !s.Unreachable || c.Status == record.SandboxHibernated || c.ExpiresAt.IsZero() {
		Expire(c, tx.Now(), s.Status)
	}
	raftstore.Put(tx, record.Sandboxes, c)
	return c
}

// failureOf returns the error of a sandbox that its host reports as failed.
func failureOf(b hostapi.BoxState) string {
	if b.Error != "" {
		return b.Error
	}
	return "its virtual machine ended unexpectedly"
}

// Expire updates the row's expiry after a change of its status from before. A
// hibernated persistent sandbox has none; when it wakes, its whole time to live
// begins again.
func Expire(c *record.Sandbox, now time.Time, before record.SandboxStatus) {
	switch {
	case !c.Persistent:
	case c.Status == record.SandboxHibernated:
		c.ExpiresAt = time.Time{}
	case c.Status == record.SandboxRunning && before != record.SandboxPaused && c.TTLSeconds != nil:
		c.ExpiresAt = now.Add(time.Duration(*c.TTLSeconds) * time.Second)
	}
}
