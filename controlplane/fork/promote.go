package fork

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// stepAwait waits until the siblings of a promoted child are gone, and posts the
// event.
const stepAwait = "await"

// RolePromoted is the fork_tree_role of the chosen child.
const RolePromoted = "promoted"

type promotion struct {
	RequestID string   `json:"request_id,omitempty"`
	Tree      string   `json:"tree"`
	Deleted   []string `json:"deleted,omitempty"`
}

// BeginPromote marks a child of a tree as chosen. With cleanup it also begins the
// deletion of its siblings, and returns their ids; the flow ends when they are gone.
// It deletes neither the parent nor a sandbox with an owner.
func BeginPromote(tx *raftstore.Tx, flowID string, s *record.Sandbox, cleanup bool, requestID string) (deleted []string, err error) {
	c := s.Clone()
	if c.Metadata, err = withKeys(c.Metadata, map[string]any{"fork_tree_role": RolePromoted}); err != nil {
		return nil, err
	}
	raftstore.Put(tx, record.Sandboxes, c)
	if cleanup {
		for _, sibling := range raftstore.Find(tx, record.Sandboxes, "fork_tree", s.ForkTree) {
			if sibling.ID == s.ID || sibling.WorkspaceID != s.WorkspaceID || sibling.Owner != nil {
				continue
			}
			if _, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), sibling, requestID); err != nil {
				return nil, err
			}
			deleted = append(deleted, sibling.ID)
		}
	}
	return deleted, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindPromote, Subject: promotePrefix + s.ID, Step: stepAwait,
		Data: promotion{RequestID: requestID, Tree: s.ForkTree, Deleted: deleted},
	})
}

const promotePrefix = "promotions/"

// promotedsHost returns the host that a promotion calls.
func promotedsHost(r raftstore.Reader, fl *record.Flow) string {
	row, ok := raftstore.Get(r, record.Sandboxes, strings.TrimPrefix(fl.Subject, promotePrefix))
	if !ok {
		return ""
	}
	return row.HostID
}

func (f *Flows) await(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data promotion
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	for _, id := range data.Deleted {
		if _, there := raftstore.Get(run.View, record.Sandboxes, id); there {
			return func(*raftstore.Tx) (flow.Next, error) {
				return flow.Wait(stepAwait, time.Second, nil, record.Sandboxes.Name), nil
			}, nil
		}
	}
	id := run.Flow.Subject[len(promotePrefix):]
	if row, ok := raftstore.Get(run.View, record.Sandboxes, id); ok {
		if err := f.postPromoted(hosts.WithRequestID(ctx, data.RequestID), run, data, row); err != nil && (hosts.Superseded(ctx, err) || f.passing(run, row.HostID, err)) {
			return nil, err
		}
	}
	return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
}

// postPromoted posts the promotion on the promoted sandbox, and on the parent if it
// still exists.
func (f *Flows) postPromoted(ctx context.Context, run flow.Run, data promotion, row *record.Sandbox) error {
	e := hostapi.NewEvent{
		Key: "promote/" + data.Tree + "/" + row.ID, Type: hostapi.EventForkTreePromoted, Message: "promoted",
		Metadata: map[string]any{"tree_id": data.Tree, "child_id": row.ID, "deleted": len(data.Deleted)},
	}
	var posts errgroup.Group
	posts.Go(func() error { return f.post(ctx, row.HostID, row.ID, e) })
	if parent, ok := raftstore.Get(run.View, record.Sandboxes, row.ForkedFrom); ok {
		posts.Go(func() error { return f.post(ctx, parent.HostID, parent.ID, e) })
	}
	return posts.Wait()
}
