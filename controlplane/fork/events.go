package fork

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// eventTimeout limits how long posting an event may delay the fork.
var eventTimeout = timescale.Limit(3 * time.Second)

// post adds an event to a sandbox's events. Steps may run twice, so each event has a
// key. A sandbox without a host has no events. If post fails, the event is posted
// again with the step that returns the error.
func (f *Flows) post(ctx context.Context, hostID, sandboxID string, e hostapi.NewEvent) error {
	if hostID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	err := f.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.PostEvent(ctx, sandboxID, e) })
	if err != nil {
		f.Logger.InfoContext(ctx, "event could not be told", "type", string(e.Type), "sandbox_id", hostapi.ShortID(sandboxID), "agent_id", hostID, "error", err)
	}
	return err
}

// about returns the metadata that every event of a fork contains.
func (d *Fork) about(group string) map[string]any {
	if d.Mode == Tree {
		return map[string]any{"tree_id": group}
	}
	return map[string]any{"mode": string(d.Mode)}
}

// postStaged posts on the parent that its children are being started.
func (f *Flows) postStaged(ctx context.Context, run flow.Run, data *Fork) error {
	group := groupOf(run.Flow)
	e := hostapi.NewEvent{
		Key: "fork/" + group + "/staged", Type: hostapi.EventForkStaged, Metadata: data.about(group),
		Message: fmt.Sprintf("captured in %d ms, starting %d children", data.PauseMS, len(data.Children)),
	}
	e.Metadata["count"], e.Metadata["mem_mib"] = len(data.Children), data.MemoryMB
	if data.Mode == Warm {
		e.Type, e.Message = hostapi.EventWarmForkStaged, "a child takes over memory, disk and address"
		e.Metadata["child_id"] = data.Children[0].ID
	} else {
		e.Metadata["pause_ms"] = data.PauseMS
	}
	return f.post(ctx, data.HostID, data.ParentID, e)
}

// postRunning posts on the parent that a child runs, ms after the fork began.
func (f *Flows) postRunning(ctx context.Context, run flow.Run, data *Fork, index int, ms int64) error {
	group, id := groupOf(run.Flow), data.Children[index].ID
	e := hostapi.NewEvent{
		Key: "fork/" + group + "/" + id, Type: hostapi.EventForkCompleted, Message: fmt.Sprintf("child %d is running", index), Metadata: data.about(group),
	}
	e.Metadata["child_id"], e.Metadata["index"], e.Metadata["ms"] = id, index, ms
	return f.post(ctx, data.HostID, data.ParentID, e)
}

// postFailed posts on the parent that a child has failed. Its key is not that of
// postRunning: if the whole batch is repeated, the child may run after all.
func (f *Flows) postFailed(ctx context.Context, run flow.Run, data *Fork, index int, why string) error {
	group, id := groupOf(run.Flow), data.Children[index].ID
	e := hostapi.NewEvent{
		Key: "fork/" + group + "/" + id + "/failed", Type: hostapi.EventForkChildFailed, Message: fmt.Sprintf("child %d failed", index), Metadata: data.about(group),
	}
	e.Metadata["child_id"], e.Metadata["index"], e.Metadata["error"] = id, index, why
	return f.post(ctx, data.HostID, data.ParentID, e)
}

// postOutcome posts what a host has answered about a child, unless the child is tried
// again.
func (f *Flows) postOutcome(ctx context.Context, run flow.Run, data *Fork, index int, o outcome) {
	switch {
	case o.err == nil:
		_ = f.postRunning(ctx, run, data, index, o.ends)
		_ = f.postChild(ctx, run, data, index, o.row, o.ends)
	case hosts.Superseded(ctx, o.err), f.passing(run, o.row.HostID, o.err):
	case final(data, data.Stored || f.hasStore(data.HostID), classify(o.err)):
		_ = f.postFailed(ctx, run, data, index, reason(o.err))
	}
}

// postOutcomes posts the outcome of every child and of the fork. It repeats the
// earlier events, in case they were lost.
func (f *Flows) postOutcomes(ctx context.Context, run flow.Run, data Fork) error {
	group := groupOf(run.Flow)
	if err := f.postStaged(ctx, run, &data); err != nil {
		return err
	}
	var posts errgroup.Group
	running := 0
	for i, c := range data.Children {
		if c.Error == "" {
			running++
			posts.Go(func() error { return f.postRunning(ctx, run, &data, i, c.MS) })
			if row, ok := raftstore.Get(run.View, record.Sandboxes, c.ID); ok {
				posts.Go(func() error { return f.postChild(ctx, run, &data, i, row, c.MS) })
			}
			continue
		}
		posts.Go(func() error { return f.postFailed(ctx, run, &data, i, c.Error) })
	}
	if err := posts.Wait(); err != nil || data.Mode != Tree {
		return err
	}
	return f.post(ctx, data.HostID, data.ParentID, hostapi.NewEvent{
		Key: "fork/" + group + "/completed", Type: hostapi.EventForkTreeCompleted,
		Message: fmt.Sprintf("%d of %d children are running", running, len(data.Children)),
		Metadata: map[string]any{
			"tree_id": group, "total": len(data.Children), "running": running, "failed": len(data.Children) - running, "ms": data.Ended,
		},
	})
}

// postChild posts a child's origin on the child, which ran ms after the fork began.
func (f *Flows) postChild(ctx context.Context, run flow.Run, data *Fork, index int, row *record.Sandbox, ms int64) error {
	group := groupOf(run.Flow)
	e := hostapi.NewEvent{
		Key: "fork/" + group, Type: hostapi.EventForked, Message: "forked from " + hostapi.ShortID(data.ParentID), Metadata: data.about(group),
	}
	if data.Mode == Warm {
		e.Type = hostapi.EventWarmForked
	}
	e.Metadata["parent_id"], e.Metadata["index"], e.Metadata["ms"] = data.ParentID, index, ms
	return f.post(ctx, row.HostID, row.ID, e)
}
