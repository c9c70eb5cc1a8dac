package app

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The names of the loops.
const (
	loopState    = "apps"
	loopSweep    = "idle apps"
	loopScale    = "app instances"
	loopRequests = "requests of apps"
	loopOrphans  = "what no app has"
	loopOld      = "what apps no longer need"
	loopPaused   = "apps of paused workspaces"
	loopEvacuate = "apps of evacuated hosts"
)

// keeper maintains apps during one term.
type keeper struct {
	*loops.Term
	flows *Flows
	cfg   Config
	heard *heard

	streams *streams

	// Each is used only by the passes of one loop.
	written    map[string]time.Time // when an app's last request was written
	busy, calm map[string]time.Time // since when an app has had too many requests, or few
}

// Loops returns the loops that maintain apps. They replace lost instances, delete drained
// ones, put idle apps to sleep, add instances to busy apps, and delete what nothing points
// to.
func (s *Apps) Loops(t *loops.Term) []loops.Loop {
	s.heard.lead()
	k := &keeper{
		Term: t, flows: s.flows, cfg: s.cfg, heard: s.heard, streams: s.streams,
		written: map[string]time.Time{}, busy: map[string]time.Time{}, calm: map[string]time.Time{},
	}
	changed := func(tables ...string) func() <-chan struct{} {
		return func() <-chan struct{} { return s.core.Store.View().Changed(tables...) }
	}
	return []loops.Loop{
		{Name: loopState, Every: s.cfg.Look, Wake: changed(record.Apps.Name, record.Sandboxes.Name), Pass: k.look},
		{Name: loopPaused, Every: s.cfg.Look, Wake: changed(record.Workspaces.Name), Pass: k.followPaused},
		{Name: loopSweep, Every: s.cfg.Sweep, Pass: k.sweep},
		{Name: loopScale, Every: s.cfg.Look, Pass: k.scale},
		{Name: loopEvacuate, Every: s.cfg.Look, Wake: changed(record.Hosts.Name), Pass: k.evacuate},
		{Name: loopRequests, Every: max(s.cfg.Look, s.cfg.WriteRequests/12), Pass: k.writeRequests},
		{Name: loopOrphans, Wake: changed(record.Apps.Name, record.Deployments.Name), Pass: k.orphans},
		{Name: loopOld, Every: max(s.cfg.Look, min(loops.ExpiryEvery, s.cfg.Sweep)), Pass: k.dropOld},
	}
}

// liveFlow reports whether a flow works on an app.
func liveFlow(r raftstore.Reader, a *record.App) bool {
	_, under := flow.Live(r, Subject(a.ID))
	return under
}

// look checks all apps once.
func (k *keeper) look(ctx context.Context) {
	view := k.Store.View()
	k.heard.forget(func(id string) bool { _, ok := raftstore.Get(view, record.Apps, id); return ok })
	for _, a := range raftstore.All(view, record.Apps) {
		if a.Status == record.AppRunning {
			k.heard.woke(a.ID)
		}
		k.endDrained(ctx, view, a)
		if k.due(view, a) == nil {
			continue
		}
		if k.lostSome(view, a) {
			k.Logger.WarnContext(ctx, "app has lost an instance, another one takes its place", "app_id", a.ID, "instances", len(a.Instances))
		}
		k.Update(ctx, loopState, func(tx *raftstore.Tx) error {
			a, ok := raftstore.Get(tx, record.Apps, a.ID)
			if !ok {
				return nil
			}
			if do := k.due(tx, a); do != nil {
				return do(tx)
			}
			return nil
		})
	}
	k.interrupted(ctx, view)
}

// due returns the change that an app needs now, or nil.
func (k *keeper) due(r raftstore.Reader, a *record.App) func(tx *raftstore.Tx) error {
	under := liveFlow(r, a)
	switch {
	case a.Status == record.AppDeleting && !under:
		return func(tx *raftstore.Tx) error {
			_, err := beginDelete(tx, flow.NewID(), a, "")
			return err
		}
	case a.Status == record.AppDeleting:
		return nil
	case k.drained(r, a) || k.lostSome(r, a):
		return func(tx *raftstore.Tx) error { return k.settle(tx, a) }
	case a.Status == record.AppRunning && len(a.Instances) == 0 && !under:
		return func(tx *raftstore.Tx) error { return rouse(tx, a.ID) }
	case a.Status == record.AppWaking && !awaited(r, a): // our transactions leave no such app; an old backup might
		return func(tx *raftstore.Tx) error { return rouse(tx, a.ID) }
	case a.Status == record.AppFailed:
		return k.again(a)
	}
	return nil
}

