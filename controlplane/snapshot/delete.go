package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// remove deletes the capture and its stored copy. It keeps asking the snapshot's
// host while that may return. If the host is lost or no longer has a store, another
// host deletes the stored copy; the lost host is told to delete its capture when it
// returns.
func (f *flows) remove(ctx context.Context, view *raftstore.Snapshot, s *record.Snapshot) error {
	sessions := f.Hosts.Sessions()
	owner := s.HostID
	agent, known := raftstore.Get(view, record.Hosts, owner)
	host, heard := sessions[owner]
	if !heard && (!known || agent.State == record.HostLost) {
		owner = ""
	}
	if owner != "" {
		err := f.Hosts.Call(ctx, owner, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, s.ID, true) })
		if err != nil {
			return fmt.Errorf("delete capture: %w", err)
		}
	}
	if owner == "" || !host.Heartbeat.Store {
		// Even if the row does not say that it is stored: the answer to an upload
		// may have been lost.
		err := f.Hosts.DeleteStored(ctx, s.ID, owner)
		if err != nil && (!errors.Is(err, hosts.ErrNoStore) || owner == "" && s.Stored) {
			return fmt.Errorf("delete stored copy: %w", err)
		}
	}
	// Other hosts may have fetched it to start sandboxes.
	for id, session := range sessions {
		fetched := slices.ContainsFunc(session.Heartbeat.Captures, func(c hostapi.CaptureState) bool { return c.ID == s.ID })
		if id == owner || !fetched {
			continue
		}
		err := f.Hosts.Call(ctx, id, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, s.ID, false) })
		if err != nil {
			f.Logger.InfoContext(ctx, "copy of a snapshot is left to the inventory", "snapshot_id", s.ID, "agent_id", id, "error", err)
		}
	}
	return nil
}
