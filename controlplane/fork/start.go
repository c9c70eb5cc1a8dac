package fork

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of a fork.
//
//	start ──────────► finish        captures, then starts every child where it is placed
//	 │  ▲
//	 ▼  │ a host refused, another is chosen
//	place                           uploads the capture to the store for other hosts
//
//	warm ───────────► finish        one call does it all
//
// A batch of children is one step: one transaction begins a fork, one commits the
// running children, and one ends it. Past the deadline (expire), children that have
// not started are given up.
const (
	stepStart  = "start"
	stepWarm   = "warm"
	stepPlace  = "spread" // as in the flows of earlier versions
	stepFinish = "settle" // as in the flows of earlier versions
	stepExpire = "expire"
)

// outcome is a host's answer about one child.
type outcome struct {
	row  *record.Sandbox // at the time of the call; nil: there was no call
	box  hostapi.Box
	err  error
	ends int64 // ms after Begun
}

// start is the step that captures the parent and starts every placed child.
func (f *Flows) start(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	first := !data.Captured
	if err := f.capture(ctx, run, &data); err != nil {
		if hosts.Superseded(ctx, err) || f.passing(run, data.HostID, err) {
			return nil, err
		}
		return f.giveUp(ctx, run, data, err), nil
	}
	outcomes := make([]outcome, len(data.Children))
	unplaced, stored, manifest := false, data.Stored, data.Manifest
	var all errgroup.Group
	announced := make(chan struct{})
	all.Go(func() error {
		defer close(announced)
		if first {
			_ = f.postStaged(ctx, run, &data) // finish repeats it
		}
		return nil
	})
	for i := range data.Children {
		row, ok := starting(run.View, run.Flow, data.Children[i].ID)
		switch {
		case !ok:
		case row.HostID == "":
			unplaced = true
		default:
			f.Hosts.Reserve(row) // an earlier leader may have placed it
			all.Go(func() error {
				outcomes[i] = f.put(ctx, run, &data, i, row)
				<-announced
				f.postOutcome(ctx, run, &data, i, outcomes[i]) // finish repeats it, too
				return nil
			})
		}
	}
	if unplaced && !stored {
		// Unplaced children need the upload now. Otherwise it comes after the
		// children, which then have the processors to themselves.
		all.Go(func() error {
			var err error
			manifest, err = f.store(ctx, groupOf(run.Flow), data.HostID)
			stored = err == nil
			return nil
		})
	}
	_ = all.Wait() // each child has its own outcome
	data.Stored, data.Manifest = stored, manifest
	if err := f.mustRetry(ctx, run, &data, outcomes); err != nil {
		return nil, err
	}
	return f.commitOutcomes(ctx, run, data, outcomes), nil
}

// capture captures the parent. Repeating the call returns the same capture.
func (f *Flows) capture(ctx context.Context, run flow.Run, data *Fork) error {
	if data.Captured {
		return nil
	}
	return f.Hosts.Call(ctx, data.HostID, func(ctx context.Context, c *hosts.Client) error {
		made, err := c.PutCapture(ctx, groupOf(run.Flow), hostapi.CaptureSpec{
			BoxID: data.ParentID, Generation: data.Generation, Memory: data.Mode == Tree, After: hostapi.AfterResume,
			// Nothing needs the capture once the children have started.
			Transient: true,
		})
		if err != nil {
			return err
		}
		data.Captured, data.PauseMS, data.MemoryMB = true, made.PauseMS, made.MemoryMB
		return nil
	})
}

// put starts one child on its host.
func (f *Flows) put(ctx context.Context, run flow.Run, data *Fork, index int, row *record.Sandbox) outcome {
	out := outcome{row: row}
	spec, err := f.spec(run.View, data, index, row)
	if err == nil {
		if data.Mode == Warm {
			spec.WarmFrom = data.ParentID
		} else if spec.Capture, spec.Manifest = groupOf(run.Flow), data.Manifest; data.Mode == Cold {
			spec.Boot = hostapi.BootCold
		}
		err = f.Hosts.Call(ctx, row.HostID, func(ctx context.Context, c *hosts.Client) error {
			var err error
			out.box, err = f.Hosts.PutBox(ctx, c, row.ID, spec)
			return err
		})
	}
	if err == nil && out.box.Status != hostapi.StatusRunning {
		err = &hostapi.Error{Code: hostapi.CodeInternal, Message: "box is " + string(out.box.Status), Detail: out.box.Error}
	}
	out.err, out.ends = err, f.since(data)
	return out
}

func (f *Flows) since(data *Fork) int64 { return max(0, f.Clock().Sub(data.Begun).Milliseconds()) }

func (f *Flows) spec(r raftstore.Reader, data *Fork, index int, row *record.Sandbox) (hostapi.BoxSpec, error) {
	env, err := f.sandboxes.OpenEnv(r, row.ID, row.EnvRef)
	if err != nil {
		return hostapi.BoxSpec{}, err
	}
	origin := map[string]any{"forked_from": data.ParentID}
	if row.ForkTree != "" {
		origin["fork_tree_id"], origin["fork_index"] = row.ForkTree, index
	}
	return hostapi.BoxSpec{
		Generation: row.Generation, WorkspaceID: row.WorkspaceID, Template: sandbox.TemplateOf(row), Env: env, Origin: origin,
	}, nil
}

