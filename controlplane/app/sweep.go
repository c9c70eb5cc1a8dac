package app

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// sweep puts idle apps to sleep.
func (k *keeper) sweep(ctx context.Context) {
	view := k.Store.View()
	for _, a := range raftstore.All(view, record.Apps) {
		if !k.idle(view, a) {
			continue
		}
		if a.Kind == record.KindFunction {
			// Each workspace has places of its own: the guests of one must not keep those of others awake.
			k.Begin(loops.Job{What: "function to sleep", Host: a.WorkspaceID, ID: a.ID}, functionsAtOnce, func() { k.sleepFunction(ctx, a) })
			continue
		}
		k.putToSleep(ctx, a.ID)
	}
}

// putToSleep puts an app to sleep if it is still idle.
func (k *keeper) putToSleep(ctx context.Context, appID string) {
	asleep := false
	ok := k.Update(ctx, loopSweep, func(tx *raftstore.Tx) error {
		asleep = false
		a, ok := raftstore.Get(tx, record.Apps, appID)
		if !ok || !k.idle(tx, a) {
			return nil
		}
		a = a.Clone()
		a.Draining = append(a.Draining, draining(a.Instances, tx.Now())...)
		a.Instances, a.Status = nil, record.AppHibernated
		raftstore.Put(tx, record.Apps, a)
		asleep = true
		return nil
	})
	if ok && asleep {
		k.Logger.InfoContext(ctx, "idle app sleeps", "app_id", appID)
	}
}

// idle reports whether an app should go to sleep now.
func (k *keeper) idle(r raftstore.Reader, a *record.App) bool {
	if a.Status != record.AppRunning || !a.AutoHibernate || a.DeploymentID == "" || len(a.Instances) == 0 {
		return false
	}
	for _, in := range a.Instances {
		if k.heard.open(a.ID, in.SandboxID) > 0 {
			return false
		}
	}
	if !k.heard.complete() || awaited(r, a) {
		return false
	}
	return k.Clock().Sub(k.heard.activeAt(a)) >= k.idleTime(a)
}

// idleTime returns how long an app may be without a request before it sleeps. For functions
// it is the operator's present setting.
func (k *keeper) idleTime(a *record.App) time.Duration {
	if a.Kind == record.KindFunction {
		return *k.cfg.FunctionIdle
	}
	return time.Duration(a.IdleTimeoutSeconds) * time.Second
}

// writeRequests records when apps were last in use: each app at most once per
// Config.WriteRequests, and all due apps together.
func (k *keeper) writeRequests(ctx context.Context) {
	view := k.Store.View()
	now := k.Clock()
	var news []string
	for _, a := range raftstore.All(view, record.Apps) {
		if k.heard.lastRequest(a.ID).After(a.LastRequestAt) && now.Sub(k.written[a.ID]) >= k.cfg.WriteRequests {
			k.written[a.ID] = now
			news = append(news, a.ID)
		}
	}
	maps.DeleteFunc(k.written, func(id string, _ time.Time) bool { _, ok := raftstore.Get(view, record.Apps, id); return !ok })
	loops.InParts(ctx, k.Term, loopRequests, news, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			a, ok := raftstore.Get(tx, record.Apps, id)
			if last := k.heard.lastRequest(id); ok && a.Status != record.AppDeleting && last.After(a.LastRequestAt) {
				a = a.Clone()
				a.LastRequestAt = last
				raftstore.Put(tx, record.Apps, a)
			}
		}
		return nil
	}, nil)
}

// Open requests per instance above which an app gets another instance, and below which it
// loses one.
const (
	manyRequests = 40
	fewRequests  = 10
)

