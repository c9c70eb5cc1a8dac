// Package snapshot makes and removes snapshots as flows: a capture of a running
// sandbox on its host, kept under a row and, where the host has a snapshot
// store, put into it so that any host can start from it.
package snapshot

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flow.
const (
	KindCreate = "snapshot.create"
	KindDelete = "snapshot.delete"
	KindStore  = "snapshot.store"
)

// Prefix begins the id of every snapshot.
const Prefix = "snap-"

// Deadline is how long a snapshot may take: its upload is as long as a
// sandbox's memory and disk are.
var Deadline = timescale.Limit(15 * time.Minute)

// storeTimeout is how long one call to a host may take. An upload goes on there
// after it, and is joined by the next.
var storeTimeout = timescale.Limit(10 * time.Minute)

// The steps.
//
//	capture ──► store ──► (ready)
//
// Past the deadline (expire) what is captured is ready without being stored,
// and what is not is given up. What is ready and not stored has a flow of its own
// that tries again.
const (
	stepCapture    = "capture"
	stepStore      = "store"
	stepExpire     = "expire"
	stepRemove     = "remove"
	stepStoreAgain = "store again"
)

// How a snapshot fails.
var (
	ErrNoSandbox   = errors.New("the sandbox is gone")
	ErrUnreachable = errors.New("the sandbox's host does not answer")
	ErrNotTaken    = errors.New("the snapshot could not be taken")
)

// RefusedError means that the host will not capture the sandbox as it is.
type RefusedError struct{ Err *hostapi.Error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the host's refusal.
func (e *RefusedError) Unwrap() error { return e.Err }

// Config is what the flows work with.
type Config struct {
	Hosts  *hosts.Registry
	Logger *slog.Logger

	// StorePause is how long after a first failure a snapshot is tried to be
	// stored again; default 10 s.
	StorePause time.Duration
}

// Flows are the steps of all kinds.
type Flows struct{ cfg Config }

// New makes the flows.
func New(cfg Config) *Flows {
	if cfg.StorePause == 0 {
		cfg.StorePause = firstPause
	}
	return &Flows{cfg: cfg}
}

// Kinds are for the engine.
func (f *Flows) Kinds() []flow.Kind {
	return []flow.Kind{
		{
			Name: KindCreate, Expire: stepExpire, ActTimeout: storeTimeout, Host: hostOf,
			Steps: map[string]flow.Step{stepCapture: f.capture, stepStore: f.store, stepExpire: f.expire},
		},
		{
			Name: KindDelete, ActTimeout: time.Minute, Host: hostOf,
			Steps: map[string]flow.Step{stepRemove: f.remove},
		},
		{
			Name: KindStore, ActTimeout: storeTimeout, Host: hostOf,
			Steps: map[string]flow.Step{stepStoreAgain: f.storeAgain},
		},
	}
}

// hostOf is the host that a flow calls.
func hostOf(r raftstore.Reader, fl *record.Flow) string {
	s, ok := raftstore.Get(r, record.Snapshots, idOf(fl))
	if !ok {
		return ""
	}
	return s.AgentID
}

// Subject names a snapshot for flows.
func Subject(id string) string { return flow.Subject(record.Snapshots.Name, id) }

// Create is the data of KindCreate and KindDelete.
type Create struct {
	RequestID        string `json:"request_id,omitempty"`
	IdempotencyKeyID string `json:"idempotency_key_id,omitempty"`
	Generation       uint64 `json:"generation,omitempty"` // of the sandbox's box
}

// Begin puts a snapshot and what makes it into a transaction.
func Begin(tx *raftstore.Tx, flowID string, s *record.Snapshot, data Create) error {
	raftstore.Put(tx, record.Snapshots, s)
	return flow.Begin(tx, flow.New{
		ID: flowID, Kind: KindCreate, Subject: Subject(s.ID), Step: stepCapture, Data: data, Deadline: tx.Now().Add(Deadline),
	})
}

// BeginDelete marks a snapshot and starts its removal, and returns the id of
// the flow to wait for: the one there is already, if there is one.
func BeginDelete(tx *raftstore.Tx, flowID string, s *record.Snapshot, requestID string) (string, error) {
	if s.Status == record.ResourceDeleting {
		if live, ok := flow.Live(tx, Subject(s.ID)); ok && live.Kind == KindDelete {
			return live.ID, nil
		}
	} else {
		c := s.Clone()
		c.Status = record.ResourceDeleting
		raftstore.Put(tx, record.Snapshots, c)
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindDelete, Subject: Subject(s.ID), Step: stepRemove, Data: Create{RequestID: requestID},
	})
}

func idOf(fl *record.Flow) string { return strings.TrimPrefix(fl.Subject, record.Snapshots.Name+"/") }

