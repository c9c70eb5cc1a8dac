package fork

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// store uploads the capture to the snapshot store and returns the digest of its
// manifest.
func (f *Flows) store(ctx context.Context, group, hostID string) (manifest string, err error) {
	err = f.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error {
		made, err := c.StoreCapture(ctx, group)
		manifest = made.Manifest
		return err
	})
	return manifest, err
}

// placeElsewhere is the step that chooses other hosts for the children that hosts
// have refused.
func (f *Flows) placeElsewhere(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	f.clean(ctx, run, data)
	var failed error
	if !data.Stored {
		data.Manifest, failed = f.store(ctx, groupOf(run.Flow), data.HostID)
		if failed != nil && (hosts.Superseded(ctx, failed) || f.passing(run, data.HostID, failed)) {
			return nil, failed
		}
		data.Stored = failed == nil
	}
	chosen := map[int]placement.Choice{}
	for i := range data.Children {
		child := &data.Children[i]
		row, ok := starting(run.View, run.Flow, child.ID)
		if !ok || row.HostID != "" {
			continue
		}
		if failed != nil {
			child.Error = "no room on the host of its parent, and the capture could not be stored for another: " + reason(failed)
			child.Reason = max(child.Reason, reasonFull)
			continue
		}
		req := f.requestElsewhere(row, child.Tried...)
		req.Prefer = data.HostID
		choice, err := f.Hosts.Place(run.View, row.ID, row.Generation+1, req)
		var none *placement.Error
		switch {
		case err == nil:
			chosen[i] = choice
		case !errors.As(err, &none):
			return nil, err
		case f.Hosts.Warming(run.View):
			return nil, err // retried when the hosts have been heard
		default:
			child.Error, child.Reason = none.Error(), max(child.Reason, reasonFull)
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		data := data.clone()
		for i := range data.Children {
			child := &data.Children[i]
			row, ok := starting(tx, run.Flow, child.ID)
			choice, placed := chosen[i]
			switch {
			case !ok:
				if child.Error == "" && child.MS == 0 {
					child.Error = errDeleted
				}
			case placed:
				c := row.Clone()
				c.HostID, c.Generation = choice.HostID, row.Generation+1
				raftstore.Put(tx, record.Sandboxes, c)
				if choice.HostID != data.HostID && !slices.Contains(data.Copies, choice.HostID) {
					data.Copies = append(data.Copies, choice.HostID)
				}
			case child.Error != "":
				sandbox.DeleteRow(tx, row)
			}
		}
		return flow.Goto(stepStart, data), nil
	}, nil
}

// clean deletes boxes that hosts that did not answer may have created, before the
// children are created elsewhere.
func (f *Flows) clean(ctx context.Context, run flow.Run, data Fork) {
	var all errgroup.Group
	for _, child := range data.Children {
		row, ok := starting(run.View, run.Flow, child.ID)
		if ok && row.HostID == "" && child.Reason == reasonUnreachable && len(child.Tried) > 0 {
			all.Go(func() error {
				f.sandboxes.Clean(ctx, row.ID, child.Tried[len(child.Tried)-1], row.Generation)
				return nil
			})
		}
	}
	_ = all.Wait() // what fails is logged
}

// warm is the step in which the child takes over the parent's memory, disk and slot.
func (f *Flows) warm(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	outcomes := make([]outcome, 1)
	if row, ok := starting(run.View, run.Flow, data.Children[0].ID); ok {
		_ = f.postStaged(ctx, run, &data) // finish repeats it
		outcomes[0] = f.put(ctx, run, &data, 0, row)
		if outcomes[0].err == nil || !refused(outcomes[0].err) { // a fork that was refused has no child
			f.postOutcome(ctx, run, &data, 0, outcomes[0]) // finish repeats it, too
		}
	}
	if err := f.mustRetry(ctx, run, &data, outcomes); err != nil {
		return nil, err
	}
	if err := outcomes[0].err; refused(err) {
		return f.giveUp(ctx, run, data, err), nil
	}
	data.PauseMS = outcomes[0].box.PauseMS
	return f.commitOutcomes(ctx, run, data, outcomes), nil
}

// refused reports whether a host refused because of the parent's state.
func refused(err error) bool {
	return hostapi.HasCode(err, hostapi.CodeIllegalState) || hostapi.HasCode(err, hostapi.CodeNotRunning) || hostapi.HasCode(err, hostapi.CodeNotFound)
}

// giveUp ends a fork whose parent could not be captured.
func (f *Flows) giveUp(ctx context.Context, run flow.Run, data Fork, cause error) flow.Commit {
	failure := sandbox.NotCaptured(cause, errNoChild)
	for _, c := range data.Children {
		f.Hosts.Release(c.ID)
	}
	f.release(ctx, groupOf(run.Flow), data, true) // the capture may exist
	return func(tx *raftstore.Tx) (flow.Next, error) {
		f.drop(tx, run, data)
		return flow.Fail(failure), nil
	}
}

// drop removes the rows of children that have not started, and the request's
// idempotency key.
func (f *Flows) drop(tx *raftstore.Tx, run flow.Run, data Fork) {
	for _, c := range data.Children {
		if row, ok := starting(tx, run.Flow, c.ID); ok {
			sandbox.DeleteRow(tx, row)
		}
	}
	data.FreeKey(tx)
}
