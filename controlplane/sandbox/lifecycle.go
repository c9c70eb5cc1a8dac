package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Pause stops a running sandbox's CPUs and keeps its memory.
func (s *Sandboxes) Pause(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	return s.change(ctx, c, id, Pause)
}

// Resume resumes a paused sandbox.
func (s *Sandboxes) Resume(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	return s.change(ctx, c, id, Resume)
}

// Hibernate writes a running sandbox's memory to its host's disk.
func (s *Sandboxes) Hibernate(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	return s.change(ctx, c, id, Hibernate)
}

// Wake wakes a hibernated sandbox. It returns a running one unchanged.
func (s *Sandboxes) Wake(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	return s.change(ctx, c, id, Wake)
}

func (s *Sandboxes) change(ctx context.Context, c core.Caller, id string, m Transition) (api.Sandbox, error) {
	row, err := s.own(ctx, c, id)
	if err == nil && (m == Wake || m == Resume) {
		err = s.core.MayRun(s.core.Store.View(), row.WorkspaceID)
	}
	if err != nil {
		return api.Sandbox{}, err
	}
	row, err = s.transitions.Do(hosts.WithRequestID(ctx, c.RequestID), row, m)
	var illegal *IllegalError
	if m == Hibernate && (err == nil || errors.As(err, &illegal) && illegal.Status == record.SandboxHibernated) {
		err = cmp.Or(s.staysAsleep(ctx, id), err)
	}
	if err != nil {
		return api.Sandbox{}, transitionError(err)
	}
	return s.Show(row), nil
}

// transitionError converts the error of a transition to one of the API.
func transitionError(err error) error {
	var illegal *IllegalError
	var refusal *hostapi.Error
	switch {
	case errors.As(err, &illegal):
		return &apierror.Error{
			Code: apierror.EConflict, Message: "sandbox is " + string(illegal.Status),
			Detail: fmt.Sprintf("cannot %s it: %s", illegal.Transition, illegal.Remedy()), Err: err,
		}
	case errors.Is(err, ErrGone):
		return apierror.NotFound()
	case errors.Is(err, ErrMoving):
		return apierror.Unreachable("it is being moved to another host", err)
	case errors.Is(err, hostapi.ErrUnknownOutcome):
		return apierror.Unreachable("it may or may not have happened", err)
	case errors.As(err, &refusal):
		switch refusal.Code {
		case hostapi.CodeNoMemory, hostapi.CodeNoSlot:
			return &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox", Detail: refusal.Detail, RetryAfter: time.Second, Err: err}
		case hostapi.CodeNoDisk:
			return &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host storage for sandbox", Detail: refusal.Detail, RetryAfter: time.Second, Err: err}
		case hostapi.CodeIllegalState, hostapi.CodeInUse:
			return &apierror.Error{Code: apierror.EConflict, Message: refusal.Message, Detail: refusal.Detail, Err: err}
		case hostapi.CodeBadSnapshot:
			return ErrSnapshot.With("its saved memory cannot be used: "+whatIsWrong(refusal), err)
		case hostapi.CodeTemplateMissing:
			return apierror.Unreachable("its template is not ready on its host", err)
		}
	case unwritten(err):
		return apierror.Unavailable("it may or may not have happened", err)
	}
	return core.HostError(err)
}

// unwritten reports whether a transition failed in the store and not on the host.
// What the host did by then is done, although it is not recorded.
func unwritten(err error) bool {
	if hosts.Unreachable(err) {
		return false
	}
	return slices.ContainsFunc([]error{
		raftstore.ErrNotLeader, raftstore.ErrLeadershipLost, raftstore.ErrClosed, raftstore.ErrOverloaded, raftstore.ErrContention,
		context.Canceled, context.DeadlineExceeded,
	}, func(e error) bool { return errors.Is(err, e) })
}

// Lifecycle returns when a sandbox expires.
func (s *Sandboxes) Lifecycle(ctx context.Context, c core.Caller, id string) (api.Lifecycle, error) {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	return lifecycleOf(row), nil
}

// PatchLifecycle changes when a sandbox expires, and what happens then. It tells the
// host first, which acts on persistence by itself after a reboot. If the row then
// differs, the inventory loop corrects the host.
func (s *Sandboxes) PatchLifecycle(ctx context.Context, c core.Caller, id string, in api.PatchLifecycle) (api.Lifecycle, error) {
	row, err := s.own(ctx, c, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	ttl, persistent := in.TTLSeconds.Value, in.Persistent.Value
	switch {
	case !in.TTLSeconds.Set && persistent == nil:
		return api.Lifecycle{}, &apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: ttl_seconds, persistent)"}
	case ttl != nil && (*ttl < 1 || *ttl > MaxTTLSeconds):
		return api.Lifecycle{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d, or null for no end", MaxTTLSeconds)
	case row.Status == record.SandboxDeleting:
		return api.Lifecycle{}, &apierror.Error{Code: apierror.EConflict, Message: "sandbox is deleting", Detail: "it is being deleted"}
	}
	if persistent != nil && *persistent != row.Persistent && row.Status != record.SandboxStarting {
		if err := s.tellPersistent(ctx, c, row, *persistent); err != nil {
			return api.Lifecycle{}, err
		}
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, err = Owned(tx, c, id)
		if err != nil {
			return err
		}
		row = applyPatch(in, row, tx.Now())
		raftstore.Put(tx, record.Sandboxes, row)
		return nil
	})
	if err != nil {
		return api.Lifecycle{}, err
	}
	return lifecycleOf(row), nil
}

func (s *Sandboxes) tellPersistent(ctx context.Context, c core.Caller, row *record.Sandbox, persistent bool) error {
	client, err := s.core.Hosts.Reach(ctx, row.HostID)
	if err == nil {
		hctx, cancel := context.WithTimeout(hosts.WithRequestID(ctx, c.RequestID), updateTimeout)
		defer cancel()
		_, err = client.UpdateBox(hctx, row.ID, hostapi.BoxUpdate{Persistent: &persistent})
	}
	if err != nil {
		return transitionError(err)
	}
	return nil
}

// updateTimeout limits a call that a host answers after writing a small file.
var updateTimeout = timescale.Limit(10 * time.Second)

// applyPatch returns the changed row. A given time to live counts from now. An
// existing one continues, unless the sandbox is hibernated and keeps it for its
// wake.
func applyPatch(in api.PatchLifecycle, row *record.Sandbox, now time.Time) *record.Sandbox {
	c := row.Clone()
	if in.Persistent.Value != nil {
		c.Persistent = *in.Persistent.Value
	}
	if in.TTLSeconds.Set {
		c.TTLSeconds, c.ExpiresAt = in.TTLSeconds.Value, time.Time{}
	}
	resting := c.Persistent && c.Status == record.SandboxHibernated
	switch {
	case resting:
		c.ExpiresAt = time.Time{}
	case c.TTLSeconds != nil && c.ExpiresAt.IsZero() && c.Status != record.SandboxStarting:
		c.ExpiresAt = now.Add(time.Duration(*c.TTLSeconds) * time.Second)
	}
	return c
}

func lifecycleOf(row *record.Sandbox) api.Lifecycle {
	return api.Lifecycle{Status: api.SandboxStatus(row.Status), TTLSeconds: row.TTLSeconds, ExpiresAt: api.NewTime(row.ExpiresAt), Persistent: row.Persistent}
}
