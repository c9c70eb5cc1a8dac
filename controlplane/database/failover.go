package database

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The first steps of a failover. A provision follows: the same database in another
// sandbox, with its data from the archive. A provision whose host is lost also goes
// through the last two.
//
//	switch ──► fence ──► fenced ──► template ──► …
const (
	stepSwitch = "switch" // a running database archives what it has not yet archived
	stepFence  = "fence"  // delete its sandboxes
	stepFenced = "fenced" // wait until they are gone, and close the archive to writes
)

// Failover begins to restore a database in another sandbox, and returns at once. If it is
// refused, the database stays as it is.
func (s *Databases) Failover(ctx context.Context, c core.Caller, id string, in api.FailoverDatabase) (api.DatabaseFailover, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return api.DatabaseFailover{}, err
	}
	if s.singleNode() {
		return api.DatabaseFailover{}, errSingleNode
	}
	if err := s.mayFailOver(view, d, in.Force); err != nil {
		return api.DatabaseFailover{}, err
	}
	found, err := s.latest(ctx, view, d)
	switch {
	case errors.Is(err, errNoBucket):
		return api.DatabaseFailover{}, errNoHealthy.With(errNoBucket.Error(), err)
	case err != nil:
		return api.DatabaseFailover{}, hostRefusal(err)
	}
	if err := found.whole(); err != nil {
		return api.DatabaseFailover{}, err
	}
	if err := s.flows.room(view, d.Size); err != nil {
		return api.DatabaseFailover{}, errNoHealthy.With(core.NoNode(err).Detail, err)
	}
	status, _ := s.standing(view, d).status()
	data := provision{
		RequestID: c.RequestID, Source: &source{DatabaseID: d.ID, Archive: found.archive}, Switch: status == api.DatabaseRunning,
	}
	step := stepFence
	if data.Switch {
		step = stepSwitch
	}
	hint := s.lossHint(d, found, data.Switch)
	data.Hint = hint
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		d, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := s.mayFailOver(tx, d, in.Force); err != nil {
			return err
		}
		if err := stillThere(d, found.archive); err != nil {
			return err
		}
		d = d.Clone()
		d.Status, d.Error = record.DatabaseRestoring, hint
		raftstore.Put(tx, record.Databases, d)
		if err := tell(tx, api.WebhookFailoverStarted, d, api.WebhookFailover{Status: api.DatabaseRestoring, Forced: data.Switch, Detail: hint}); err != nil {
			return err
		}
		// Preempt a rotation, if there is one: the failover sets the credentials in force
		// anew.
		return flow.Preempt(tx, flow.New{
			ID: flow.NewID(), Kind: KindFailover, Subject: Subject(id), Step: step, Data: data, Deadline: tx.Now().Add(s.cfg.RestoreDeadline),
		})
	})
	if err != nil {
		return api.DatabaseFailover{}, err
	}
	s.core.Logger.WarnContext(ctx, "database fails over", "database_id", id, "archive", found.archive, "last_lsn", found.info.LastLSN, "request_id", c.RequestID)
	return api.DatabaseFailover{ID: id, Status: api.DatabaseRestoring, Error: hint}, nil
}

// tell enqueues a failover event for the webhooks of the database's workspace.
func tell(tx *raftstore.Tx, t api.WebhookEventType, d *record.Database, event api.WebhookFailover) error {
	event.DatabaseID, event.Label = d.ID, d.Label
	return webhook.Enqueue(tx, d.WorkspaceID, t, event)
}

var errNoHealthy = &apierror.Error{Code: apierror.EUnavailable, Message: "no healthy agent available"}

