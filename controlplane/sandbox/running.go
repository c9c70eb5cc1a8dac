package sandbox

import (
	"context"
	"errors"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// reach finds callers' sandboxes and calls their hosts.
type reach struct {
	core        *core.Core
	transitions *Transitions
}

// find returns a sandbox of the caller's workspace from a current view.
func (r *reach) find(ctx context.Context, c core.Caller, id string) (*record.Sandbox, error) {
	view, err := r.core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	return Owned(view, c, id)
}

// orNotFound returns err, but not found to callers who may not use the sandbox.
func (r *reach) orNotFound(ctx context.Context, c core.Caller, id string, err error) error {
	if _, ferr := r.own(ctx, c, id); ferr != nil {
		return ferr
	}
	return err
}

// wake ensures that a sandbox runs, and returns its row, which may have another host by
// then. It does not resume a paused one.
func (r *reach) wake(ctx context.Context, row *record.Sandbox) (*record.Sandbox, error) {
	switch row.Status {
	case record.SandboxRunning:
		return row, nil
	case record.SandboxPaused:
		return nil, ErrAsleep
	case record.SandboxHibernated:
		if err := r.core.MayRun(r.core.Store.View(), row.WorkspaceID); err != nil {
			return nil, err
		}
		now, err := r.transitions.Do(ctx, row, Wake)
		var illegal *IllegalError
		switch {
		case err == nil:
			return now, nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxRunning:
			return row, nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxPaused:
			return nil, ErrAsleep
		case unwritten(err):
			return nil, apierror.Unavailable("the sandbox may have been woken; nothing else was done", err)
		}
		return nil, transitionError(err)
	}
	return nil, apierror.NotRunning("its status is " + string(row.Status))
}

// target is the sandbox that a call is for, and its host.
type target struct {
	row    *record.Sandbox
	client *hosts.Client
}

// onHost calls fn with a sandbox's host, whatever the sandbox's status.
func (r *reach) onHost(ctx context.Context, c core.Caller, id string, fn func(ctx context.Context, t target) error) error {
	row, err := r.find(ctx, c, id)
	if err != nil {
		return err
	}
	client, err := r.client(ctx, row)
	if err != nil {
		return err
	}
	return core.HostError(fn(hosts.WithRequestID(ctx, c.RequestID), target{row, client}))
}

func (r *reach) client(ctx context.Context, row *record.Sandbox) (*hosts.Client, error) {
	if row.HostID == "" {
		return nil, apierror.NotRunning("its status is " + string(row.Status))
	}
	client, err := r.core.Hosts.Reach(ctx, row.HostID)
	if err != nil {
		return nil, core.HostError(err)
	}
	return client, nil
}

// onRunning calls fn with the host of a running sandbox, and wakes a hibernated one
// first. The record may lag behind the host: if the host refuses because the sandbox
// does not run (CodeNotRunning: nothing was begun), onRunning asks for its status
// and, if it can be made to run, calls fn once more. It does not repeat what was cut
// off (CodeCutOff), because that had begun.
func (r *reach) onRunning(ctx context.Context, c core.Caller, id string, fn func(ctx context.Context, t target) error) error {
	row, err := r.own(ctx, c, id)
	if err == nil { // also of one that a paused workspace's end has not reached yet
		err = r.core.MayGoOn(r.core.Store.View(), row.WorkspaceID)
	}
	if err != nil {
		return err
	}
	hctx := hosts.WithRequestID(ctx, c.RequestID)
	for last := false; ; last = true {
		if row, err = r.wake(hctx, row); err != nil {
			return err
		}
		client, err := r.client(hctx, row)
		if err != nil {
			return err
		}
		err = fn(hctx, target{row, client})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return core.StoreError(ctx.Err())
		case last || !hostapi.HasCode(err, hostapi.CodeNotRunning):
			return core.HostError(err)
		}
		now, rerr := r.transitions.Refresh(hctx, row)
		if rerr != nil {
			return core.HostError(err)
		}
		row = now
	}
}

// opened is a stream or body that a host keeps open. It ends when the host is lost.
type opened[T any] struct {
	it      T
	release context.CancelFunc
}

// open calls fn with a context that lives until the result is released.
func open[T any](r *reach, out *opened[T], fn func(ctx context.Context, t target) (T, error)) func(context.Context, target) error {
	return func(ctx context.Context, t target) error {
		ctx, release := r.core.Hosts.WhileHeard(ctx, t.row.HostID)
		it, err := fn(ctx, t)
		if err != nil {
			release()
			return err
		}
		*out = opened[T]{it, release}
		return nil
	}
}
