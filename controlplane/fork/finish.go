package fork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// finish is the step for what children need not wait for: the upload of a tree's
// capture, the events, and the removal of the capture.
func (f *Flows) finish(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	alive := 0
	for _, c := range data.Children {
		if c.Error == "" {
			alive++
		}
	}
	var all errgroup.Group
	var storing error
	upload := data.Mode == Tree && alive > 0 && !data.Stored && f.hasStore(data.HostID)
	if upload {
		all.Go(func() error {
			_, storing = f.store(ctx, groupOf(run.Flow), data.HostID) // nothing more starts from it
			return nil
		})
	}
	posting := f.postOutcomes(ctx, run, data)
	_ = all.Wait() // storing is checked below
	if posting != nil && (hosts.Superseded(ctx, posting) || f.passing(run, data.HostID, posting)) {
		return nil, posting
	}
	if storing != nil {
		if hosts.Superseded(ctx, storing) || f.passing(run, data.HostID, storing) {
			return nil, storing
		}
		f.Logger.WarnContext(ctx, "capture of a fork was not stored", "group", groupOf(run.Flow), "agent_id", data.HostID,
			"request_id", data.RequestID, "error", storing)
	}
	data.Stored = data.Stored || upload && storing == nil
	// Without the capture there is nothing to repeat: an earlier run of this step may
	// have stored and released it.
	repeat := storing != nil && !hostapi.HasCode(storing, hostapi.CodeNoSnapshot)
	// The stored capture of a tree stays while a sandbox of the tree exists.
	if !repeat {
		f.release(ctx, groupOf(run.Flow), data, data.Mode != Tree || alive == 0)
	}
	if alive == 0 {
		return func(tx *raftstore.Tx) (flow.Next, error) {
			f.drop(tx, run, data)
			return flow.Fail(data.failure()), nil
		}, nil
	}
	result := data.result()
	raw, err := json.Marshal(result) // for the idempotency key, which outlives the flow's outcome
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if key, ok := raftstore.Get(tx, record.IdempotencyKeys, data.IdempotencyKeyID); ok {
			key = key.Clone()
			key.Result = raw
			raftstore.Put(tx, record.IdempotencyKeys, key)
		}
		if repeat {
			if err := beginStore(tx, groupOf(run.Flow), data); err != nil {
				return flow.Next{}, err
			}
		}
		return flow.DoneWith(result), nil
	}, nil
}

// failure returns the error of a fork without any running child.
func (d *Fork) failure() error {
	var worst reasonKind
	for _, c := range d.Children {
		worst = max(worst, c.Reason)
	}
	switch worst {
	case reasonFull:
		return core.NoNode(&placement.Error{Reason: placement.NoCapacity})
	case reasonUnreachable:
		return core.ErrUnreachable
	}
	return errNoChild
}

// releaseTime limits each call that releases a capture.
var releaseTime = timescale.Limit(10 * time.Second)

// release deletes the capture from all hosts and, with unstore, from the store,
// through the parent's host or another. If a call fails, the inventory deletes the
// capture later, because no flow accounts for it any more.
func (f *Flows) release(ctx context.Context, group string, data Fork, unstore bool) {
	if data.Mode == Warm {
		return
	}
	limited := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, releaseTime)
		defer cancel()
		return do(ctx)
	}
	var calls errgroup.Group
	for _, hostID := range append([]string{data.HostID}, data.Copies...) {
		calls.Go(func() error {
			stored := unstore && hostID == data.HostID
			err := limited(func(ctx context.Context) error {
				return f.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, group, stored) })
			})
			if err == nil {
				return nil
			}
			f.Logger.InfoContext(ctx, "capture of a fork is left to the inventory", "group", group, "agent_id", hostID, "error", err)
			if !stored {
				return nil
			}
			err = limited(func(ctx context.Context) error { return f.Hosts.DeleteStored(ctx, group, hostID) })
			if err != nil && !errors.Is(err, hosts.ErrNoStore) {
				f.Logger.InfoContext(ctx, "stored capture of a fork is left to the inventory", "group", group, "error", err)
			}
			return nil
		})
	}
	_ = calls.Wait() // what fails is logged
}

// expire is the step that gives up the children that have not started in time.
func (f *Flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Fork
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	for _, c := range data.Children {
		if _, ok := starting(run.View, run.Flow, c.ID); ok {
			f.Hosts.Release(c.ID)
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		data := data.clone()
		for i := range data.Children {
			child := &data.Children[i]
			if row, ok := starting(tx, run.Flow, child.ID); ok {
				child.Error, child.Reason = "it took too long to start", reasonFailed
				sandbox.DeleteRow(tx, row)
			}
		}
		data.Ended = f.since(&data)
		return flow.Goto(stepFinish, data), nil
	}, nil
}

// parentState is the parent's state after a warm fork, as its host reports it.
type parentState struct {
	id    string
	state *hostapi.BoxState
}

// parentAfter asks for the parent's state after a warm fork, which stops the parent.
// If the call fails, the next heartbeat reports the state.
func (f *Flows) parentAfter(ctx context.Context, data Fork) parentState {
	p := parentState{id: data.ParentID}
	if data.Mode != Warm {
		return p
	}
	err := f.Hosts.Call(ctx, data.HostID, func(ctx context.Context, c *hosts.Client) error {
		b, err := c.GetBox(ctx, data.ParentID)
		if err == nil {
			state := b.State()
			p.state = &state
		}
		return err
	})
	if err != nil {
		f.Logger.InfoContext(ctx, "parent of a warm fork is left to the inventory", "sandbox_id", hostapi.ShortID(data.ParentID), "error", err)
	}
	return p
}

func (p parentState) follow(tx *raftstore.Tx) {
	if p.state == nil {
		return
	}
	if row, ok := raftstore.Get(tx, record.Sandboxes, p.id); ok {
		sandbox.Follow(tx, row, *p.state)
	}
}
