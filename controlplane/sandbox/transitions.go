package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Transition is a change of a sandbox's status. Transitions are not flows: the host
// is the authority on a box's status, its reports are numbered, and the record
// follows the latest. If a leader dies between a host's answer and the commit, the
// next heartbeat repeats the report.
type Transition string

// The transitions, each from one status to another. Waking a running sandbox changes
// nothing and succeeds, so simultaneous wakes are one.
const (
	Pause     Transition = "pause"     // running → paused
	Resume    Transition = "resume"    // paused → running
	Hibernate Transition = "hibernate" // running → hibernated
	Wake      Transition = "wake"      // hibernated → running
)

// From returns the status that a transition starts from.
func (m Transition) From() record.SandboxStatus {
	switch m {
	case Resume:
		return record.SandboxPaused
	case Wake:
		return record.SandboxHibernated
	}
	return record.SandboxRunning
}

// ErrGone means that the sandbox was deleted meanwhile.
var ErrGone = errors.New("sandbox is gone")

// IllegalError means that the sandbox's status does not allow a transition.
type IllegalError struct {
	Transition Transition
	Status     record.SandboxStatus
}

// Error implements error.
func (e *IllegalError) Error() string {
	return fmt.Sprintf("%s: sandbox is %s", e.Transition, e.Status)
}

// Remedy says what the caller can do.
func (e *IllegalError) Remedy() string {
	switch e.Status {
	case record.SandboxStarting:
		return "wait until it runs"
	case record.SandboxFailed:
		return "a failed sandbox can only be deleted"
	case record.SandboxDeleting:
		return "it is being deleted"
	case e.target():
		return "there is nothing to do"
	case record.SandboxPaused:
		return "resume it first"
	case record.SandboxHibernated:
		return "wake it first"
	}
	if e.Transition == Resume {
		return "only a paused sandbox can be resumed"
	}
	return "its status does not allow it"
}

func (e *IllegalError) target() record.SandboxStatus {
	switch e.Transition {
	case Pause:
		return record.SandboxPaused
	case Hibernate:
		return record.SandboxHibernated
	}
	return record.SandboxRunning
}

// callTimeout limits one transition. Writing the memory of a large sandbox to a slow
// disk takes less.
var callTimeout = timescale.Limit(2 * time.Minute)

// Transitions asks hosts to change the status of sandboxes.
type Transitions struct {
	*core.Core
	wakes singleflight.Group // by sandbox id
}

// Do asks a sandbox's host for a transition and returns the resulting row. The error
// is an *IllegalError, ErrGone, or the host's or the store's. It does not end with
// ctx: a requested transition is completed, so that the record contains its outcome.
func (t *Transitions) Do(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	ctx = context.WithoutCancel(ctx)
	if transition != Wake {
		return t.While(ctx, known, transition)
	}
	// Simultaneous wakes ask the host once.
	row, err, _ := t.wakes.Do(known.ID, func() (any, error) { return t.While(ctx, known, transition) })
	if err != nil {
		return nil, err
	}
	return row.(*record.Sandbox), nil
}

// While is Do, but ends with ctx, for the leader's own work. If the host completes the
// transition all the same, its heartbeats report it to the next leader.
func (t *Transitions) While(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	switch known.Status {
	case record.SandboxStarting, record.SandboxFailed, record.SandboxDeleting:
		return nil, &IllegalError{Transition: transition, Status: known.Status}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if transition == Wake {
		var err error
		if known, err = t.settled(ctx, known); err != nil {
			return nil, err
		}
	}
	box, err := t.ask(ctx, known, transition)
	for tries := 1; err != nil; tries++ {
		var again bool
		if again, err = t.refused(ctx, known, transition, err); !again || tries == maxTries {
			return nil, err
		}
		box, err = t.ask(ctx, known, transition)
	}
	row, err := t.follow(ctx, known, box.State())
	if err == nil && transition != Wake && known.Status != transition.From() && known.HostSeq == box.Seq {
		// The host reports success without having changed anything.
		return nil, &IllegalError{Transition: transition, Status: row.Status}
	}
	return row, err
}

func (t *Transitions) ask(ctx context.Context, s *record.Sandbox, transition Transition) (hostapi.Box, error) {
	client, err := t.Hosts.Reach(ctx, s.HostID)
	if err != nil {
		return hostapi.Box{}, err
	}
	ctx, release := t.Hosts.WhileHeard(ctx, s.HostID)
	defer release()
	switch transition {
	case Pause:
		return client.Pause(ctx, s.ID)
	case Resume:
		return client.Resume(ctx, s.ID)
	case Hibernate:
		return client.Hibernate(ctx, s.ID)
	case Wake:
		return client.Wake(ctx, s.ID)
	}
	return hostapi.Box{}, fmt.Errorf("no such transition: %q", transition)
}

// maxTries limits how often a transition is repeated that others keep undoing.
const maxTries = 3

// refused returns why a host refused a transition: an *IllegalError if the reason is
// the sandbox's status. again means that the status allows the transition by now,
// for example because another transition has just ended.
func (t *Transitions) refused(ctx context.Context, s *record.Sandbox, transition Transition, err error) (again bool, why error) {
	var refusal *hostapi.Error
	if !errors.As(err, &refusal) || refusal.Code != hostapi.CodeIllegalState && refusal.Code != hostapi.CodeNotRunning {
		return false, err
	}
	row, rerr := t.Refresh(ctx, s)
	if rerr != nil {
		return false, errors.Join(err, rerr)
	}
	if row.Status == transition.From() {
		return true, err
	}
	return false, &IllegalError{Transition: transition, Status: row.Status}
}

// Refresh asks the host for the sandbox's status and returns the resulting row.
func (t *Transitions) Refresh(ctx context.Context, s *record.Sandbox) (*record.Sandbox, error) {
	client, err := t.Hosts.Reach(ctx, s.HostID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	box, err := client.GetBox(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	return t.follow(ctx, s, box.State())
}

// refreshTimeout limits a call that a host answers from memory.
var refreshTimeout = timescale.Limit(10 * time.Second)

// follow commits a host's report and returns the resulting row.
func (t *Transitions) follow(ctx context.Context, known *record.Sandbox, b hostapi.BoxState) (*record.Sandbox, error) {
	var out *record.Sandbox
	err := t.Store.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Sandboxes, known.ID)
		if !ok || row.WorkspaceID != known.WorkspaceID {
			return ErrGone
		}
		out = Follow(tx, row, b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write down that sandbox %s is %s: %w", hostapi.ShortID(known.ID), b.Status, err)
	}
	return out, nil
}