// again returns a change that wakes a failed app again, if the app never sleeps and its
// pause is over. Otherwise it returns nil.
func (k *keeper) again(a *record.App) func(tx *raftstore.Tx) error {
	k.heard.wakeFailed(a)
	if a.AutoHibernate || a.Paused || a.DeploymentID == "" {
		return nil
	}
	if _, wait := k.heard.held(a); wait > 0 {
		return nil
	}
	return func(tx *raftstore.Tx) error {
		k.heard.rousing(a.ID)
		return rouse(tx, a.ID)
	}
}

// lost reports whether an instance will never serve again.
func lost(r raftstore.Reader, in record.AppInstance) bool {
	box, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID)
	return !ok || box.Status == record.SandboxFailed || box.Status == record.SandboxDeleting
}

func (k *keeper) lostSome(r raftstore.Reader, a *record.App) bool {
	for _, in := range a.Instances {
		if lost(r, in) {
			return true
		}
	}
	return false
}

// over reports whether a draining instance is to end now.
func (k *keeper) over(a *record.App, in record.AppInstance) bool {
	drains := k.Clock().Sub(in.Since)
	return in.Ending || drains >= k.cfg.Drain || drains >= k.cfg.DrainAtLeast && k.heard.open(a.ID, in.SandboxID) == 0 && k.heard.complete()
}

// drained reports whether a draining instance is gone, or is to be told to end.
func (k *keeper) drained(r raftstore.Reader, a *record.App) bool {
	for _, in := range a.Draining {
		if _, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID); !ok || !in.Ending && k.over(a, in) {
			return true
		}
	}
	return false
}

// settle removes the instances of an app that are gone or lost, and marks the drained ones
// as ending. An app that has lost its last instance wakes at once.
func (k *keeper) settle(tx *raftstore.Tx, a *record.App) error {
	a = a.Clone()
	had := len(a.Instances)
	var drain, serve []record.AppInstance
	for _, in := range a.Draining {
		if _, ok := raftstore.Get(tx, record.Sandboxes, in.SandboxID); ok {
			in.Ending = k.over(a, in)
			drain = append(drain, in)
		}
	}
	for _, in := range a.Instances {
		if !lost(tx, in) {
			serve = append(serve, in)
		} else if err := deleteBox(tx, in.SandboxID); err != nil {
			return err
		}
	}
	a.Draining, a.Instances = drain, serve
	raftstore.Put(tx, record.Apps, a)
	if n := len(a.Instances); n < had {
		if n == 0 {
			return rouse(tx, a.ID)
		}
		return beginWake(tx, a, true)
	}
	return nil
}

// endDrained ends the programs of drained instances and deletes their sandboxes. A program
// gets SIGTERM and appapi.StopGrace, so that it may finish what it does and write what it
// has. The row says before that the instance is ending: no leader lets it serve again.
func (k *keeper) endDrained(ctx context.Context, view *raftstore.Snapshot, a *record.App) {
	for _, in := range a.Draining {
		if box, ok := raftstore.Get(view, record.Sandboxes, in.SandboxID); ok && in.Ending {
			k.Begin(loops.Job{What: "drained instance", Host: box.HostID, ID: box.ID}, endingAtOnce, func() { k.endInstance(ctx, a.ID, box) })
		}
	}
}

// endingAtOnce limits the instances of a host that are told to end at once.
const endingAtOnce = 4 * loops.AtOnce

// endTime limits the call that ends a program. A guest that does not answer loses its
// sandbox all the same.
var endTime = timescale.Limit(appapi.StopGrace + 5*time.Second)

