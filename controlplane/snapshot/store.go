package snapshot

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The delays between the attempts to upload a snapshot after its creation; each is
// twice the one before. An upload that failed continues where it was.
const (
	firstPause = 10 * time.Second
	maxDoubled = 6 // up to about ten minutes
)

// again is the data of KindStore.
type again struct {
	Tries int `json:"tries"`
}

// unstored reports whether a snapshot is to be uploaded: its host has it and a
// store, and no flow is working on it.
func unstored(r raftstore.Reader, s *record.Snapshot, host hosts.Session) bool {
	if s.Status != record.ResourceReady || s.Stored || !host.Heartbeat.Store {
		return false
	}
	_, live := flow.Live(r, Resource.Subject(s.ID))
	return !live && slices.ContainsFunc(host.Heartbeat.Captures, func(c hostapi.CaptureState) bool { return c.ID == s.ID })
}

// beginStore begins the flow that repeats the upload until the snapshot is stored,
// lost or deleted.
func beginStore(tx *raftstore.Tx, flowID string, s *record.Snapshot) error {
	return flow.Begin(tx, flow.New{ID: flowID, Kind: KindStore, Subject: Resource.Subject(s.ID), Step: stepStoreAgain, Data: again{}})
}

// storeAgain is the step that tries the upload once.
func (f *flows) storeAgain(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data again
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Of(run.View, run.Flow)
	if !ok || s.Status != record.ResourceReady || s.Stored {
		return resource.Finish, nil
	}
	made, err := f.upload(ctx, s)
	if hosts.Superseded(ctx, err) {
		return nil, err
	}
	pause := f.pause << min(data.Tries, maxDoubled)
	if err != nil {
		f.Logger.WarnContext(ctx, "snapshot is not stored yet", "snapshot_id", s.ID, "agent_id", s.HostID,
			"tries", data.Tries+1, "next_in", pause, "error", err)
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if err != nil {
			return flow.Sleep(stepStoreAgain, pause, again{Tries: data.Tries + 1}), nil
		}
		if now, ok := raftstore.Get(tx, record.Snapshots, s.ID); ok {
			c := now.Clone()
			c.Stored, c.Manifest = true, made.Manifest
			raftstore.Put(tx, record.Snapshots, c)
		}
		return flow.Done(), nil
	}, nil
}

// FailedUploads returns how often the upload of a snapshot has failed that is tried again
// and again since its creation.
func FailedUploads(r raftstore.Reader, id string) int {
	fl, live := flow.Live(r, Resource.Subject(id))
	var data again
	if !live || fl.Kind != KindStore || flow.Decode(fl, &data) != nil {
		return 0
	}
	return data.Tries
}

// upload asks the snapshot's host to upload it.
func (f *flows) upload(ctx context.Context, s *record.Snapshot) (made hostapi.Capture, err error) {
	err = f.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error {
		made, err = c.StoreCapture(ctx, s.ID)
		return err
	})
	return made, err
}
