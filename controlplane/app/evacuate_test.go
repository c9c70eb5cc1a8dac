package app_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// served makes an app that serves, and whose artifact any host can have.
func served(t *testing.T, replicas int, fault func(f *record.Flow, at flow.Point) error) (r *rig, a api.App, box string) {
	t.Helper()
	r = newRig(t, replicas, 2, fault)
	store := fakehost.NewStore()
	for _, h := range r.hosts {
		h.SetStore(store)
	}
	r.await("the store", func() bool { return len(r.LeaderNode().Hosts.Stores()) == 2 })
	a, d := r.live()
	r.await("the upload", func() bool {
		s, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, r.deployment(d.ID).SnapshotID)
		return ok && s.Stored
	})
	return r, a, r.row(a.ID).Instances[0].SandboxID
}

func (r *rig) evacuate(h *fakehost.Host) {
	r.t.Helper()
	r.await("a leader that evacuates", func() bool {
		_, err := r.LeaderNode().Replicas.EvacuateAgent(r.t.Context(), h.ID, api.EvacuateAgent{})
		return err == nil
	})
}

func (r *rig) evacuation(h *fakehost.Host) api.AgentEvacuation {
	r.t.Helper()
	a, err := r.LeaderNode().Replicas.Agent(r.t.Context(), h.ID)
	if err != nil || a.Evacuation == nil {
		return api.AgentEvacuation{}
	}
	return *a.Evacuation
}

// An app that serves is served from elsewhere first; what it is answering is answered
// where it is.
func TestAnAppLeavesAnEvacuatedHost(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r, a, box := served(t, 1, nil)
	from := r.host(box)
	hear := func() {
		r.apps().Heard("edge", []app.Activity{{AppID: a.ID, LastRequest: time.Now(), Open: map[string]int{box: 1}}})
	}
	hear()
	r.evacuate(from)
	r.await("another instance", func() bool {
		hear()
		row := r.row(a.ID)
		if row.Status != record.AppRunning || len(row.Instances) != 1 {
			t.Fatalf("it is not served: %+v", row)
		}
		return row.Instances[0].SandboxID != box
	})
	if r.host(r.row(a.ID).Instances[0].SandboxID) == from {
		t.Error("it is served from the host that is evacuated")
	}
	begun := time.Now()
	r.await("a second with an open request", func() bool { hear(); return time.Since(begun) > time.Second })
	if _, there := r.Sandbox(box); !there {
		t.Error("an instance is gone with a request in it")
	}
	if got := r.evacuation(from); got.Moved != 1 || got.Waiting != 1 || got.Done {
		t.Errorf("while it drains: %+v", got)
	}
	r.await("the end", func() bool {
		r.apps().Heard("edge", []app.Activity{{AppID: a.ID, LastRequest: time.Now(), Open: map[string]int{}}})
		return r.evacuation(from).Done
	})
	if got := r.evacuation(from); got.Moved != 1 || got.Staying != 0 {
		t.Errorf("%+v", got)
	}
	r.settled(1)
}

// One of which there is no artifact, and one that no host has room for, serve on, and say
// why they stay. The next evacuation tries again.
func TestAnAppThatCannotLeaveServesOn(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, c := range map[string]struct {
		prevent, allow func(r *rig, a api.App, other *fakehost.Host)
		why            string
	}{
		"no artifact": {
			func(r *rig, a api.App, _ *fakehost.Host) {
				r.Update(func(tx *raftstore.Tx) error {
					d, _ := raftstore.Get(tx, record.Deployments, r.row(a.ID).DeploymentID)
					d = d.Clone()
					d.SnapshotID = ""
					raftstore.Put(tx, record.Deployments, d)
					return nil
				})
			}, nil, "its artifact cannot be used: deploy it again",
		},
		"no room": {
			func(_ *rig, _ api.App, other *fakehost.Host) {
				other.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 256 })
			},
			func(_ *rig, _ api.App, other *fakehost.Host) {
				other.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 16 << 10 })
			}, "no available compute node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a, box := served(t, 1, nil)
			from := r.host(box)
			other := r.hosts[0]
			if other == from {
				other = r.hosts[1]
			}
			c.prevent(r, a, other)
			if name == "no room" {
				r.await("the heartbeat", func() bool {
					return r.LeaderNode().Hosts.Sessions()[other.ID].Heartbeat.Capacity.MemoryMB == 256
				})
			}
			r.evacuate(from)
			r.await("the end", func() bool { return r.evacuation(from).Done })
			got := r.evacuation(from)
			if got.Staying != 1 || got.Moved != 0 || !strings.Contains(got.Stays[0].Reason, c.why) {
				t.Errorf("%+v", got)
			}
			if row := r.row(a.ID); row.Status != record.AppRunning || len(row.Instances) != 1 || row.Instances[0].SandboxID != box || row.Error != "" {
				t.Errorf("%+v", row)
			}
			if c.allow == nil {
				return
			}
			c.allow(r, a, other)
			r.await("room", func() bool {
				return r.LeaderNode().Hosts.Sessions()[other.ID].Heartbeat.Capacity.MemoryMB > 256
			})
			r.evacuate(from)
			r.await("another host", func() bool { got := r.evacuation(from); return got.Done && got.Moved == 1 })
			r.settled(1)
		})
	}
}

