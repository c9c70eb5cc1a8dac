package app

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var (
	errNotLive = &apierror.Error{Code: apierror.EConflict, Message: "app has no live deployment"}
	errPaused  = &apierror.Error{Code: apierror.EQuota, Message: "app is paused", Detail: "its workspace was, and goes on within a minute"}
)

// Awake wakes an app and returns once an instance of it serves. Concurrent calls share one
// wake, which goes on when ctx ends. Only the leader can do this.
func (s *Apps) Awake(ctx context.Context, appID string) error {
	view, err := s.core.Current(ctx)
	if err != nil {
		return err
	}
	a, ok := raftstore.Get(view, record.Apps, appID)
	switch {
	case !ok || a.Status == record.AppDeleting:
		return apierror.NotFound()
	case serves(view, a):
		return nil
	case a.DeploymentID == "":
		return errNotLive
	}
	mayRun := s.core.MayRun
	if a.Status == record.AppRunning || a.Status == record.AppWaking { // it does not sleep, so a ceiling does not refuse it
		mayRun = s.core.MayGoOn
	}
	if err := mayRun(view, a.WorkspaceID); err != nil {
		return err
	}
	if a.Paused {
		return errPaused
	}
	if why, wait := s.heard.held(a); wait > 0 {
		return unavailable(a, why, wait)
	}
	s.heard.rousing(appID)
	if err := s.core.Update(ctx, func(tx *raftstore.Tx) error { return rouse(tx, appID) }); err != nil {
		return err
	}
	return s.awaitAwake(ctx, appID)
}

// serves reports whether an app has a running instance.
func serves(r raftstore.Reader, a *record.App) bool {
	for _, in := range a.Instances {
		if box, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID); ok && box.Status == record.SandboxRunning {
			return true
		}
	}
	return false
}

// rouse makes an app wake, whatever its status, unless an instance of it runs. It drops the
// app's instances and begins a wake, unless something under way will bring the app up.
func rouse(tx *raftstore.Tx, appID string) error {
	a, ok := raftstore.Get(tx, record.Apps, appID)
	if !ok || a.Status == record.AppDeleting || a.Status == record.AppCreated || a.DeploymentID == "" || a.Paused || serves(tx, a) {
		return nil
	}
	a = a.Clone()
	for _, in := range a.Instances {
		if err := deleteBox(tx, in.SandboxID); err != nil {
			return err
		}
	}
	a.Instances = nil
	if recall(tx, a) {
		raftstore.Put(tx, record.Apps, a)
		return nil
	}
	if a.Status != record.AppWaking {
		a.Status, a.Error = record.AppWaking, ""
	} else if awaited(tx, a) {
		return nil
	}
	raftstore.Put(tx, record.Apps, a)
	return beginWake(tx, a, false)
}

// recall makes a sleeping app be served again by an instance that still drains and runs,
// with the present settings and variables.
// It reports whether there was one.
func recall(tx *raftstore.Tx, a *record.App) bool {
	for i, in := range a.Draining {
		box, ok := raftstore.Get(tx, record.Sandboxes, in.SandboxID)
		current := in.DeploymentID == a.DeploymentID && in.EnvRevision == a.EnvRevision && !a.Stale && !in.Ending
		if !ok || box.Status != record.SandboxRunning || !current || a.Status != record.AppHibernated {
			continue
		}
		in.Since = tx.Now()
		a.Instances, a.Draining = []record.AppInstance{in}, slices.Delete(a.Draining, i, i+1)
		a.Status, a.Error = record.AppRunning, ""
		return true
	}
	return false
}

// awaited reports whether a flow or a deployment is under way that ends a wake.
func awaited(r raftstore.Reader, a *record.App) bool {
	return liveFlow(r, a) || len(unfinished(r, a.ID)) > 0
}

// awaitAwake waits until a wake, or the deployment that takes its place, has ended.
func (s *Apps) awaitAwake(ctx context.Context, appID string) error {
	for {
		view := s.core.Store.View()
		a, ok := raftstore.Get(view, record.Apps, appID)
		switch {
		case !ok || a.Status == record.AppDeleting:
			return apierror.NotFound()
		case serves(view, a):
			s.heard.woke(appID)
			return nil
		case a.Status == record.AppFailed:
			return unavailable(a, a.Error, s.heard.wakeFailed(a))
		case a.Status == record.AppHibernated:
			return apierror.Unavailable("the "+nounsOf[a.Kind].one+" was put to sleep meanwhile", nil)
		case !s.core.Store.IsLeader():
			return apierror.Unavailable("leadership has changed", nil)
		}
		select {
		case <-view.Changed(record.Apps.Name, record.Sandboxes.Name):
		case <-time.After(leads):
		case <-ctx.Done():
			return core.StoreError(ctx.Err())
		}
	}
}

// leads is how often a waiting call checks whether this replica still leads.
const leads = time.Second

func unavailable(a *record.App, why string, wait time.Duration) error {
	return &apierror.Error{Code: apierror.EUnwoken, Message: nounsOf[a.Kind].one + " could not be woken", Detail: why, RetryAfter: max(time.Second, wait.Round(time.Second))}
}
