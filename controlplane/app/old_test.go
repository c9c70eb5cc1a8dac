package app_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// oldRig is a rig whose loop leaves what is old alone, and that loop's pass.
func oldRig(t *testing.T) (*rig, func(context.Context)) {
	t.Helper()
	seldom := func(cfg *app.Config) { cfg.Sweep = time.Hour }
	r := newRig(t, 1, 1, nil, seldom)
	return r, passOf(t, r, "what apps no longer need")
}

func passOf(t *testing.T, r *rig, loop string) func(context.Context) {
	t.Helper()
	for _, l := range r.apps().Loops(loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: time.Now, Logger: testcluster.Log()})) {
		if l.Name == loop {
			return l.Pass
		}
	}
	t.Fatal("no such loop")
	return nil
}

// The pass over apps follows each change of any sandbox, and an app keeps a hundred
// deployments that have ended: it does not look at those.
func TestEndedDeploymentsCostAPassNothing(t *testing.T) {
	r := newRig(t, 1, 1, nil, func(cfg *app.Config) { cfg.Sweep, cfg.Look = time.Hour, time.Hour })
	pass := passOf(t, r, "apps")
	const many = 3000
	for part := range many / 100 {
		for _, status := range []record.DeploymentStatus{record.DeploymentQueued, record.DeploymentFailed} {
			r.Update(func(tx *raftstore.Tx) error {
				for i := range 100 {
					d := &record.Deployment{Meta: record.Meta{ID: fmt.Sprintf("dep-%d-%d", part, i)}, WorkspaceID: "ws", AppID: "app-a", Status: status}
					if status.Ended() {
						d.FinishedAt = time.Now()
					}
					raftstore.Put(tx, record.Deployments, d)
				}
				return nil
			})
		}
	}
	if n := testing.AllocsPerRun(5, func() { pass(t.Context()) }); n >= many {
		t.Errorf("with %d ended deployments a pass allocates %v times", many, n)
	}
}

// Deployments end as fast as they are asked for, so one pass removes all that are too many.
func TestAnyNumberOfDeploymentsGoesInOnePass(t *testing.T) {
	t.Parallel()
	r, pass := oldRig(t)
	a := r.create()
	for part := range 3 {
		for _, status := range []record.DeploymentStatus{record.DeploymentQueued, record.DeploymentFailed} {
			r.Update(func(tx *raftstore.Tx) error {
				for i := range 100 {
					d := &record.Deployment{Meta: record.Meta{ID: fmt.Sprintf("dep-%d-%02d", part, i)}, WorkspaceID: "ws", AppID: a.ID, Status: status}
					if there, ok := raftstore.Get(tx, record.Deployments, d.ID); ok {
						d.Meta = there.Meta
					}
					if i%2 == 0 { // it has a log
						d.StartedAt, d.LogHost = time.Now(), r.hosts[0].ID
					}
					raftstore.Put(tx, record.Deployments, d)
				}
				return nil
			})
		}
	}
	left := func() int { return len(raftstore.Find(r.Leader().Store.View(), record.Deployments, "app", a.ID)) }
	pass(t.Context())
	r.await("that a hundred are left", func() bool { return left() <= 100 })
	if n := left(); n != 100 {
		t.Errorf("%d are left", n)
	}
}

// A source that was replaced is deleted from its host, however fast others replace it.
func TestEverySourceThatWasReplacedIsDeleted(t *testing.T) {
	t.Parallel()
	r, pass := oldRig(t)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	put := func() error {
		_, err := r.apps().PutSource(t.Context(), caller, a.ID, strings.NewReader("a source"))
		return err
	}
	var err error
	for n := 0; err == nil && n < 2*app.MaxUndeleted; n++ {
		err = put()
	}
	want(t, err, apierror.ERateLimited, "too many old sources")
	pass(t.Context())
	r.await("that only those that are kept are there", func() bool { return len(r.hosts[0].Blobs()) == 5 })
	if err := put(); err != nil {
		t.Error(err)
	}
}
