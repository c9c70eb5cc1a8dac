package database

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The steps of a rotation. The flow holds the new credentials, sealed, before anybody
// else learns them. So any leader sets the same ones, or puts the old ones back.
//
//	set ──► (the new ones are in force)
//	 │ refused, or the deadline
//	 ▼
//	revert ──► (the old ones are)
const (
	stepSet    = "set"
	stepRevert = "revert"
)

// rotateDeadline bounds the attempts to set new credentials.
var rotateDeadline = timescale.Limit(45 * time.Second)

// revertWait is how much longer the caller waits for the old credentials to be put back.
var revertWait = timescale.Limit(15 * time.Second)

// rotation is the data of a rotation.
type rotation struct {
	RequestID   string                      `json:"request_id,omitempty"`
	Credentials *record.DatabaseCredentials `json:"credentials"`
}

// ResetCredentials gives a running database a new password and a new broker token, and
// returns once a login with them has succeeded. Sessions that used the old ones are
// closed.
func (s *Databases) ResetCredentials(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return api.DatabaseConnection{}, err
	}
	if s.singleNode() {
		return api.DatabaseConnection{}, errSingleNode
	}
	if err := s.mayRotate(view, d); err != nil {
		return api.DatabaseConnection{}, err
	}
	data := rotation{RequestID: c.RequestID}
	if data.Credentials, err = s.flows.newCredentials(id); err != nil {
		return api.DatabaseConnection{}, apierror.As(err)
	}
	flowID := flow.NewID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		d, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := s.mayRotate(tx, d); err != nil {
			return err
		}
		return flow.Begin(tx, flow.New{
			ID: flowID, Kind: KindRotate, Subject: Subject(id), Step: stepSet, Data: data, Deadline: tx.Now().Add(rotateDeadline),
		})
	})
	if err != nil {
		return api.DatabaseConnection{}, err
	}
	wait, cancel := context.WithTimeout(ctx, rotateDeadline+revertWait)
	defer cancel()
	err = s.core.Await(wait, flowID, nil)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		err = errNotRotated.With("its host does not answer; the old credentials are put back as soon as it does", err)
	}
	if err != nil {
		return api.DatabaseConnection{}, err
	}
	// A failover may have preempted the rotation, or its outcome may be forgotten. The
	// row has the answer.
	if view, err = s.core.CurrentAfter(ctx); err != nil {
		return api.DatabaseConnection{}, err
	}
	if d, err = Owned(view, c, id); err != nil {
		return api.DatabaseConnection{}, err
	}
	if !bytes.Equal(d.Credentials.BrokerTokenHash, data.Credentials.BrokerTokenHash) {
		return api.DatabaseConnection{}, errNotRotated.With("the old credentials are in force", nil)
	}
	out, err := s.show(view, d)
	return connectionOf(out), err
}

var errNotRotated = apierror.Unreachable("credentials were not rotated", nil)

// mayRotate refuses a rotation if the database does not run, or takes no writes, or if
// another rotation is under way.
func (s *Databases) mayRotate(r raftstore.Reader, d *record.Database) error {
	if status, hint := s.standing(r, d).status(); status != api.DatabaseRunning {
		return notNow(status, hint)
	}
	// Neither the new password nor the old one could be set until there is room again.
	if f, ok := s.heard.fact(d.ID, d.SandboxID); ok && f.state.Volume.Writes == pgapi.WritesStopped {
		return &apierror.Error{Code: apierror.EConflict, Message: "database takes no writes", Detail: unwell(f.state)}
	}
	if live, ok := flow.Live(r, Subject(d.ID)); ok && live.Kind == KindRotate {
		return &apierror.Error{Code: apierror.EConflict, Message: "a rotation of its credentials is under way"}
	}
	return nil
}

// set sets the new credentials.
func (f *Flows) set(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data rotation
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	d, ok := of(run.View, run.Flow)
	if !ok || d.Status == record.DatabaseDeleting {
		return resource.Finish, nil
	}
	box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID)
	if !ok {
		return going(flow.Fail(&apierror.Error{Code: apierror.EConflict, Message: "database has failed", Detail: errBoxGone})), nil
	}
	if box.Status != record.SandboxRunning { // it was put to sleep, or is moved, since this began
		if err := f.awaken(ctx, d.ID); err != nil {
			return nil, err
		}
		return going(flow.Goto(stepSet, nil)), nil
	}
	err := f.setCredentials(ctx, data.RequestID, d, box, data.Credentials)
	switch {
	case hostapi.HasCode(err, hostapi.CodeNotVerified):
		return going(flow.Goto(stepRevert, nil)), nil // the step may run twice, so nobody knows which were in force before
	case err != nil:
		return nil, err // retry until the deadline: they may or may not be set
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := of(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		d = d.Clone()
		d.Credentials = data.Credentials
		raftstore.Put(tx, record.Databases, d)
		return flow.Done(), nil
	}, nil
}

// revert puts the old credentials back, however long that takes: the new ones may be set,
// and nobody knows them.
func (f *Flows) revert(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data rotation
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	d, ok := of(run.View, run.Flow)
	if !ok || d.Status == record.DatabaseDeleting {
		return resource.Finish, nil
	}
	box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID)
	if !ok {
		return going(flow.Fail(errNotRotated)), nil // only a restore is left, and it sets the old ones
	}
	if box.Status != record.SandboxRunning {
		if err := f.awaken(ctx, d.ID); err != nil {
			return nil, err
		}
		return going(flow.Goto(stepRevert, nil)), nil
	}
	if err := f.setCredentials(ctx, data.RequestID, d, box, d.Credentials); err != nil {
		return nil, fmt.Errorf("put the old credentials back: %w", err)
	}
	return going(flow.Fail(errNotRotated.With("the old credentials are in force", nil))), nil
}
