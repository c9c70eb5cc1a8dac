package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The types of owners of managed sandboxes.
const (
	OwnerDatabase = "database"
	OwnerApp      = "app"
)

// ErrManaged refuses a tenant's operation on the sandbox of an app or a database.
var ErrManaged = &apierror.Error{Code: apierror.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"}

// Unmanaged returns an error if the sandbox has an owner.
func Unmanaged(row *record.Sandbox) error {
	if row.Owner == nil {
		return nil
	}
	return ErrManaged.With(fmt.Sprintf("it belongs to the %s %s, which alone changes and enters it", row.Owner.Type, row.Owner.ID), nil)
}

// Moves is what the owner of managed sandboxes does for their moves to other hosts.
type Moves struct {
	// Busy reports whether the owner is changing a sandbox, or what it needs it for: a
	// move waits for the end of that.
	Busy func(r raftstore.Reader, s *record.Sandbox) bool
	// Stays is why the owner's sandbox is never moved, as it stands with the owner; "": it is.
	Stays func(r raftstore.Reader, s *record.Sandbox) string
	// Arrive makes a box that has arrived on a host, and sleeps there, the owner's. It may
	// be called again.
	Arrive func(ctx context.Context, r raftstore.Reader, s *record.Sandbox, c *hosts.Client) error
}

// SetMoves has a type of owner take part in moves. It is called before any flow runs.
func (s *Sandboxes) SetMoves(owner string, m Moves) { s.Flows.moves[owner] = m }

// movesOf returns what the owner of a sandbox does for its moves.
func (f *Flows) movesOf(s *record.Sandbox) (Moves, bool) {
	if s.Owner == nil {
		return Moves{}, false
	}
	m, ok := f.moves[s.Owner.Type]
	return m, ok
}

// own is find for operations that only the owner of a managed sandbox may do.
func (r *reach) own(ctx context.Context, c core.Caller, id string) (*record.Sandbox, error) {
	row, err := r.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return row, Unmanaged(row)
}

// EnsureRunning brings a managed sandbox to run for its owner: it wakes a hibernated
// one, resumes a paused one, and boots a failed one from its disk, and one whose
// saved memory can never be restored. If the row says that it runs, it asks the host,
// and waits for one that the host is booting. It returns the resulting row. It ends with ctx; if
// the host completes the operation all the same, its heartbeats report it.
func (s *Sandboxes) EnsureRunning(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	for tries := 1; ; tries++ {
		now, err := s.transitions.ensureRunning(ctx, row)
		var illegal *IllegalError
		switch {
		case err == nil && now.Status == record.SandboxRunning:
			return now, nil
		case err == nil && tries < maxTries:
			row = now
		case err == nil:
			return nil, &IllegalError{Transition: Wake, Status: now.Status}
		case errors.As(err, &illegal) && tries < maxTries && illegal.Status != row.Status:
			var there bool
			if row, there = raftstore.Get(s.core.Store.View(), record.Sandboxes, row.ID); !there {
				return nil, ErrGone
			}
		default:
			return nil, err
		}
	}
}

func (t *Transitions) ensureRunning(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	switch row.Status {
	case record.SandboxRunning:
		return t.booted(ctx, row)
	case record.SandboxHibernated:
		now, err := t.While(ctx, row, Wake)
		if hostapi.HasCode(err, hostapi.CodeBadSnapshot) {
			t.Logger.WarnContext(ctx, "saved memory of a sandbox is lost, it is booted from its disk",
				"sandbox_id", hostapi.ShortID(row.ID), "agent_id", row.HostID, "error", err)
			return t.restart(ctx, row)
		}
		if hostapi.HasCode(err, hostapi.CodeIllegalState) {
			return t.booted(ctx, row)
		}
		return now, err
	case record.SandboxPaused:
		return t.While(ctx, row, Resume)
	case record.SandboxFailed:
		return t.restart(ctx, row)
	}
	return nil, &IllegalError{Transition: Wake, Status: row.Status}
}

// bootLook is how often a host is asked whether a box has been booted.
const bootLook = 250 * time.Millisecond

// booted is Refresh for a box that its host may be booting after its own restart: it
// waits until that has ended.
func (t *Transitions) booted(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	client, err := t.Hosts.Reach(ctx, row.HostID)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(bootLook)
	defer tick.Stop()
	for {
		box, err := client.GetBox(ctx, row.ID)
		switch {
		case err != nil:
			return nil, err
		case box.Status != hostapi.StatusStarting:
			return t.follow(ctx, row, box.State())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, &IllegalError{Transition: Wake, Status: record.SandboxStarting}
		}
	}
}

// restart boots a sandbox from its disk that failed or lost its saved memory.
func (t *Transitions) restart(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	client, err := t.Hosts.Reach(ctx, row.HostID)
	if err != nil {
		return nil, err
	}
	hctx, release := t.Hosts.WhileHeard(ctx, row.HostID)
	defer release()
	box, err := client.RestartBox(hctx, row.ID)
	if hostapi.HasCode(err, hostapi.CodeIllegalState) { // the host has returned with it, and it has not failed
		box, err = client.GetBox(hctx, row.ID)
	}
	if err != nil {
		return nil, err
	}
	return t.follow(ctx, row, box.State())
}

// HibernateFor hibernates a managed sandbox that runs, for its owner. It ends with ctx,
// as EnsureRunning does.
func (s *Sandboxes) HibernateFor(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	return s.transitions.While(ctx, row, Hibernate)
}

// Note commits a host's answer to the owner of a managed sandbox.
func (s *Sandboxes) Note(ctx context.Context, row *record.Sandbox, box hostapi.Box) (*record.Sandbox, error) {
	return s.transitions.follow(ctx, row, box.State())
}
