package app

import (
	"context"
	"slices"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// evacuate moves apps off hosts that are being evacuated. For each instance there, it starts
// another one elsewhere, from the same artifact. Once the new instance serves, the old one
// drains, so no request is lost. Lost hosts are left to the loop that replaces lost
// instances.
func (k *keeper) evacuate(ctx context.Context) {
	view := k.Store.View()
	for _, h := range raftstore.All(view, record.Hosts) {
		if h.Evacuation == nil || h.State != record.HostUp {
			continue
		}
		boxes := raftstore.Find(view, record.Sandboxes, "agent", h.ID)
		under := 0
		for _, box := range boxes {
			if leaving(view, box) {
				under++
			}
		}
		for _, box := range boxes {
			if under >= h.Evacuation.AtOnce {
				break
			}
			if stranded(view, box) != "" {
				k.Update(ctx, loopEvacuate, func(tx *raftstore.Tx) error { return strand(tx, h.ID, box.ID) })
				continue
			}
			if leavable(view, box) == nil {
				continue
			}
			ok := k.Update(ctx, loopEvacuate, func(tx *raftstore.Tx) error {
				h, known := raftstore.Get(tx, record.Hosts, h.ID)
				box, there := raftstore.Get(tx, record.Sandboxes, box.ID)
				if !known || h.Evacuation == nil || !there || box.HostID != h.ID {
					return nil
				}
				if a := leavable(tx, box); a != nil {
					return beginWaking(tx, a, waking{Leaves: box.ID})
				}
				return nil
			})
			if ok {
				under++
			}
		}
	}
}

// appOf finds the running app that a sandbox is an instance of.
func appOf(r raftstore.Reader, box *record.Sandbox) (*record.App, bool) {
	if box.Owner == nil || box.Owner.Type != sandbox.OwnerApp {
		return nil, false
	}
	a, ok := raftstore.Get(r, record.Apps, box.Owner.ID)
	return a, ok && a.Status == record.AppRunning && instance(a, box.ID) >= 0
}

// leaving reports whether another instance is being started in place of this one.
func leaving(r raftstore.Reader, box *record.Sandbox) bool {
	a, ok := appOf(r, box)
	if !ok {
		return false
	}
	live, under := flow.Live(r, Subject(a.ID))
	var data waking
	return under && live.Kind == KindWake && flow.Decode(live, &data) == nil && data.Leaves == box.ID
}

// leavable returns the app of an instance that is to leave its host now, or nil. Nothing
// else may be under way for the app, and no earlier attempt may have failed.
func leavable(r raftstore.Reader, box *record.Sandbox) *record.App {
	a := unmoved(r, box)
	if a == nil || unstored(r, a) != nil {
		return nil
	}
	return a
}

// unmoved returns the app of an instance that is to leave its host as soon as its artifact
// can be had elsewhere, or nil.
func unmoved(r raftstore.Reader, box *record.Sandbox) *record.App {
	a, ok := appOf(r, box)
	if !ok || box.Status != record.SandboxRunning || box.MoveError != "" || liveFlow(r, a) || len(unfinished(r, a.ID)) > 0 {
		return nil
	}
	return a
}

// unstored returns the artifact of an app if it is on one host alone, where it was made, and
// so cannot be started elsewhere yet.
func unstored(r raftstore.Reader, a *record.App) *record.Snapshot {
	d, ok := raftstore.Get(r, record.Deployments, a.DeploymentID)
	if !ok || !usable(r, d) {
		return nil
	}
	if snap, ok := raftstore.Get(r, record.Snapshots, d.SnapshotID); ok && !snap.Stored {
		return snap
	}
	return nil
}

// manyUploads is after how many failed uploads of an artifact an evacuation stops waiting
// for the next one. They take some minutes.
const manyUploads = 5

// stranded returns why an instance stays on its host, if that is because the upload of its
// artifact fails again and again. Otherwise it returns "".
func stranded(r raftstore.Reader, box *record.Sandbox) string {
	a := unmoved(r, box)
	if a == nil {
		return ""
	}
	if snap := unstored(r, a); snap == nil || snapshot.FailedUploads(r, snap.ID) < manyUploads {
		return ""
	}
	return "its artifact is not in the snapshot store yet, and the upload fails: evacuate again when that works, or deploy it again"
}

// strand notes that an instance stays on an evacuated host, if it still has to.
func strand(tx *raftstore.Tx, hostID, boxID string) error {
	h, known := raftstore.Get(tx, record.Hosts, hostID)
	box, there := raftstore.Get(tx, record.Sandboxes, boxID)
	if !known || h.Evacuation == nil || !there || box.HostID != hostID {
		return nil
	}
	if why := stranded(tx, box); why != "" {
		sandbox.NotReplaced(tx, box, why)
	}
	return nil
}

// instance returns the index of an app's instance, or -1.
func instance(a *record.App, sandboxID string) int {
	return slices.IndexFunc(a.Instances, func(in record.AppInstance) bool { return in.SandboxID == sandboxID })
}

// replace drains an instance after another one has taken its place.
func replace(tx *raftstore.Tx, a *record.App, sandboxID string) {
	i := instance(a, sandboxID)
	if i < 0 {
		return
	}
	a.Draining = append(a.Draining, draining(a.Instances[i:i+1], tx.Now())...)
	a.Instances = slices.Delete(a.Instances, i, i+1)
	if box, ok := raftstore.Get(tx, record.Sandboxes, sandboxID); ok {
		sandbox.Replaced(tx, box)
	}
}

// notReplaced ends a wake that has failed to replace an instance.
func (f *Flows) notReplaced(tx *raftstore.Tx, run flow.Run, data waking, why string) (flow.Next, error) {
	f.Logger.Warn("instance of an app stays on the host that is evacuated", "app_id", id(run.Flow, record.Apps.Name), "sandbox_id", hostapi.ShortID(data.Leaves), "reason", why)
	if box, ok := raftstore.Get(tx, record.Sandboxes, data.Leaves); ok {
		sandbox.NotReplaced(tx, box, why)
	}
	return flow.Done(), deleteBox(tx, data.SandboxID)
}
