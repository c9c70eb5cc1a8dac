// Package volume creates and deletes volumes by flows. A volume is a file system on
// one host; sandboxes that use it are placed there.
package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Resource describes volumes to package resource. An attached volume must not be
// deleted.
var Resource = &resource.Kind[*record.Volume]{
	Name: "volume", Table: record.Volumes,
	Host:     func(v *record.Volume) string { return v.HostID },
	Owner:    func(v *record.Volume) string { return v.WorkspaceID },
	Creating: func(v *record.Volume) bool { return v.Status == record.ResourceCreating },
	Deleting: func(v *record.Volume) bool { return v.Status == record.ResourceDeleting },
	Delete: func(v *record.Volume) *record.Volume {
		c := v.Clone()
		c.Status = record.ResourceDeleting
		return c
	},
}

// Prefix is the beginning of every volume's id. With IDLength characters, an id fits
// into the serial number of a disk.
const (
	Prefix   = "vol-"
	IDLength = 20
)

// Deadline limits a create, over all the hosts that it tries.
var Deadline = timescale.Limit(2 * time.Minute)

// The steps of a create.
//
//	place ──► make ──► (ready)
//	  ▲        │ refused, unreachable: the next host
//	  └────────┘
const (
	stepPlace  = "place"
	stepMake   = "make"
	stepExpire = "expire"
)

// The errors of creates, for errors.Is. The others are core.ErrNoHost and
// core.ErrUnreachable.
var (
	ErrNoRoom  = &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host storage for volume", RetryAfter: time.Second}
	ErrNotMade = &apierror.Error{Code: apierror.EInternal, Message: "volume could not be made", Detail: "report the request id if a retry does not help"}
)

// flows contains the steps of both kinds.
type flows struct{ *core.Core }

// Kinds returns the kinds of flows, for the engine.
func (s *Volumes) Kinds() []flow.Kind {
	f := &flows{Core: s.core}
	return []flow.Kind{
		{
			Name: Resource.CreateKind(), Expire: stepExpire, ActTimeout: time.Minute, Host: Resource.HostOf(stepPlace), Workspace: Resource.OwnerOf,
			Steps: map[string]flow.Step{stepPlace: f.place, stepMake: f.make, stepExpire: f.expire},
		},
		Resource.Removal(f.remove),
	}
}

// Create is the data of a create.
type Create struct {
	resource.Data
	Tried  []string `json:"tried,omitempty"` // hosts that failed or refused
	Reason reason   `json:"why,omitempty"`   // the most important reason of those
}

// reason is why a host did not create a volume. If no host is left, the create
// reports the highest one.
type reason int

const (
	reasonFull reason = iota + 1
	reasonUnreachable
	reasonFailed
)

// Begin adds a volume and its create to a transaction.
func Begin(tx *raftstore.Tx, flowID string, v *record.Volume, data Create) error {
	return Resource.Begin(tx, "", flowID, v, stepPlace, data, tx.Now().Add(Deadline))
}

// place is the step that chooses a host among those not yet tried.
func (f *flows) place(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	v, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	hostID, err := f.Hosts.PlaceVolume(run.View, v.SizeMB, data.Tried)
	var none *placement.Error
	switch {
	case err == nil:
	case !errors.As(err, &none), f.Hosts.Warming(run.View):
		return nil, err // retried when the hosts have been heard
	default:
		return Resource.GiveUp(run, data.Data, failure(data, none)), nil
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		v, ok := Resource.Made(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := v.Clone()
		c.HostID = hostID
		raftstore.Put(tx, record.Volumes, c)
		return flow.Goto(stepMake, data), nil
	}, nil
}

// make is the step that creates the volume on the host.
func (f *flows) make(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	v, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	err := f.Hosts.Call(ctx, v.HostID, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.PutVolume(ctx, v.ID, hostapi.VolumeSpec{WorkspaceID: v.WorkspaceID, SizeMB: v.SizeMB})
		return err
	})
	if err != nil {
		if hosts.Superseded(ctx, err) || hosts.Unreachable(err) && f.Hosts.Warming(run.View) {
			return nil, err // another leader decides, or the host has not been heard yet
		}
		f.Logger.WarnContext(ctx, "host did not make the volume", "volume_id", v.ID, "agent_id", v.HostID, "request_id", data.RequestID, "error", err)
		// If the host created the volume all the same, its row names another host,
		// and the inventory deletes it.
		data.Tried, data.Reason = append(slices.Clone(data.Tried), v.HostID), max(data.Reason, classify(err))
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		v, ok := Resource.Made(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := v.Clone()
		if err != nil {
			c.HostID = ""
			raftstore.Put(tx, record.Volumes, c)
			return flow.Goto(stepPlace, data), nil
		}
		c.Status = record.ResourceReady
		raftstore.Put(tx, record.Volumes, c)
		return flow.Done(), nil
	}, nil
}

func classify(err error) reason {
	switch {
	case hosts.Unreachable(err):
		return reasonUnreachable
	case hostapi.HasCode(err, hostapi.CodeNoDisk), hostapi.HasCode(err, hostapi.CodeDraining):
		return reasonFull
	}
	return reasonFailed
}

// failure returns the error of a create for which no host is left.
func failure(data Create, none *placement.Error) error {
	switch {
	case data.Reason == reasonFailed:
		return ErrNotMade
	case data.Reason == reasonUnreachable:
		return core.ErrUnreachable
	case data.Reason == reasonFull, none.Reason == placement.NoCapacity:
		return ErrNoRoom
	}
	return core.NoNode(none)
}

// expire is the step that ends a create past its deadline.
func (f *flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	return Resource.GiveUp(run, data.Data, ErrNotMade), nil
}

func (f *flows) remove(ctx context.Context, view *raftstore.Snapshot, v *record.Volume) error {
	if v.HostID == "" {
		return nil
	}
	err := f.Hosts.Call(ctx, v.HostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteVolume(ctx, v.ID) })
	if err != nil && resource.MayReturn(view, v.HostID, err) {
		return fmt.Errorf("delete volume: %w", err)
	}
	return nil
}
