package fork

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of KindStore, which repeats the upload of a tree's capture until it is
// stored or no sandbox of the tree exists. Until then the capture stays on its host,
// where it takes the size of a guest's memory: after storeDeadline it is given up.
const (
	stepStoreAgain = "store again"
	stepNotStored  = "not stored"
)

const (
	storeDeadline = 24 * time.Hour
	maxDoubled    = 6 // of the delays between attempts
)

const storePrefix = "forkstores/"

// storeSubject is not the fork's own subject: whoever asks for the fork again must not
// wait for the upload.
func storeSubject(group string) string { return storePrefix + group }

// storing is the data of KindStore.
type storing struct {
	HostID    string   `json:"agent_id"`
	Copies    []string `json:"copies,omitempty"`
	RequestID string   `json:"request_id,omitempty"`
	Tries     int      `json:"tries"`
}

// capture returns what release needs to know of the fork.
func (s *storing) capture() Fork { return Fork{Mode: Tree, HostID: s.HostID, Copies: s.Copies} }

func beginStore(tx *raftstore.Tx, group string, data Fork) error {
	return flow.Begin(tx, flow.New{
		ID: flow.NewID(), Kind: KindStore, Subject: storeSubject(group), Step: stepStoreAgain, Deadline: tx.Now().Add(storeDeadline),
		Data: storing{HostID: data.HostID, Copies: data.Copies, RequestID: data.RequestID},
	})
}

func storesHost(_ raftstore.Reader, fl *record.Flow) string {
	var data storing
	if err := flow.Decode(fl, &data); err != nil {
		return "" // the step reports the error
	}
	return data.HostID
}

// storeAgain is the step that tries the upload once.
func (f *Flows) storeAgain(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data storing
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	group := strings.TrimPrefix(run.Flow.Subject, storePrefix)
	if len(raftstore.Find(run.View, record.Sandboxes, "fork_tree", group)) == 0 {
		f.release(ctx, group, data.capture(), true)
		return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
	}
	_, err := f.store(ctx, group, data.HostID)
	switch {
	case hosts.Superseded(ctx, err):
		return nil, err
	case hostapi.HasCode(err, hostapi.CodeNoSnapshot):
		f.Logger.WarnContext(ctx, "capture of a fork is gone and is not stored", "group", group, "agent_id", data.HostID, "request_id", data.RequestID)
	case err != nil:
		pause := f.StorePause << min(data.Tries, maxDoubled)
		data.Tries++
		f.Logger.WarnContext(ctx, "capture of a fork is not stored yet", "group", group, "agent_id", data.HostID, "request_id", data.RequestID,
			"tries", data.Tries, "next_in", pause, "error", err)
		return func(*raftstore.Tx) (flow.Next, error) { return flow.Sleep(stepStoreAgain, pause, data), nil }, nil
	}
	f.release(ctx, group, data.capture(), false)
	return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
}

// notStored is the step that gives up the upload.
func (f *Flows) notStored(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data storing
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	f.release(hosts.WithRequestID(ctx, data.RequestID), strings.TrimPrefix(run.Flow.Subject, storePrefix), data.capture(), true)
	return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
}
