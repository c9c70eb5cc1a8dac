package service

import (
	"context"
	"errors"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// errResumeFirst is what a paused sandbox answers to everything that needs it
// to run. A hibernated one is woken instead.
var errResumeFirst = snapshot.ErrAsleep

// Rouse makes sure that a sandbox of the caller's runs, and wakes it if it
// hibernates.
func (s *Sandboxes) Rouse(ctx context.Context, c Caller, id string) error {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return err
	}
	return s.rouse(hosts.WithRequestID(ctx, c.RequestID), row)
}

func (s *Sandboxes) rouse(ctx context.Context, row *record.Sandbox) error {
	switch row.Status {
	case record.SandboxRunning:
		return nil
	case record.SandboxPaused:
		return errResumeFirst
	case record.SandboxHibernated:
		_, err := s.transitions.Do(ctx, row, sandbox.Wake)
		var illegal *sandbox.IllegalError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxRunning:
			return nil
		case errors.As(err, &illegal) && illegal.Status == record.SandboxPaused:
			return errResumeFirst
		case unwritten(err):
			return apierror.Unavailable("the sandbox may have been woken; nothing else was done", err)
		}
		return moveError(err)
	}
	return apierror.NotRunning("its status is " + string(row.Status))
}

// target is a sandbox that a call is for, and its host.
type target struct {
	row    *record.Sandbox
	client *hosts.Client
}

// onHost calls fn with the host of a sandbox, whatever the sandbox is doing.
func (s *Sandboxes) onHost(ctx context.Context, c Caller, id string, fn func(ctx context.Context, t target) error) error {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return err
	}
	client, err := s.client(ctx, row)
	if err != nil {
		return err
	}
	return execError(fn(hosts.WithRequestID(ctx, c.RequestID), target{row, client}))
}

func (s *Sandboxes) client(ctx context.Context, row *record.Sandbox) (*hosts.Client, error) {
	if row.AgentID == "" {
		return nil, apierror.NotRunning("its status is " + string(row.Status))
	}
	client, err := s.cfg.Hosts.Reach(ctx, row.AgentID)
	if err != nil {
		return nil, execError(err)
	}
	return client, nil
}

// onRunning calls fn with the host of a sandbox that runs, waking it if it
// hibernates. The record may be behind its host for a moment: when the host
// refuses because the sandbox does not run (CodeNotRunning: nothing was begun),
// it is asked what the sandbox does, and fn is called once more if it can be made
// to run. What was cut off (CodeCutOff) had begun, and is not called again.
func (s *Sandboxes) onRunning(ctx context.Context, c Caller, id string, fn func(ctx context.Context, t target) error) error {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return err
	}
	hctx := hosts.WithRequestID(ctx, c.RequestID)
	for last := false; ; last = true {
		if err := s.rouse(hctx, row); err != nil {
			return err
		}
		client, err := s.client(hctx, row)
		if err != nil {
			return err
		}
		err = fn(hctx, target{row, client})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return storeError(ctx.Err())
		case last || !hostapi.HasCode(err, hostapi.CodeNotRunning):
			return execError(err)
		}
		now, rerr := s.transitions.Refresh(hctx, row)
		if rerr != nil {
			return execError(err)
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
func open[T any](s *Sandboxes, out *opened[T], fn func(ctx context.Context, t target) (T, error)) func(context.Context, target) error {
	return func(ctx context.Context, t target) error {
		ctx, release := s.cfg.Hosts.WhileHeard(ctx, t.row.AgentID)
		it, err := fn(ctx, t)
		if err != nil {
			release()
			return err
		}
		*out = opened[T]{it, release}
		return nil
	}
}
