// Package volume makes and removes volumes as flows. A volume is a file system
// on the one host that made it; sandboxes that have it go there.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flow.
const (
	KindCreate = "volume.create"
	KindDelete = "volume.delete"
)

// Prefix begins the id of every volume. With IDLength characters in all an id
// is short enough to be the serial number of a disk.
const (
	Prefix   = "vol-"
	IDLength = 20
)

// Deadline is how long a create may take, over all the hosts it tries.
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
	stepRemove = "remove"
)

// How a create fails.
var (
	ErrNoRoom      = errors.New("no host has room for the volume")
	ErrNoHost      = errors.New("no host can take the volume")
	ErrUnreachable = errors.New("the hosts chosen for the volume do not answer")
	ErrNotMade     = errors.New("the volume could not be made")
)

// Config is what the flows work with.
type Config struct {
	Hosts  *hosts.Registry
	Logger *slog.Logger
}

// Flows are the steps of both kinds.
type Flows struct{ cfg Config }

// New makes the flows.
func New(cfg Config) *Flows { return &Flows{cfg: cfg} }

// Kinds are for the engine.
func (f *Flows) Kinds() []flow.Kind {
	return []flow.Kind{
		{
			Name: KindCreate, Expire: stepExpire, ActTimeout: time.Minute, Host: hostOf,
			Steps: map[string]flow.Step{stepPlace: f.place, stepMake: f.make, stepExpire: f.expire},
		},
		{
			Name: KindDelete, ActTimeout: time.Minute, Host: hostOf,
			Steps: map[string]flow.Step{stepRemove: f.remove},
		},
	}
}

// hostOf is the host that a flow calls.
func hostOf(r raftstore.Reader, fl *record.Flow) string {
	v, ok := raftstore.Get(r, record.Volumes, idOf(fl))
	if !ok || fl.Step == stepPlace {
		return ""
	}
	return v.AgentID
}

// Subject names a volume for flows.
func Subject(id string) string { return flow.Subject(record.Volumes.Name, id) }

// Create is the data of both kinds.
type Create struct {
	RequestID        string   `json:"request_id,omitempty"`
	IdempotencyKeyID string   `json:"idempotency_key_id,omitempty"`
	Tried            []string `json:"tried,omitempty"` // hosts that did not do it
	Why              why      `json:"why,omitempty"`   // the weightiest reason of those
}

// why a host did not make a volume. A later one weighs more when no host is
// left and something has to be said.
type why int

const (
	whyFull why = iota + 1
	whyUnreachable
	whyFailed
)

// Begin puts a volume and what makes it into a transaction.
func Begin(tx *raftstore.Tx, flowID string, v *record.Volume, data Create) error {
	raftstore.Put(tx, record.Volumes, v)
	return flow.Begin(tx, flow.New{
		ID: flowID, Kind: KindCreate, Subject: Subject(v.ID), Step: stepPlace, Data: data, Deadline: tx.Now().Add(Deadline),
	})
}

// BeginDelete marks a volume and starts its removal, and returns the id of the
// flow to wait for: the one there is already, if there is one. The volume must
// not be attached.
func BeginDelete(tx *raftstore.Tx, flowID string, v *record.Volume, requestID string) (string, error) {
	if v.Status == record.ResourceDeleting {
		if live, ok := flow.Live(tx, Subject(v.ID)); ok && live.Kind == KindDelete {
			return live.ID, nil
		}
	} else {
		c := v.Clone()
		c.Status = record.ResourceDeleting
		raftstore.Put(tx, record.Volumes, c)
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindDelete, Subject: Subject(v.ID), Step: stepRemove, Data: Create{RequestID: requestID},
	})
}

func idOf(fl *record.Flow) string { return strings.TrimPrefix(fl.Subject, record.Volumes.Name+"/") }

func creating(r raftstore.Reader, fl *record.Flow) (*record.Volume, bool) {
	v, ok := raftstore.Get(r, record.Volumes, idOf(fl))
	return v, ok && v.Status == record.ResourceCreating
}

func finish(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }

