package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// remove deletes the box on the sandbox's host.
func (f *Flows) remove(ctx context.Context, view *raftstore.Snapshot, s *record.Sandbox) error {
	if s.HostID != "" {
		if err := f.deleteBox(ctx, s); err != nil && resource.MayReturn(view, s.HostID, err) {
			return err
		}
	}
	if m := s.Move; m != nil && m.To != "" { // what is left of it there has no row, and the inventory finds it
		f.Clean(ctx, s.ID, m.To, m.Generation)
	}
	f.Hosts.Release(s.ID)
	return nil
}

func (f *Flows) deleteBox(ctx context.Context, s *record.Sandbox) error {
	client, err := f.Hosts.Client(s.HostID)
	if err != nil {
		return err
	}
	hctx, cancel := f.Hosts.WhileUp(ctx, s.HostID)
	defer cancel()
	remove := client.DeleteBox
	if lostDatabase(f.Store.View(), s) { // its host has returned in the middle of the failover
		remove = client.DeleteBoxKeepingDisk
	}
	err = remove(hctx, s.ID, s.Generation)
	if hostapi.HasCode(err, hostapi.CodeStaleGeneration) {
		// Only a control store that was restored from a backup has an older
		// generation than its hosts.
		err = remove(hctx, s.ID, 0)
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("delete box: %w", err)
	}
	return nil
}

// lostDatabase reports whether a sandbox is that of a database which is restored elsewhere
// because its host was lost.
func lostDatabase(r raftstore.Reader, s *record.Sandbox) bool {
	if s.Owner == nil || s.Owner.Type != OwnerDatabase || s.Lost.At.IsZero() {
		return false
	}
	d, ok := raftstore.Get(r, record.Databases, s.Owner.ID)
	return ok && d.Status == record.DatabaseRestoring
}
