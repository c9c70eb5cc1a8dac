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

// Transition is one change of a living sandbox's status. None of them is a flow:
// the host is the authority on a box's status, each of its words has a sequence
// number, and the record follows the latest. A leader that dies between a host's
// answer and the record is made up for by the next heartbeat.
type Transition string

// The transitions, each from one status to another. A wake of what runs already
// changes nothing and succeeds: wakes at the same time are one wake.
const (
	Pause     Transition = "pause"     // running → paused
	Resume    Transition = "resume"    // paused → running
	Hibernate Transition = "hibernate" // running → hibernated
	Wake      Transition = "wake"      // hibernated → running
)

// From is the status that a transition starts in.
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

// IllegalError is a transition that the sandbox's status does not allow.
type IllegalError struct {
	Transition Transition
	Status     record.SandboxStatus
}

// Error implements error.
func (e *IllegalError) Error() string {
	return fmt.Sprintf("%s: sandbox is %s", e.Transition, e.Status)
}

// Remedy says what to do about it.
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

// callTimeout bounds one transition: the memory of a large sandbox is written to a
// slow disk in less.
var callTimeout = timescale.Limit(2 * time.Minute)

// Transitions has hosts change what sandboxes do.
type Transitions struct {
	*core.Core
	wakes singleflight.Group // by sandbox id
}

// Do asks the host of a sandbox for a transition and returns the row as it is then.
// It fails with an *IllegalError, with ErrGone, or with what the host or the
// store say. It does not end with ctx: a transition that was asked for is seen
// through, so that the record says what became of it.
func (t *Transitions) Do(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	if transition != Wake {
		return t.do(ctx, known, transition)
	}
	// A crowd that finds the sandbox asleep asks the host once.
	row, err, _ := t.wakes.Do(known.ID, func() (any, error) { return t.do(ctx, known, transition) })
	if err != nil {
		return nil, err
	}
	return row.(*record.Sandbox), nil
}

// While is Do for who leads: it ends with ctx. What the host does all the same it
// says in its heartbeats, to whoever leads then.
func (t *Transitions) While(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	return t.through(ctx, known, transition)
}

func (t *Transitions) do(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	return t.through(context.WithoutCancel(ctx), known, transition)
}

func (t *Transitions) through(ctx context.Context, known *record.Sandbox, transition Transition) (*record.Sandbox, error) {
	switch known.Status {
	case record.SandboxStarting, record.SandboxFailed, record.SandboxDeleting:
		return nil, &IllegalError{Transition: transition, Status: known.Status}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
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
		// The host calls it done where nothing was to be done.
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

// maxTries bounds how often a transition is asked for that others keep undoing.
const maxTries = 3

// refused says why the host did not do it, in the sandbox's terms where it is
// about its status. again says that the status is the transition's own by now: another
// transition has brought it back, unless the refusal is about something else.
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

// Refresh asks the host what the sandbox is doing and returns the row as it is
// then.
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

// refreshTimeout is long for a question that a host answers from memory.
var refreshTimeout = timescale.Limit(10 * time.Second)

// follow writes down what a host said, and returns the row as it is then.
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
