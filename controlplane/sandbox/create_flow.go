package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// The steps of a create.
//
//	place ──► start ──► (running)
//	  ▲         │ refused, unreachable, failed: the next host
//	  └─────────┘
//	place finds no host left, or the deadline passes: every row goes (expire).
const (
	stepPlace  = "place"
	stepStart  = "start"
	stepExpire = "expire"
)

// Create is the data of a create.
type Create struct {
	resource.Data
	Boot hostapi.Boot `json:"boot,omitempty"`

	Tried  []string `json:"tried,omitempty"`  // hosts that did not do it
	Reason reason   `json:"why,omitempty"`    // the weightiest reason of those
	Unsure *boxRef  `json:"unsure,omitempty"` // a host that may have done it all the same
	Detail string   `json:"detail,omitempty"` // why the snapshot was refused
}

// reason is why a host did not start a sandbox. A later one weighs more when a create
// that has no host left has to say what was wrong.
type reason int

const (
	reasonFull reason = iota
	reasonUnreachable
	reasonFailed
	reasonSnapshot
)

// boxRef is one generation of a box on a host.
type boxRef struct {
	HostID     string `json:"agent_id"`
	Generation uint64 `json:"generation"`
}

// Place chooses the first host of a new sandbox, reserves its memory and fills
// the row in. While the leader is too new to know its hosts the row is left
// unplaced, for the flow to wait. It fails with a *placement.Error, or with
// ErrSnapshot.
func (f *Flows) Place(view raftstore.Reader, s *record.Sandbox) error {
	req, err := request(view, s, nil)
	if err != nil {
		return err
	}
	choice, err := f.Hosts.Place(view, s.ID, 1, req)
	if err != nil {
		if f.Hosts.Warming(view) {
			return nil
		}
		return err
	}
	placeOn(s, choice, 1)
	return nil
}

// Unplace gives back what Place reserved, when the row was not written.
func (f *Flows) Unplace(s *record.Sandbox) { f.Hosts.Release(s.ID) }

// Begin puts a sandbox and its create into a transaction.
func (f *Flows) Begin(tx *raftstore.Tx, flowID string, s *record.Sandbox, data Create) error {
	step := stepPlace
	if s.HostID != "" {
		step = stepStart
	}
	return Resource.Begin(tx, flowID, s, step, data, tx.Now().Add(CreateDeadline))
}

func placeOn(s *record.Sandbox, c placement.Choice, generation uint64) {
	s.HostID, s.Generation = c.HostID, generation
	s.CPU, s.MemoryMB, s.DiskMB = c.Template.CPU, c.Template.MemoryMB, c.Template.DiskMB
}

// place chooses a host among those not yet tried.
func (f *Flows) place(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	if data.Unsure != nil {
		f.Clean(hostCtx(ctx, data.RequestID), s.ID, data.Unsure.HostID, data.Unsure.Generation)
		data.Unsure = nil
	}
	s = s.Clone()
	s.BuildID = currentBuild(run.View, s)
	build, generation := s.BuildID, s.Generation+1
	choice, err := f.choose(ctx, run.View, s, generation, data.Tried)
	var none *placement.Error
	switch {
	case errors.As(err, &none):
		return f.giveUp(run, data, outcome(data, none)), nil
	case errors.Is(err, ErrSnapshot):
		return f.giveUp(run, data, err), nil
	case err != nil:
		return nil, err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := Resource.Made(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := s.Clone()
		placeOn(c, choice, generation)
		c.BuildID = build
		raftstore.Put(tx, record.Sandboxes, c)
		return flow.Goto(stepStart, data), nil
	}, nil
}

// choose places, and waits for hosts to be heard while the leader is new.
func (f *Flows) choose(ctx context.Context, view *raftstore.Snapshot, s *record.Sandbox, generation uint64, tried []string) (placement.Choice, error) {
	req, err := request(view, s, tried)
	if err != nil {
		return placement.Choice{}, err
	}
	for {
		changed := f.Hosts.Changed()
		choice, err := f.Hosts.Place(view, s.ID, generation, req)
		var none *placement.Error
		if err == nil || !errors.As(err, &none) || !f.Hosts.Warming(view) {
			return choice, err
		}
		select {
		case <-changed:
		case <-time.After(warmingCheck): // warming also ends by itself
		case <-ctx.Done():
			return placement.Choice{}, ctx.Err()
		}
	}
}

const warmingCheck = 250 * time.Millisecond

// Clean tries once to remove a box whose start has an unknown outcome, and to keep
// a start of it that goes on from making it. What it misses the inventory loop
// finds: the row no longer points there.
func (f *Flows) Clean(ctx context.Context, id, hostID string, generation uint64) {
	client, err := f.Hosts.Client(hostID)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Second))
	defer cancel()
	if err := client.DeleteBox(ctx, id, generation); err != nil {
		f.Logger.InfoContext(ctx, "box of an earlier placement is left to the inventory", "sandbox_id", hostapi.ShortID(id), "agent_id", hostID, "error", err)
	}
}