// scale adds instances to apps with many open requests, and drains those of apps with
// few that have none themselves: a WebSocket or a download may last for longer than an
// instance drains.
func (k *keeper) scale(ctx context.Context) {
	view := k.Store.View()
	now := k.Clock()
	seen := map[string]bool{}
	for _, a := range raftstore.All(view, record.Apps) {
		n, most := len(a.Instances), k.mayHave(view, a)
		if a.Status != record.AppRunning || n == 0 || n == 1 && most == 1 {
			continue
		}
		seen[a.ID] = true
		open := 0
		for _, in := range a.Instances {
			open += k.heard.open(a.ID, in.SandboxID)
		}
		many := lasts(k.busy, a.ID, now, open > manyRequests*n && n < most) >= k.cfg.ScaleUp
		few := lasts(k.calm, a.ID, now, n > 1 && open < fewRequests*n) >= k.cfg.ScaleDown && k.heard.ledFor() >= k.cfg.ScaleDown
		switch {
		case n > most:
			k.Update(ctx, loopScale, func(tx *raftstore.Tx) error { return k.fewer(tx, a.ID, n, a.Instances[n-1].SandboxID) })
			delete(k.calm, a.ID)
		case few && k.calmNow(a.ID):
			if unused, ok := k.unused(a); ok {
				k.Update(ctx, loopScale, func(tx *raftstore.Tx) error { return k.fewer(tx, a.ID, n, unused) })
				delete(k.calm, a.ID)
			}
		case many:
			k.Update(ctx, loopScale, func(tx *raftstore.Tx) error { return k.more(tx, a.ID, n) })
			delete(k.busy, a.ID)
		}
	}
	for _, of := range []map[string]time.Time{k.busy, k.calm} {
		maps.DeleteFunc(of, func(id string, _ time.Time) bool { return !seen[id] })
	}
}

// mayHave returns how many instances an app may have: as many as it asks for, if its
// workspace's tier allows that.
func (k *keeper) mayHave(r raftstore.Reader, a *record.App) int {
	if ws, ok := raftstore.Get(r, record.Workspaces, a.WorkspaceID); ok {
		return k.flows.Tiers.AppInstances(ws, a.MaxInstances)
	}
	return 1
}

func (k *keeper) calmNow(appID string) bool { _, calm := k.calm[appID]; return calm }

// lasts returns how long a condition has held for an app, or -1 if it does not hold.
func lasts(since map[string]time.Time, appID string, now time.Time, holds bool) time.Duration {
	if !holds {
		delete(since, appID)
		return -1
	}
	if _, known := since[appID]; !known {
		since[appID] = now
	}
	return now.Sub(since[appID])
}

// more begins to add an instance to an app that has n of them.
func (k *keeper) more(tx *raftstore.Tx, appID string, n int) error {
	a, ok := raftstore.Get(tx, record.Apps, appID)
	if !ok || a.Status != record.AppRunning || len(a.Instances) != n || n >= k.mayHave(tx, a) {
		return nil
	}
	return beginWake(tx, a, true)
}

// unused returns the sandbox of an app's newest instance without open requests.
func (k *keeper) unused(a *record.App) (sandboxID string, ok bool) {
	for _, in := range slices.Backward(a.Instances) {
		if k.heard.open(a.ID, in.SandboxID) == 0 {
			return in.SandboxID, true
		}
	}
	return "", false
}

// fewer drains one instance of an app that has n of them.
func (k *keeper) fewer(tx *raftstore.Tx, appID string, n int, sandboxID string) error {
	a, ok := raftstore.Get(tx, record.Apps, appID)
	if !ok || a.Status != record.AppRunning || len(a.Instances) != n || n < 2 {
		return nil
	}
	i := instance(a, sandboxID)
	if i < 0 {
		return nil
	}
	a = a.Clone()
	a.Draining = append(a.Draining, draining(a.Instances[i:i+1], tx.Now())...)
	a.Instances = slices.Delete(a.Instances, i, i+1)
	raftstore.Put(tx, record.Apps, a)
	return nil
}

