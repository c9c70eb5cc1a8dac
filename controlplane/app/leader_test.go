package app_test

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestNewLeaderWaitsForReports: neither a drained instance goes nor an app to sleep while
// a replica that has their requests may yet report them, which takes as long as it counts
// when it is silent.
func TestNewLeaderWaitsForReports(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, prepare := range map[string]func(r *rig, id string) (box string){
		"drain": func(r *rig, id string) string {
			box := r.row(id).Instances[0].SandboxID
			r.edit(id, func(a *record.App) { a.AutoHibernate = false })
			r.hear(id, box)
			r.ends(r.deploy(id).ID, record.DeploymentLive)
			return box
		},
		"sleep": func(r *rig, id string) string {
			box := r.row(id).Instances[0].SandboxID
			r.hear(id, box)
			return box
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Longer than a transfer of leadership takes on a busy machine.
			r := newRig(t, 3, 1, nil, func(c *app.Config) { c.ReportKept, c.Drain = 6*time.Second, time.Minute })
			a, _ := r.live(sleepy)
			box := prepare(r, a.ID)
			if err := r.Leader().Store.TransferLeadership(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			r.await("the time in which replicas report", func() bool {
				if row, ok := r.Sandbox(box); !ok || row.Status != record.SandboxRunning || r.row(a.ID).Status != record.AppRunning {
					t.Fatalf("after %s: %+v", time.Since(began), r.row(a.ID))
				}
				return time.Since(began) > 4*time.Second
			})
		})
	}
}

// hear reports a request that is open in a sandbox of an app.
func (r *rig) hear(id, box string) {
	r.t.Helper()
	r.apps().Heard("edge", []app.Activity{{AppID: id, Open: map[string]int{box: 1}}})
}

// TestFailuresAreForgotten once an app runs, also where nobody waits for it any more: the
// next failure is the first.
func TestFailuresAreForgotten(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.WakePause = time.Second })
	a, _ := r.live()
	var left time.Duration
	for range 5 { // by itself: it never sleeps
		r.edit(a.ID, func(a *record.App) { a.Stale = true })
		r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
		r.lose(a.ID)
		r.becomes(a.ID, record.AppFailed)
		r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
		failed := time.Now()
		r.becomes(a.ID, record.AppRunning)
		left = time.Since(failed)
	}
	if left > 10*time.Second { // after five in a row it is 16
		t.Errorf("it was left alone for %s", left)
	}
}