func snapshotOf(r raftstore.Reader, fl *record.Flow) (*record.Snapshot, bool) {
	s, ok := raftstore.Get(r, record.Snapshots, idOf(fl))
	return s, ok && s.Status == record.ResourceCreating
}

func finish(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }

// again reports whether a step that failed is to be run once more.
func (f *Flows) again(ctx context.Context, run flow.Run, agentID string, err error) bool {
	return hosts.Superseded(ctx, err) || f.cfg.Hosts.Passing(run.View, agentID, run.Flow.Attempt, err)
}

// capture asks the sandbox's host for the capture.
func (f *Flows) capture(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := snapshotOf(run.View, run.Flow)
	if !ok {
		return finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	var made hostapi.Capture
	err := f.cfg.Hosts.Call(ctx, s.AgentID, func(ctx context.Context, c *hosts.Client) error {
		var err error
		made, err = c.PutCapture(ctx, s.ID, hostapi.CaptureSpec{
			BoxID: s.SandboxID, Generation: data.Generation, Memory: true, After: hostapi.AfterResume,
		})
		return err
	})
	switch {
	case err == nil:
	case f.again(ctx, run, s.AgentID, err):
		return nil, err
	default:
		f.cfg.Logger.WarnContext(ctx, "snapshot was not taken", "snapshot_id", s.ID, "agent_id", s.AgentID, "request_id", data.RequestID, "error", err)
		f.discard(ctx, s) // of one whose outcome is unknown
		return f.giveUp(run, data, explain(err)), nil
	}
	// Also where the host says that it is stored: this is how the digest is learnt.
	store := f.cfg.Hosts.Sessions()[s.AgentID].Heartbeat.Store
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := snapshotOf(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := s.Clone()
		c.CPU, c.MemoryMB, c.DiskMB = made.CPU, made.MemoryMB, made.DiskMB
		c.MemoryBytes, c.DiskBytes, c.PauseMS, c.Stored = made.MemoryBytes, made.DiskBytes, made.PauseMS, made.Stored
		if !store {
			c.Status = record.ResourceReady
		}
		raftstore.Put(tx, record.Snapshots, c)
		if !store {
			return flow.Done(), nil
		}
		return flow.Goto(stepStore, nil), nil
	}, nil
}

func explain(err error) error {
	var refusal *hostapi.Error
	switch {
	case hosts.Unreachable(err):
		return ErrUnreachable
	case hostapi.HasCode(err, hostapi.CodeNotFound):
		return ErrNoSandbox
	case errors.As(err, &refusal):
		return &RefusedError{Err: refusal}
	}
	return ErrNotTaken
}

// store puts the capture into the snapshot store. One that cannot be stored is
// as good on its own host, until it can be.
func (f *Flows) store(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := snapshotOf(run.View, run.Flow)
	if !ok {
		return finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	made, err := f.upload(ctx, s)
	if err != nil {
		if f.again(ctx, run, s.AgentID, err) {
			return nil, err
		}
		f.cfg.Logger.WarnContext(ctx, "snapshot was not stored", "snapshot_id", s.ID, "agent_id", s.AgentID, "request_id", data.RequestID, "error", err)
	}
	return ready(run, err == nil, made.Manifest), nil
}

func ready(run flow.Run, stored bool, manifest string) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if s, ok := snapshotOf(tx, run.Flow); ok {
			c := s.Clone()
			c.Status, c.Stored, c.Manifest = record.ResourceReady, stored, manifest
			raftstore.Put(tx, record.Snapshots, c)
		}
		return flow.Done(), nil
	}
}

// expire ends a snapshot that took too long.
func (f *Flows) expire(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := snapshotOf(run.View, run.Flow)
	if !ok {
		return finish, nil
	}
	if s.MemoryMB > 0 { // it is captured
		return ready(run, false, ""), nil
	}
	f.discard(ctx, s)
	return f.giveUp(run, data, ErrNotTaken), nil
}

// giveUp removes every row of a snapshot that failed.
func (f *Flows) giveUp(run flow.Run, data Create, err error) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if s, ok := snapshotOf(tx, run.Flow); ok {
			raftstore.Delete(tx, record.Snapshots, s.ID)
		}
		if data.IdempotencyKeyID != "" { // the same key may try again
			raftstore.Delete(tx, record.IdempotencyKeys, data.IdempotencyKeyID)
		}
		return flow.Fail(err), nil
	}
}

// discard tries once to remove a capture that may have been made. What it
// misses the inventory finds.
func (f *Flows) discard(ctx context.Context, s *record.Snapshot) {
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(5*time.Second))
	defer cancel()
	err := f.cfg.Hosts.Call(ctx, s.AgentID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, s.ID, true) })
	if err != nil {
		f.cfg.Logger.InfoContext(ctx, "capture is left to the inventory", "snapshot_id", s.ID, "agent_id", s.AgentID, "error", err)
	}
}