// start asks the host for the box.
func (f *Flows) start(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	spec, err := f.spec(run.View, s, data)
	if err != nil {
		return nil, err
	}
	if err := f.awaitHost(ctx, run.View, s.HostID); err != nil {
		return nil, err
	}
	f.Hosts.Reserve(s) // a leader before this one may have placed it
	dispatched := f.Clock()
	box, err := f.put(ctx, s, data, spec)
	switch {
	case err == nil && box.Status == hostapi.StatusRunning:
		return f.run(run, s, box, Created{
			Dispatched: dispatched, Answered: f.Clock(), Stages: box.Stages, Took: box.CreateDuration,
		}), nil
	case err == nil:
		err = fmt.Errorf("box is %s: %s", box.Status, box.Error)
	case errors.Is(ctx.Err(), context.Canceled), hostapi.HasCode(err, hostapi.CodeStaleTerm):
		return nil, err // preempted, or deposed: the next one to run this step decides
	}
	return f.tryElsewhere(ctx, run, s, data, err), nil
}

// awaitHost gives the host of a placement by an earlier leader the time to be
// heard by this one.
func (f *Flows) awaitHost(ctx context.Context, view *raftstore.Snapshot, hostID string) error {
	for {
		changed := f.Hosts.Changed()
		if _, err := f.Hosts.Client(hostID); err == nil || !f.Hosts.Warming(view) {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(warmingCheck):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *Flows) put(ctx context.Context, s *record.Sandbox, data Create, spec hostapi.BoxSpec) (hostapi.Box, error) {
	client, err := f.Hosts.Client(s.HostID)
	if err != nil {
		return hostapi.Box{}, err
	}
	ctx, cancel := f.Hosts.WhileUp(hostCtx(ctx, data.RequestID), s.HostID)
	defer cancel()
	return f.Hosts.PutBox(ctx, client, s.ID, spec)
}

// run makes the sandbox running.
func (f *Flows) run(run flow.Run, placed *record.Sandbox, box hostapi.Box, made Created) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := Resource.Made(tx, run.Flow)
		if !ok || s.Generation != placed.Generation {
			return flow.Done(), nil
		}
		c := s.Clone()
		c.Status, c.StartedAt, c.HostSeq = record.SandboxRunning, tx.Now(), box.Seq
		c.CPU, c.MemoryMB, c.DiskMB = box.CPU, box.MemoryMB, box.DiskMB
		StartTTL(c, tx.Now())
		raftstore.Put(tx, record.Sandboxes, c)
		return flow.DoneWith(made), nil
	}
}

// StartTTL sets a sandbox's end, counted from the moment that it came to life.
func StartTTL(c *record.Sandbox, now time.Time) {
	if c.TTLSeconds != nil {
		c.ExpiresAt = now.Add(time.Duration(*c.TTLSeconds) * time.Second)
	}
}

// tryElsewhere goes back to place without the host that did not do it.
func (f *Flows) tryElsewhere(ctx context.Context, run flow.Run, placed *record.Sandbox, data Create, cause error) flow.Commit {
	why := classify(cause)
	f.Logger.WarnContext(ctx, "host did not start the sandbox", "sandbox_id", hostapi.ShortID(placed.ID), "agent_id", placed.HostID,
		"request_id", data.RequestID, "error", cause)
	f.Hosts.Release(placed.ID)
	data.Tried = append(slices.Clone(data.Tried), placed.HostID)
	data.Reason = max(data.Reason, why)
	if why == reasonSnapshot {
		data.Detail = refusedSnapshot(cause)
	}
	if errors.Is(cause, hostapi.ErrUnknownOutcome) {
		data.Unsure = &boxRef{HostID: placed.HostID, Generation: placed.Generation}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := Resource.Made(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		// The generation stays: the next placement counts on from it, so that
		// what comes late to this host is older than what runs elsewhere.
		c := s.Clone()
		c.HostID = ""
		raftstore.Put(tx, record.Sandboxes, c)
		return flow.Goto(stepPlace, data), nil
	}
}

func classify(err error) reason {
	var refusal *hostapi.Error
	switch {
	case refusedSnapshot(err) != "":
		return reasonSnapshot
	case hosts.Unreachable(err):
		return reasonUnreachable
	case errors.As(err, &refusal):
		switch refusal.Code {
		case hostapi.CodeNoMemory, hostapi.CodeNoDisk, hostapi.CodeNoSlot, hostapi.CodeDraining,
			hostapi.CodeTemplateMissing, hostapi.CodeBusy:
			return reasonFull
		}
	}
	return reasonFailed
}

// outcome is what a create with no host left fails with.
func outcome(data Create, none *placement.Error) error {
	switch {
	case data.Reason == reasonSnapshot:
		return ErrSnapshot.With(data.Detail, nil)
	case data.Reason == reasonFailed:
		return ErrNotStarted
	case data.Reason == reasonUnreachable:
		return core.ErrUnreachable
	default:
		return NoHost(none)
	}
}

// expire ends a create that took too long.
func (f *Flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	return f.giveUp(run, data, ErrNotStarted), nil
}

// giveUp ends a create with nothing left of it.
func (f *Flows) giveUp(run flow.Run, data Create, failure error) flow.Commit {
	f.Hosts.Release(Resource.ID(run.Flow))
	return Resource.GiveUp(run, data.Data, failure)
}
