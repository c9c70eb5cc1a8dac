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

// reach finds callers' sandboxes, and brings calls to their hosts.
type reach struct {
	core        *core.Core
	transitions *Transitions
}

// find reads one sandbox of the caller's workspace where it is current.
func (r *reach) find(ctx context.Context, c core.Caller, id string) (*record.Sandbox, error) {
	view, err := r.core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	return Owned(view, c, id)
}

// orNotFound answers for what is wrong with a request only to those who may
// see the sandbox.
func (r *reach) orNotFound(ctx context.Context, c core.Caller, id string, err error) error {
	if _, ferr := r.find(ctx, c, id); ferr != nil {
		return ferr
	}
	return err
}

// wake makes sure that a sandbox runs. A paused one is not resumed.
func (r *reach) wake(ctx context.Context, row *record.Sandbox) error {
	switch row.Status {
	case record.SandboxRunning:
		return nil
	case record.SandboxPaused:
		return ErrAsleep
	case record.SandboxHibernated:
		_, err := r.transitions.Do(ctx, row, Wake)
		var illegal *IllegalError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxRunning:
			return nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxPaused:
			return ErrAsleep
		case unwritten(err):
			return apierror.Unavailable("the sandbox may have been woken; nothing else was done", err)
		}
		return transitionError(err)
	}
	return apierror.NotRunning("its status is " + string(row.Status))
}

// target is a sandbox that a call is for, and its host.
type target struct {
	row    *record.Sandbox
	client *hosts.Client
}

// onHost calls fn with the host of a sandbox, whatever the sandbox is doing.
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

// onRunning calls fn with the host of a sandbox that runs, waking it if it
// hibernates. The record may be behind its host for a moment: when the host
// refuses because the sandbox does not run (CodeNotRunning: nothing was begun),
// it is asked what the sandbox does, and fn is called once more if it can be made
// to run. What was cut off (CodeCutOff) had begun, and is not called again.
func (r *reach) onRunning(ctx context.Context, c core.Caller, id string, fn func(ctx context.Context, t target) error) error {
	row, err := r.find(ctx, c, id)
	if err != nil {
		return err
	}
	hctx := hosts.WithRequestID(ctx, c.RequestID)
	for last := false; ; last = true {
		if err := r.wake(hctx, row); err != nil {
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

// opened is something that a host keeps open for us, such as a stream. It ends
// when the host is lost.
type opened[T any] struct {
	it      T
	release context.CancelFunc
}

// open calls fn under a context that lives until the result is closed.
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