// place chooses a host among those not yet tried.
func (f *Flows) place(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	v, ok := creating(run.View, run.Flow)
	if !ok {
		return finish, nil
	}
	agentID, err := f.cfg.Hosts.PlaceVolume(run.View, v.SizeMB, data.Tried)
	var none *placement.Error
	switch {
	case err == nil:
	case !errors.As(err, &none), f.cfg.Hosts.Warming(run.View):
		return nil, err // tried again when the hosts have been heard
	default:
		return giveUp(run, data, failure(data, none)), nil
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		v, ok := creating(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := v.Clone()
		c.AgentID = agentID
		raftstore.Put(tx, record.Volumes, c)
		return flow.Goto(stepMake, data), nil
	}, nil
}

// make asks the host for the volume.
func (f *Flows) make(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	v, ok := creating(run.View, run.Flow)
	if !ok {
		return finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	err := f.cfg.Hosts.Call(ctx, v.AgentID, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.PutVolume(ctx, v.ID, hostapi.VolumeSpec{WorkspaceID: v.WorkspaceID, SizeMB: v.SizeMB})
		return err
	})
	if err != nil {
		if hosts.Superseded(ctx, err) || hosts.Unreachable(err) && f.cfg.Hosts.Warming(run.View) {
			return nil, err // the next one to run this step decides, or the host is heard
		}
		f.cfg.Logger.WarnContext(ctx, "host did not make the volume", "volume_id", v.ID, "agent_id", v.AgentID, "request_id", data.RequestID, "error", err)
		// A volume that was made all the same is on a host that its row does not
		// name: the inventory removes it.
		data.Tried, data.Why = append(slices.Clone(data.Tried), v.AgentID), max(data.Why, classify(err))
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		v, ok := creating(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := v.Clone()
		if err != nil {
			c.AgentID = ""
			raftstore.Put(tx, record.Volumes, c)
			return flow.Goto(stepPlace, data), nil
		}
		c.Status = record.ResourceReady
		raftstore.Put(tx, record.Volumes, c)
		return flow.Done(), nil
	}, nil
}

func classify(err error) why {
	switch {
	case hosts.Unreachable(err):
		return whyUnreachable
	case hostapi.HasCode(err, hostapi.CodeNoDisk), hostapi.HasCode(err, hostapi.CodeDraining):
		return whyFull
	}
	return whyFailed
}

// failure is what a create with no host left fails with.
func failure(data Create, none *placement.Error) error {
	switch {
	case data.Why == whyFailed:
		return ErrNotMade
	case data.Why == whyUnreachable:
		return ErrUnreachable
	case data.Why == whyFull, none.Reason == placement.NoCapacity:
		return ErrNoRoom
	}
	return fmt.Errorf("%w: %w", ErrNoHost, none)
}

// expire ends a create that took too long.
func (f *Flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	return giveUp(run, data, ErrNotMade), nil
}

// giveUp removes every row of a create that failed.
func giveUp(run flow.Run, data Create, err error) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if v, ok := creating(tx, run.Flow); ok {
			raftstore.Delete(tx, record.Volumes, v.ID)
		}
		if data.IdempotencyKeyID != "" { // the same key may try again
			raftstore.Delete(tx, record.IdempotencyKeys, data.IdempotencyKeyID)
		}
		return flow.Fail(err), nil
	}
}

// remove deletes the volume on its host, then the row. Of a lost host nothing
// is expected: its volumes without a row are deleted when it returns.
func (f *Flows) remove(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	id := idOf(run.Flow)
	v, ok := raftstore.Get(run.View, record.Volumes, id)
	if ok && v.AgentID != "" {
		err := f.cfg.Hosts.Call(hosts.WithRequestID(ctx, data.RequestID), v.AgentID, func(ctx context.Context, c *hosts.Client) error {
			return c.DeleteVolume(ctx, id)
		})
		if err != nil {
			agent, known := raftstore.Get(run.View, record.Agents, v.AgentID)
			if !hosts.Unreachable(err) || known && agent.State == record.AgentUp {
				return nil, fmt.Errorf("delete volume: %w", err)
			}
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		raftstore.Delete(tx, record.Volumes, id)
		return flow.Done(), nil
	}, nil
}