// mayFailOver refuses a failover that the database's status does not allow, or its
// workspace's credit.
func (s *Databases) mayFailOver(r raftstore.Reader, d *record.Database, force bool) error {
	if err := s.core.MayGoOn(r, d.WorkspaceID); err != nil {
		return err
	}
	standing := s.standing(r, d)
	switch status, hint := standing.status(); {
	case status == api.DatabaseFailed && !force && stored(standing.box):
		return notNow(status, errArriving+"; force gives that up, and restores what is archived")
	case status == api.DatabaseRunning && force && len(d.Archives) >= maxArchives:
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many failovers", Fields: map[string]any{"max": maxArchives, "active": len(d.Archives)},
			Detail: fmt.Sprintf("each leaves an archive that is kept until nothing of the last %s needs it", inWords(s.cfg.Retention)),
		}
	case status == api.DatabaseFailed && d.Credentials == nil:
		return errNoArchive.With("it never ran", nil)
	case status == api.DatabaseFailed, status == api.DatabaseRunning && force:
		return nil
	case status == api.DatabaseRunning:
		return notNow(status, "force stops it and restores what is archived; what was written in the last minute may be lost")
	case status == api.DatabaseHibernated:
		return notNow(status, "wake it instead")
	case status == api.DatabaseRestoring:
		return notNow(status, "a failover is under way")
	default:
		return notNow(status, hint)
	}
}

// lossHint says which writes a failover loses.
func (s *Databases) lossHint(d *record.Database, from origin, runs bool) string {
	ends := fmt.Sprintf("it is restored from its archive, which ends at LSN %s, %s", from.info.LastLSN, api.Time{Time: from.end})
	fact, _ := s.heard.fact(d.ID, d.SandboxID)
	archive := fact.state.Archive
	switch {
	case d.SandboxID != "" && from.archive != d.Archive().Name:
		return ends + "; what was written since its last failover is lost, for no base backup was made since"
	case runs:
		return fmt.Sprintf("%s, or with what it archives until it is stopped; up to %d seconds of writes may be lost", ends, max(int(math.Ceil(archive.LagSeconds)), seconds(s.cfg.ArchiveInterval)))
	case archive.LastAt.IsZero():
		return fmt.Sprintf("%s; what was written after that is lost, as a rule no more than %d seconds of writes", ends, seconds(s.cfg.ArchiveInterval))
	}
	after := from.end
	if archive.LastAt.After(after) {
		after = archive.LastAt
	}
	return fmt.Sprintf("%s; what was written after %s may be lost", ends, api.Time{Time: after})
}

// failoverOutlook reports whether a failed database can be restored. why says where, or
// why not.
func (s *Databases) failoverOutlook(r raftstore.Reader, d *record.Database) (available bool, why string) {
	a, archived := restorable(d)
	box, there := raftstore.Get(r, record.Sandboxes, d.SandboxID)
	switch {
	case there && stored(box):
		return false, errArriving
	case s.singleNode():
		return false, "single-node deployment: there is no other host to restore it on"
	case d.Credentials == nil || !archived:
		return false, "no archive yet: there is nothing to restore it from"
	case s.core.MayGoOn(r, d.WorkspaceID) != nil:
		return false, "its workspace is paused: the month's free credit is spent"
	case s.flows.room(r, d.Size) != nil:
		return false, "no healthy host has room for it"
	}
	where := "on another host"
	if there && hostUp(r, box.HostID) && !s.flows.roomBeside(box.HostID, r, d.Size) {
		where = "on its own host, the only one with room,"
	}
	return true, fmt.Sprintf("it can be restored %s from its archive, which ends at LSN %s, %s", where, a.LastLSN, api.Time{Time: a.LastRestorable})
}

// fence begins to delete the sandboxes that the database has had. On a lost host the
// sandbox has already ended: a host that hears no leader ends its exclusive sandboxes
// before the leader counts it as lost.
func (f *Flows) fence(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID); ok {
		data.Before = box.HostID
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		return flow.Goto(stepFenced, data), removeBoxes(tx, d)
	}, nil
}

// awaitFenced waits until the sandboxes are gone, then closes the archive to any writer
// that may be left.
func (f *Flows) awaitFenced(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if err := f.awaitGone(ctx, d); err != nil {
		return nil, err
	}
	if len(boxesOf(f.Store.View(), d)) > 0 {
		return going(flow.Goto(stepFenced, data)), nil
	}
	named, err := f.archive(d.Archive())
	if err != nil {
		return nil, err
	}
	err = f.anyHost(ctx, func(ctx context.Context, c *hosts.Client) error { return c.FenceArchive(ctx, named) })
	if err != nil && !hostapi.HasCode(err, hostapi.CodeNoArchive) {
		return nil, err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		d = d.Clone()
		d.SandboxID = ""
		closeArchive(tx, d)
		raftstore.Put(tx, record.Databases, d)
		return flow.Goto(stepTemplate, data), nil
	}, nil
}
