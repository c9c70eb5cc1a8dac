package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const stepRemove = "remove"

type deleteData struct {
	RequestID string `json:"request_id,omitempty"`
}

// BeginDelete marks a sandbox and starts its removal in a transaction, whatever
// other flow is under way on it. It returns the id of the flow to wait for:
// the one there is already, when the sandbox is being deleted.
func BeginDelete(tx *raftstore.Tx, flowID string, s *record.Sandbox, requestID string) (string, error) {
	if s.Status == record.SandboxDeleting {
		if live, ok := flow.Live(tx, Subject(s.ID)); ok && live.Kind == KindDelete {
			return live.ID, nil
		}
	} else {
		c := s.Clone()
		c.Status = record.SandboxDeleting
		raftstore.Put(tx, record.Sandboxes, c)
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindDelete, Subject: Subject(s.ID), Step: stepRemove, Data: deleteData{RequestID: requestID},
	})
}

// remove deletes the box on its host, then the row. While the host may come
// back it is asked again and again; of a lost host nothing is expected: its
// boxes without a row are deleted when it returns.
func (f *Flows) remove(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deleteData
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := sandboxOf(run.View, run.Flow)
	if ok && s.AgentID != "" {
		if err := f.deleteBox(hostCtx(ctx, data.RequestID), s); err != nil {
			agent, known := raftstore.Get(run.View, record.Agents, s.AgentID)
			if !hosts.Unreachable(err) || known && agent.State == record.AgentUp {
				return nil, err
			}
		}
	}
	if ok {
		f.cfg.Hosts.Release(s.ID)
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if s, ok := sandboxOf(tx, run.Flow); ok {
			DeleteRow(tx, s)
		}
		return flow.Done(), nil
	}, nil
}

func (f *Flows) deleteBox(ctx context.Context, s *record.Sandbox) error {
	client, err := f.cfg.Hosts.Client(s.AgentID)
	if err != nil {
		return err
	}
	hctx, cancel := f.cfg.Hosts.WhileUp(ctx, s.AgentID)
	defer cancel()
	err = client.DeleteBox(hctx, s.ID, s.Generation)
	if hostapi.HasCode(err, hostapi.CodeStaleGeneration) {
		// Only a control store that was put back from a backup is behind its hosts.
		err = client.DeleteBox(hctx, s.ID, 0)
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("delete box: %w", err)
	}
	return nil
}