// dropOld deletes the uploads that apps no longer need, and the apps' oldest deployments.
func (k *keeper) dropOld(ctx context.Context) {
	view := k.Store.View()
	if loops.Kept(view) > 0 {
		return
	}
	var unbegun []*record.Deployment
	drops := map[string][]func() error{} // by host
	for _, a := range raftstore.All(view, record.Apps) {
		if a.Status == record.AppDeleting {
			continue
		}
		for _, u := range a.Uploads {
			if u.Dropped && !k.streams.has(u.ID) {
				drops[u.HostID] = append(drops[u.HostID], func() error { return k.dropSource(ctx, a.ID, u) })
			}
		}
		for _, d := range tooOld(view, a) {
			if d.StartedAt.IsZero() { // no host has anything of it; see blobsOf
				unbegun = append(unbegun, d)
				continue
			}
			drops[d.LogHost] = append(drops[d.LogHost], func() error { return k.dropDeployment(ctx, d) })
		}
	}
	loops.InParts(ctx, k.Term, loopOld, unbegun, func(tx *raftstore.Tx, part []*record.Deployment) error {
		for _, d := range part {
			deleteUnchanged(tx, d)
		}
		return nil
	}, nil)
	// All that a host has, one after the other: any number may become old between two passes.
	for host, all := range drops {
		k.Begin(loops.Job{What: "what apps no longer need", Host: host}, 1, func() {
			// In any order, so that what fails again and again holds up nothing else.
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			failures := 0
			for _, drop := range all {
				if err := drop(); err != nil && !errors.Is(err, errBlobAway) {
					failures++
				}
				if failures == loops.AtOnce || ctx.Err() != nil {
					return // the host hangs; a later pass tries again
				}
			}
		})
	}
}

func (k *keeper) dropSource(ctx context.Context, appID string, u record.AppUpload) error {
	// Check the present row: an upload or a log that was completed since the pass is kept.
	a, ok := raftstore.Get(k.Store.View(), record.Apps, appID)
	if !ok || !slices.ContainsFunc(a.Uploads, func(now record.AppUpload) bool { return now.ID == u.ID && now.Dropped }) {
		return nil
	}
	if err := k.deleteBlob(ctx, placeOf(u), u.ID); err != nil {
		return err
	}
	k.Update(ctx, loopOld, func(tx *raftstore.Tx) error {
		if a, ok := raftstore.Get(tx, record.Apps, appID); ok {
			a = a.Clone()
			a.Uploads = slices.DeleteFunc(a.Uploads, func(of record.AppUpload) bool { return of.ID == u.ID && of.Dropped })
			raftstore.Put(tx, record.Apps, a)
		}
		return nil
	})
	return nil
}

// tooOld returns the deployments of an app that are no longer kept.
func tooOld(r raftstore.Reader, a *record.App) (old []*record.Deployment) {
	rows := deploymentsOf(r, a.ID)
	for _, d := range rows[:max(0, len(rows)-keptDeployments)] {
		_, under := flow.Live(r, DeploymentSubject(d.ID))
		if d.Status.Ended() && !under && d.ID != a.DeploymentID && d.SnapshotID == "" {
			old = append(old, d)
		}
	}
	return old
}

func (k *keeper) dropDeployment(ctx context.Context, d *record.Deployment) error {
	err := k.deleteBlob(ctx, logPlace(d), logBlob(d))
	if err != nil && len(deploymentsOf(k.Store.View(), d.AppID)) <= 2*keptDeployments {
		return err // a host that is away for a long time keeps the file
	}
	k.Update(ctx, loopOld, func(tx *raftstore.Tx) error {
		deleteUnchanged(tx, d)
		return nil
	})
	return err
}

// deleteUnchanged deletes a deployment's row unless it has changed since it was read.
func deleteUnchanged(tx *raftstore.Tx, d *record.Deployment) {
	if now, ok := raftstore.Get(tx, record.Deployments, d.ID); ok && now.ModifyIndex == d.ModifyIndex {
		raftstore.Delete(tx, record.Deployments, d.ID)
	}
}

func (k *keeper) deleteBlob(ctx context.Context, at blobPlace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	err := k.flows.deleteBlob(ctx, at, name)
	if err != nil && !errors.Is(err, errBlobAway) {
		k.Logger.WarnContext(ctx, "blob could not be deleted", "blob", name, "error", err)
	}
	return err
}