// mustRetry returns the error for which the batch must be repeated, or nil. It waits
// for the parent's host while that restarts, because its children belong there;
// those of other hosts can go to yet another. Once the batch's own time is over, it
// is not repeated: one host that hangs would keep the running children of the others
// out of the record until the fork's deadline. Only a warm fork is repeated even
// then: no other host can take its child, which is all that is left of its parent.
func (f *Flows) mustRetry(ctx context.Context, run flow.Run, data *Fork, outcomes []outcome) error {
	timeUp := data.Mode != Warm && errors.Is(ctx.Err(), context.DeadlineExceeded)
	for _, o := range outcomes {
		switch {
		case o.err == nil:
		case hosts.Superseded(ctx, o.err):
			return o.err
		case timeUp:
		case hostapi.HasCode(o.err, hostapi.CodeDraining) && o.row.HostID != data.HostID:
		case f.passing(run, o.row.HostID, o.err):
			return o.err
		}
	}
	return nil
}

// commitOutcomes commits the outcomes of a batch: children that run, that go to
// another host, or that have failed.
func (f *Flows) commitOutcomes(ctx context.Context, run flow.Run, data Fork, outcomes []outcome) flow.Commit {
	store := data.Stored || f.hasStore(data.HostID)
	for i, o := range outcomes {
		if o.row == nil || o.err == nil {
			continue
		}
		child := &data.Children[i]
		child.Reason = classify(o.err)
		child.Tried = append(slices.Clone(child.Tried), o.row.HostID)
		if final(&data, store, child.Reason) {
			child.Error = reason(o.err)
		}
		f.Hosts.Release(child.ID)
		f.Logger.WarnContext(ctx, "host did not start a child of a fork", "group", groupOf(run.Flow), "child", childName(i, child.ID),
			"agent_id", o.row.HostID, "request_id", data.RequestID, "error", o.err)
	}
	parent := f.parentAfter(ctx, data)
	return func(tx *raftstore.Tx) (flow.Next, error) {
		data, waiting := data.clone(), false
		for i, o := range outcomes {
			child := &data.Children[i]
			row, ok := starting(tx, run.Flow, child.ID)
			switch {
			case !ok && o.row != nil && child.Error == "":
				child.Error = errDeleted
			case !ok:
			case o.row == nil:
				waiting = true // not placed yet
			case o.err == nil && row.Generation == o.row.Generation:
				child.MS, child.Reason = o.ends, 0
				markRunning(tx, row, o.box)
			case o.err == nil:
				waiting = true
			case child.Error != "":
				sandbox.DeleteRow(tx, row)
			default:
				c := row.Clone()
				c.HostID = "" // the next placement increases the generation
				raftstore.Put(tx, record.Sandboxes, c)
				waiting = true
			}
		}
		parent.follow(tx)
		if waiting {
			return flow.Goto(stepPlace, data), nil
		}
		data.Ended = f.since(&data)
		return flow.Goto(stepFinish, data), nil
	}
}

// final reports whether a child that a host did not start is not tried on another.
func final(data *Fork, store bool, why reasonKind) bool {
	return why == reasonFailed || !store || data.Mode == Warm
}

const errDeleted = "it was deleted while it was being made"

// markRunning updates the row of a child that runs.
func markRunning(tx *raftstore.Tx, row *record.Sandbox, box hostapi.Box) {
	c := row.Clone()
	c.Status, c.StartedAt, c.HostSeq, c.StartedBy = record.SandboxRunning, tx.Now(), box.Seq, ""
	c.CPU, c.MemoryMB, c.DiskMB = box.CPU, box.MemoryMB, box.DiskMB
	sandbox.StartTTL(c, tx.Now())
	raftstore.Put(tx, record.Sandboxes, c)
}

func (d Fork) clone() Fork {
	d.Children, d.Copies = slices.Clone(d.Children), slices.Clone(d.Copies)
	return d
}

// classify returns why a host did not start a child. Another host may if it was full
// or unreachable.
func classify(err error) reasonKind {
	var refusal *hostapi.Error
	switch {
	case hosts.Unreachable(err):
		return reasonUnreachable
	case errors.As(err, &refusal):
		switch refusal.Code {
		case hostapi.CodeNoMemory, hostapi.CodeNoDisk, hostapi.CodeNoSlot, hostapi.CodeDraining, hostapi.CodeBusy,
			hostapi.CodeTemplateMissing:
			return reasonFull
		}
	}
	return reasonFailed
}

// reason returns the text for clients about a child that failed. Details of hosts
// are for operators, except about a damaged capture.
func reason(err error) string {
	var refusal *hostapi.Error
	switch {
	case hosts.Unreachable(err):
		return "agent unreachable"
	case !errors.As(err, &refusal), refusal.Code == hostapi.CodeInternal:
		return "sandbox failed to start"
	case refusal.Code == hostapi.CodeNoMemory:
		return "insufficient host memory for sandbox"
	case refusal.Code == hostapi.CodeBadSnapshot, refusal.Code == hostapi.CodeNoSnapshot:
		return refusal.Error()
	}
	return refusal.Message
}
