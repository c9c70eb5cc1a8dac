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
//	If place finds no host, or the deadline passes, every row is removed (expire).
const (
	stepPlace  = "place"
	stepStart  = "start"
	stepExpire = "expire"
)

// Create is the data of a create.
type Create struct {
	resource.Data
	Boot hostapi.Boot `json:"boot,omitempty"`
	Copy *Copy        `json:"copy,omitempty"`

	Tried  []string `json:"tried,omitempty"`  // hosts that failed or refused
	Reason reason   `json:"why,omitempty"`    // the most important reason of those
	Unsure *boxRef  `json:"unsure,omitempty"` // a box that may exist all the same
	Detail string   `json:"detail,omitempty"` // why the snapshot was refused
}

// Copy is another sandbox. The new one boots from a copy of its disk, on its host.
type Copy struct {
	SandboxID string `json:"sandbox_id"`
	HostID    string `json:"agent_id"`
}

// reason is why a host did not start a sandbox. If no host is left, the create
// reports the highest one.
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

// Place chooses the first host of a new sandbox, reserves its memory and updates the
// row. If a new leader does not know its hosts yet, the row stays unplaced and the
// flow waits. The error is a *placement.Error or ErrSnapshot.
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

// Unplace releases Place's reservation, if the row was not committed.
func (f *Flows) Unplace(s *record.Sandbox) { f.Hosts.Release(s.ID) }

// Begin adds a sandbox and its create to a transaction.
func (f *Flows) Begin(tx *raftstore.Tx, flowID string, s *record.Sandbox, data Create) error {
	return f.BeginFor(tx, "", flowID, s, data)
}

// BeginFor is Begin for a flow that creates the sandbox and joins the create.
func (f *Flows) BeginFor(tx *raftstore.Tx, parent, flowID string, s *record.Sandbox, data Create) error {
	step := stepPlace
	if s.HostID != "" {
		step = stepStart
	}
	return Resource.Begin(tx, parent, flowID, s, step, data, tx.Now().Add(CreateDeadline))
}

func placeOn(s *record.Sandbox, c placement.Choice, generation uint64) {
	s.HostID, s.Generation = c.HostID, generation
	s.CPU, s.MemoryMB, s.DiskMB = c.Template.CPU, c.Template.MemoryMB, c.Template.DiskMB
}

// place is the step that chooses a host among those not yet tried.
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
		f.Clean(hosts.WithRequestID(ctx, data.RequestID), s.ID, data.Unsure.HostID, data.Unsure.Generation)
		data.Unsure = nil
	}
	s = s.Clone()
	if data.Copy == nil { // else the disk lies on the build that it was begun on
		s.BuildID = currentBuild(run.View, s)
	}
	build, generation := s.BuildID, s.Generation+1
	choice, err := f.choose(ctx, run.View, s, generation, data)
	var none *placement.Error
	switch {
	case errors.As(err, &none):
		return f.giveUp(run, data, outcome(run.View, s, data, none)), nil
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

// choose chooses a host. If the leader is new, it waits for the hosts' heartbeats.
func (f *Flows) choose(ctx context.Context, view *raftstore.Snapshot, s *record.Sandbox, generation uint64, data Create) (placement.Choice, error) {
	req, err := request(view, s, data.Tried)
	if err != nil {
		return placement.Choice{}, err
	}
	if data.Copy != nil {
		req.Only, req.Size = data.Copy.HostID, &placement.Template{CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB}
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
		case <-time.After(warmingCheck): // warming may also end by time
		case <-ctx.Done():
			return placement.Choice{}, ctx.Err()
		}
	}
}

const warmingCheck = 250 * time.Millisecond

// Clean tries once to delete a box whose start has an unknown outcome, and to stop a
// start that is still running. If it fails, the inventory loop finds the box, to
// which no row points any more.
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

// start is the step that creates the box on the host.
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
	f.Hosts.Reserve(s) // an earlier leader may have placed it
	dispatched := f.Clock()
	box, err := f.put(ctx, s, data, spec)
	switch {
	case err == nil && box.Status == hostapi.StatusRunning:
		return f.run(run, s, data, box, Created{
			Dispatched: dispatched, Answered: f.Clock(), Stages: box.Stages, Took: box.CreateDuration,
		}), nil
	case err == nil:
		err = fmt.Errorf("box is %s: %s", box.Status, box.Error)
	case errors.Is(ctx.Err(), context.Canceled), hostapi.HasCode(err, hostapi.CodeStaleTerm):
		return nil, err // preempted or deposed: whoever runs this step next decides
	case hostapi.HasCode(err, hostapi.CodeInvalidMount): // on any host
		return f.giveUp(run, data, invalidMount(err)), nil
	}
	return f.tryElsewhere(ctx, run, s, data, err), nil
}

// awaitHost waits until this leader has heard from a host that an earlier leader
// chose.
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
	ctx, cancel := f.Hosts.WhileUp(hosts.WithRequestID(ctx, data.RequestID), s.HostID)
	defer cancel()
	return f.Hosts.PutBox(ctx, client, s.ID, spec)
}

// run commits that the sandbox runs, and the answer to the request that created it.
func (f *Flows) run(run flow.Run, placed *record.Sandbox, data Create, box hostapi.Box, made Created) flow.Commit {
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
		if _, err := f.KeepAnswer(tx, data.IdempotencyKeyID, f.show(c)); err != nil {
			return flow.Next{}, err
		}
		return flow.DoneWith(made), nil
	}
}

// StartTTL sets a sandbox's expiry, counted from its start.
func StartTTL(c *record.Sandbox, now time.Time) {
	if c.TTLSeconds != nil {
		c.ExpiresAt = now.Add(time.Duration(*c.TTLSeconds) * time.Second)
	}
}

// tryElsewhere returns to place, excluding the host.
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
		// The next placement increases the generation, so that a late call to this
		// host has an older one than the box elsewhere.
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

// outcome returns the error of a create for which no host is left.
func outcome(r raftstore.Reader, s *record.Sandbox, data Create, none *placement.Error) error {
	switch {
	case data.Reason == reasonSnapshot:
		return ErrSnapshot.With(data.Detail, nil)
	case data.Reason == reasonFailed:
		return ErrNotStarted
	case data.Reason == reasonUnreachable:
		return core.ErrUnreachable
	default:
		return noHost(r, s, none)
	}
}

// expire is the step that ends a create past its deadline.
func (f *Flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	return f.giveUp(run, data, ErrNotStarted), nil
}

// giveUp ends a create and leaves nothing of it.
func (f *Flows) giveUp(run flow.Run, data Create, failure error) flow.Commit {
	f.Hosts.Release(Resource.ID(run.Flow))
	return Resource.GiveUp(run, data.Data, failure)
}
