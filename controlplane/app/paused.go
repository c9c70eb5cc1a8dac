package app

import (
	"context"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// followPaused stops the apps of paused workspaces, and lets them run again afterwards.
// While an app is paused, the edge answers with a page, and no request wakes the app.
func (k *keeper) followPaused(ctx context.Context) {
	view := k.Store.View()
	for _, a := range raftstore.All(view, record.Apps) {
		if !pauseDue(view, a) {
			continue
		}
		changed, paused := false, false
		ok := k.Update(ctx, loopPaused, func(tx *raftstore.Tx) error {
			a, ok := raftstore.Get(tx, record.Apps, a.ID)
			if changed = ok && pauseDue(tx, a); !changed {
				return nil
			}
			if paused = inPaused(tx, a); paused {
				k.pause(tx, a)
				return nil
			}
			return unpause(tx, a)
		})
		if ok && changed {
			k.Logger.InfoContext(ctx, "app is stopped or may run, as its workspace is paused or not", "app_id", a.ID, "paused", paused)
		}
	}
}

func inPaused(r raftstore.Reader, a *record.App) bool {
	w, ok := raftstore.Get(r, record.Workspaces, a.WorkspaceID)
	return ok && !w.PausedAt.IsZero()
}

// pauseDue reports whether an app does not match its workspace, which is paused or not.
func pauseDue(r raftstore.Reader, a *record.App) bool {
	if a.Status == record.AppDeleting {
		return false
	}
	paused := inPaused(r, a)
	return paused != a.Paused || paused && (len(a.Instances) > 0 || a.Status == record.AppRunning || a.Status == record.AppWaking)
}

// pause removes an app's instances at once. A wake under way finds that it is no longer
// wanted. A deployment under way goes on to its end, and then the instance that it brought
// up is stopped.
func (k *keeper) pause(tx *raftstore.Tx, a *record.App) {
	a = a.Clone()
	a.Paused = true
	a.Draining = append(a.Draining, draining(a.Instances, tx.Now().Add(-k.cfg.Drain))...)
	a.Instances = nil
	if a.Status == record.AppRunning || a.Status == record.AppWaking {
		a.Status, a.Error = record.AppHibernated, ""
	}
	raftstore.Put(tx, record.Apps, a)
}

// unpause lets an app wake at its next request. An app that never sleeps wakes at once.
func unpause(tx *raftstore.Tx, a *record.App) error {
	a = a.Clone()
	a.Paused = false
	raftstore.Put(tx, record.Apps, a)
	if a.AutoHibernate {
		return nil
	}
	return rouse(tx, a.ID)
}