// An artifact that is on its way to the snapshot store is waited for.
func TestAnAppWhoseArtifactIsBeingStoredWaitsForThat(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r, a, box := served(t, 1, nil)
	from := r.host(box)
	stored := func(stored bool) {
		r.Update(func(tx *raftstore.Tx) error {
			d, _ := raftstore.Get(tx, record.Deployments, r.row(a.ID).DeploymentID)
			s, _ := raftstore.Get(tx, record.Snapshots, d.SnapshotID)
			s = s.Clone()
			s.Stored = stored
			raftstore.Put(tx, record.Snapshots, s)
			return nil
		})
	}
	over := make(chan struct{})
	from.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "store" {
			select {
			case <-over:
			case <-ctx.Done():
			}
			return fakehost.ErrDrop
		}
		return nil
	})
	stored(false)
	r.evacuate(from)
	begun := time.Now()
	r.await("a second", func() bool { return time.Since(begun) > time.Second })
	if got := r.evacuation(from); got.Waiting != 1 || got.Done {
		t.Errorf("while it is stored: %+v", got)
	}
	stored(true)
	close(over)
	r.await("the end", func() bool { return r.evacuation(from).Done })
	if got := r.evacuation(from); got.Moved != 1 || got.Staying != 0 {
		t.Errorf("%+v", got)
	}
	r.settled(1)
}

// One whose artifact cannot be stored is not waited for without end: it serves on and says
// why, and the next evacuation tries again.
func TestAnAppWhoseArtifactIsNeverStoredServesOn(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r, a, box := served(t, 1, nil)
	from := r.host(box)
	from.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "store" {
			return fakehost.ErrDrop
		}
		return nil
	})
	id := r.deployment(r.row(a.ID).DeploymentID).SnapshotID
	r.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Snapshots, id)
		s = s.Clone()
		s.Stored = false
		raftstore.Put(tx, record.Snapshots, s)
		return nil
	})
	r.evacuate(from)
	r.await("the end", func() bool { return r.evacuation(from).Done })
	const why = "its artifact is not in the snapshot store yet, and the upload fails"
	if got := r.evacuation(from); got.Moved != 0 || !slices.ContainsFunc(got.Stays, func(s api.AgentStay) bool { return s.Kind == "sandbox" && strings.HasPrefix(s.Reason, why) }) {
		t.Errorf("%+v", got)
	}
	if row := r.row(a.ID); row.Status != record.AppRunning || len(row.Instances) != 1 || row.Instances[0].SandboxID != box || row.Error != "" {
		t.Errorf("%+v", row)
	}
	from.SetFault(nil)
	r.await("the upload", func() bool {
		s, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, id)
		return ok && s.Stored
	})
	r.evacuate(from)
	r.await("another host", func() bool { got := r.evacuation(from); return got.Done && got.Moved == 1 })
	r.settled(1)
}

// Whatever fails and however often, an app is served all the time, and by one in the end.
func TestLeavingAHostCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"restore", "health"} {
		for _, pt := range []flow.Point{flow.BeforeCommit, flow.AfterCommit} {
			t.Run(step+" "+string(pt), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r, a, box := served(t, 3, func(f *record.Flow, at flow.Point) error {
					if f.Kind == app.KindWake && f.Step == step && at == pt && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				from := r.host(box)
				r.evacuate(from)
				r.await("another instance", func() bool {
					row := r.row(a.ID)
					if row.Status != record.AppRunning || len(row.Instances) != 1 {
						t.Fatalf("it is not served: %+v", row)
					}
					return row.Instances[0].SandboxID != box
				})
				r.await("the step", func() bool { return n.Load() > 0 }) // after the commit, which shows first
				r.settled(1)
			})
		}
	}
}