func (k *keeper) endInstance(ctx context.Context, appID string, box *record.Sandbox) {
	if box.Status == record.SandboxRunning && hostUp(k.Store.View(), box.HostID) {
		limited, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		err := k.flows.onGuest(limited, "", box, 0, func(ctx context.Context, g *appapi.Client) error {
			_, err := g.StopRun(ctx)
			return err
		})
		if ctx.Err() != nil || err != nil && k.flows.unheard(box.ID) {
			return // the next leader does it, or this one once it has heard the host
		}
		if err != nil {
			k.Logger.InfoContext(ctx, "program of a drained instance was not told to end", "app_id", appID, "sandbox_id", hostapi.ShortID(box.ID), "error", err)
		}
	}
	k.Update(ctx, loopState, func(tx *raftstore.Tx) error {
		a, ok := raftstore.Get(tx, record.Apps, appID)
		if !ok || !slices.ContainsFunc(a.Draining, func(in record.AppInstance) bool { return in.SandboxID == box.ID && in.Ending }) {
			return nil
		}
		a = a.Clone()
		a.Draining = slices.DeleteFunc(a.Draining, func(in record.AppInstance) bool { return in.SandboxID == box.ID })
		raftstore.Put(tx, record.Apps, a)
		return deleteBox(tx, box.ID)
	})
}

// interrupted ends deployments that have no flow. Our transactions leave no such
// deployment; an old backup might.
func (k *keeper) interrupted(ctx context.Context, view *raftstore.Snapshot) {
	stray := func(r raftstore.Reader, d *record.Deployment) bool {
		_, under := flow.Live(r, DeploymentSubject(d.ID))
		return !under && !d.Status.Ended()
	}
	for _, d := range raftstore.Find(view, record.Deployments, "ended", record.NotEnded) {
		if !stray(view, d) {
			continue
		}
		k.Update(ctx, loopState, func(tx *raftstore.Tx) error {
			d, ok := raftstore.Get(tx, record.Deployments, d.ID)
			if !ok || !stray(tx, d) {
				return nil
			}
			return abandon(tx, d, "what made it was interrupted", false)
		})
	}
}

// orphans deletes the sandboxes and artifacts of apps that nothing points to.
func (k *keeper) orphans(ctx context.Context) {
	view := k.Store.View()
	if loops.Kept(view) > 0 {
		return
	}
	for _, box := range raftstore.Find(view, record.Sandboxes, "owner", sandbox.OwnerApp) {
		if !orphanBox(view, box) {
			continue
		}
		k.Logger.WarnContext(ctx, "sandbox of no app is deleted", "sandbox_id", hostapi.ShortID(box.ID), "app_id", box.Owner.ID)
		k.Update(ctx, loopOrphans, func(tx *raftstore.Tx) error {
			box, ok := raftstore.Get(tx, record.Sandboxes, box.ID)
			if !ok || !orphanBox(tx, box) {
				return nil
			}
			return deleteBox(tx, box.ID)
		})
	}
	for _, s := range raftstore.All(view, record.Snapshots) {
		if !orphanArtifact(view, s) {
			continue
		}
		k.Logger.WarnContext(ctx, "artifact of no deployment is deleted", "snapshot_id", s.ID, "app_id", s.Owner.ID)
		k.Update(ctx, loopOrphans, func(tx *raftstore.Tx) error {
			s, ok := raftstore.Get(tx, record.Snapshots, s.ID)
			if !ok || !orphanArtifact(tx, s) {
				return nil
			}
			_, err := snapshot.Resource.BeginDelete(tx, flow.NewID(), s, "")
			return err
		})
	}
}

// orphanBox reports whether a sandbox of an app neither serves nor drains, and is not being
// created for an app either.
func orphanBox(r raftstore.Reader, box *record.Sandbox) bool {
	if box.Owner == nil || box.Owner.Type != sandbox.OwnerApp || box.Status == record.SandboxDeleting {
		return false
	}
	if len(raftstore.Find(r, record.Apps, "sandbox", box.ID)) > 0 {
		return false
	}
	for _, d := range raftstore.Find(r, record.Deployments, "sandbox", box.ID) {
		if _, under := flow.Live(r, DeploymentSubject(d.ID)); under {
			return false
		}
	}
	live, under := flow.Live(r, Subject(box.Owner.ID))
	var data waking
	return !under || flow.Decode(live, &data) != nil || data.SandboxID != box.ID
}

// orphanArtifact reports whether a snapshot of an app belongs to no deployment.
func orphanArtifact(r raftstore.Reader, s *record.Snapshot) bool {
	return s.Owner != nil && s.Owner.Type == sandbox.OwnerApp && s.Status != record.ResourceDeleting &&
		len(raftstore.Find(r, record.Deployments, "snapshot", s.ID)) == 0
}
