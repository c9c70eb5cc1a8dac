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
//	place                           the capture goes into the store for the others
//
//	warm ───────────► finish        one call does it all
//
// A batch of children is one step: one transaction begins a fork, one makes the
// children running, and one ends it. Past the deadline (expire) what has not
// come to life is given up.
const (
	stepStart  = "start"
	stepWarm   = "warm"
	stepPlace  = "spread" // as in the flows of earlier versions
	stepFinish = "settle" // as in the flows of earlier versions
	stepExpire = "expire"
)

// outcome is what a host said of one child.
type outcome struct {
	row  *record.Sandbox // as it was when the host was asked; nil: it was not
	box  hostapi.Box
	err  error
	ends int64 // ms after Begun
}

// start captures the parent and starts every placed child from the capture.
func (f *Flows) start(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hostCtx(ctx, data.RequestID)
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
			_ = f.postStaged(ctx, run, &data) // finish tells it again
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
			f.Hosts.Reserve(row) // a leader before this one may have placed it
			all.Go(func() error {
				outcomes[i] = f.put(ctx, run, &data, i, row)
				if <-announced; outcomes[i].err == nil {
					_ = f.postRunning(ctx, run, &data, i, outcomes[i].ends) // and this
				}
				return nil
			})
		}
	}
	if unplaced && !stored {
		// Those wait for the upload anyway. In any other case it comes after the
		// children, who then have the processors to themselves.
		all.Go(func() error {
			var err error
			manifest, err = f.store(ctx, run, data.HostID)
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

// capture makes the capture, which is a single one however often it is asked for.
func (f *Flows) capture(ctx context.Context, run flow.Run, data *Fork) error {
	if data.Captured {
		return nil
	}
	return f.Hosts.Call(ctx, data.HostID, func(ctx context.Context, c *hosts.Client) error {
		made, err := c.PutCapture(ctx, groupOf(run.Flow), hostapi.CaptureSpec{
			BoxID: data.ParentID, Generation: data.Generation, Memory: data.Mode == Tree, After: hostapi.AfterResume,
			// The children are there in a moment, and nothing needs it after them.
			Transient: true,
		})
		if err != nil {
			return err
		}
		data.Captured, data.PauseMS, data.MemoryMB = true, made.PauseMS, made.MemoryMB
		return nil
	})
}

// put starts one child.
func (f *Flows) put(ctx context.Context, run flow.Run, data *Fork, index int, row *record.Sandbox) outcome {
	out := outcome{row: row}
	spec, err := f.spec(data, index, row)
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

func (f *Flows) spec(data *Fork, index int, row *record.Sandbox) (hostapi.BoxSpec, error) {
	env, err := f.sandboxes.OpenEnv(row.ID, row.EnvSealed)
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

// mustRetry returns why the batch has to be asked for once more, nil when it is over.
// The parent's host is waited for while it restarts: its children belong there.
// For those that went elsewhere another host is as good. Once the batch's own time
// is over it is not asked for again: one host that hangs would keep from the record
// what runs on the others, until the fork's time is over too. A warm fork has no
// others, and its child is all that is left of its parent.
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

// commitOutcomes records what became of a batch: running children, children that go
// elsewhere, and children that there will not be.
func (f *Flows) commitOutcomes(ctx context.Context, run flow.Run, data Fork, outcomes []outcome) flow.Commit {
	store := data.Stored || f.hasStore(data.HostID)
	for i, o := range outcomes {
		if o.row == nil || o.err == nil {
			continue
		}
		child := &data.Children[i]
		child.Reason = classify(o.err)
		child.Tried = append(slices.Clone(child.Tried), o.row.HostID)
		if child.Reason == reasonFailed || !store || data.Mode == Warm {
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
				waiting = true // it was not placed
			case o.err == nil && row.Generation == o.row.Generation:
				child.MS, child.Reason = o.ends, 0
				markRunning(tx, row, o.box)
			case o.err == nil:
				waiting = true
			case child.Error != "":
				sandbox.DeleteRow(tx, row)
			default:
				c := row.Clone()
				c.HostID = "" // the generation stays: the next placement counts on from it
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

const errDeleted = "it was deleted while it was being made"

// markRunning makes one child running.
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

// classify says whether another host might do it.
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

// reason is what a client is told of a child's end. What a host says in detail
// is for its operator, but for what is wrong with a capture.
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
