package database

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// earlyWord is how long Wake waits for a wake in case the host refuses it at once.
const earlyWord = 300 * time.Millisecond

// Wake begins to wake a database. The status in its answer is the same whether or not
// there was anything to do.
func (s *Databases) Wake(ctx context.Context, c core.Caller, id string) (api.DatabaseWake, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return api.DatabaseWake{}, err
	}
	switch status, hint := s.standing(view, d).status(); status {
	case api.DatabaseRunning:
		return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs already"}, nil
	case api.DatabaseHibernated, api.DatabaseWaking:
	default:
		return api.DatabaseWake{}, notNow(status, hint)
	}
	if err := mayBeUp(s.core, view, d); err != nil {
		return api.DatabaseWake{}, err
	}
	w := s.heard.want(ctx, id)
	wait := time.NewTimer(earlyWord)
	defer wait.Stop()
	select {
	case <-w.done:
		if w.err != nil {
			return api.DatabaseWake{}, hostRefusal(w.err)
		}
	case <-wait.C:
	case <-ctx.Done():
	}
	return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs in a moment; clients that connect meanwhile are held until then"}, nil
}

// notNow returns the error for an operation that a database's status does not allow.
func notNow(status api.DatabaseStatus, hint string) error {
	return &apierror.Error{Code: apierror.EConflict, Message: fmt.Sprintf("database is %s", status), Detail: hint}
}

// mayBeUp refuses to bring a database up in a workspace whose month is spent. Only one that
// sleeps is woken; one that has died is booted again, and one that moves goes on as it was,
// which a ceiling does not refuse.
func mayBeUp(c *core.Core, r raftstore.Reader, d *record.Database) error {
	if box, ok := raftstore.Get(r, record.Sandboxes, d.SandboxID); ok && (box.Status != record.SandboxHibernated || arriving(r, box)) {
		return c.MayGoOn(r, d.WorkspaceID)
	}
	return c.MayRun(r, d.WorkspaceID)
}

// WakeForClient wakes a database for a client that wants to connect, without checking who
// the client is, and returns once the sandbox runs. All concurrent callers share one
// wake, which goes on when ctx ends.
func (s *Databases) WakeForClient(ctx context.Context, id string) error {
	view, err := s.core.Current(ctx)
	if err != nil {
		return err
	}
	d, ok := raftstore.Get(view, record.Databases, id)
	if !ok || d.Status == record.DatabaseDeleting {
		return apierror.NotFound()
	}
	switch status, hint := s.standing(view, d).status(); status {
	case api.DatabaseRunning, api.DatabaseHibernated, api.DatabaseWaking:
	default:
		return notNow(status, hint)
	}
	if err := mayBeUp(s.core, view, d); err != nil {
		return err
	}
	w := s.heard.want(ctx, id)
	select {
	case <-w.done:
		return hostRefusal(w.err)
	case <-ctx.Done():
		return core.StoreError(ctx.Err())
	}
}

// awaken makes a database's sandbox run, whatever state it is in. After a failed restart
// it first waits out a pause, however many callers ask.
func (f *Flows) awaken(ctx context.Context, id string) error {
	for {
		err := f.awakenOnce(ctx, id)
		if !errors.Is(err, sandbox.ErrMoving) || ctx.Err() != nil {
			return err
		}
		if err := f.pauseUntil(ctx, f.Clock().Add(movingPause)); err != nil {
			return fmt.Errorf("wake a database: %w", err)
		}
	}
}

// movingPause is the time between two looks at a database that is moving to another host.
const movingPause = 500 * time.Millisecond

func (f *Flows) awakenOnce(ctx context.Context, id string) error {
	view, err := f.Store.VerifiedView(ctx)
	if err != nil {
		return fmt.Errorf("wake a database: %w", err)
	}
	d, ok := raftstore.Get(view, record.Databases, id)
	if !ok {
		return apierror.NotFound()
	}
	if err := mayBeUp(f.Core, view, d); err != nil {
		return err
	}
	box, ok := raftstore.Get(view, record.Sandboxes, d.SandboxID)
	if !ok {
		return &apierror.Error{Code: apierror.EConflict, Message: "database has failed", Detail: errBoxGone}
	}
	if box.Move != nil && box.Status != record.SandboxRunning {
		return fmt.Errorf("wake a database: %w", sandbox.ErrMoving)
	}
	session, _ := f.Hosts.Session(box.HostID)
	bootID := session.Heartbeat.BootID
	if box.Status == record.SandboxFailed {
		if err := f.pauseUntil(ctx, f.heard.restart(box.ID, bootID).next); err != nil {
			return fmt.Errorf("wake a database: %w", err)
		}
	}
	hctx, cancel := f.Hosts.WhileUp(ctx, box.HostID)
	defer cancel()
	_, err = f.sandboxes.EnsureRunning(hctx, box)
	attrs := []any{"database_id", id, "sandbox_id", hostapi.ShortID(box.ID), "agent_id", box.HostID, "was", box.Status}
	switch {
	case err == nil:
		f.heard.restarted(box.ID)
		if box.Status != record.SandboxRunning {
			f.Logger.InfoContext(ctx, "database is awake", attrs...)
		}
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wake a database: %w", errors.Join(ctx.Err(), err))
	case errors.Is(err, sandbox.ErrMoving):
		return fmt.Errorf("wake a database: %w", err)
	}
	// The row may still have said that it runs. If the host is silent, its lease decides.
	now, ok := raftstore.Get(f.Store.View(), record.Sandboxes, box.ID)
	if ok && now.Status == record.SandboxFailed && !hosts.Unreachable(err) {
		f.heard.restartFailed(box.ID, bootID, f.cfg.RestartPause, err)
	}
	f.Logger.WarnContext(ctx, "database could not be woken", append(attrs, "error", err)...)
	return fmt.Errorf("wake a database: %w", err)
}

func (f *Flows) pauseUntil(ctx context.Context, at time.Time) error {
	t := time.NewTimer(at.Sub(f.Clock()))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
