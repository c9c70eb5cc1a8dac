package database_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

var deleteSteps = []string{"sandboxes", "archives"}

// deleted asks for a delete until it is done. A leader that loses its leadership does not
// know the outcome, and one that comes later may find nothing to delete.
func (r *rig) deleted(id string) {
	r.t.Helper()
	if err := r.databases().Delete(r.t.Context(), caller, id); err != nil {
		r.t.Logf("delete: %v", err)
	}
	r.settled(0)
	testcluster.Await(r.t, "the end of its archives", func() bool { return len(r.archives.Names()) == 0 })
}

func TestDeleteCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range deleteSteps {
		for _, pt := range points {
			t.Run(fmt.Sprint(step, " ", pt), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
					if f.Kind == database.KindDelete && f.Step == step && at == pt && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				d := r.running()
				r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
				r.deleted(d.ID)
				if n.Load() == 0 {
					t.Error("the step was not taken")
				}
			})
		}
	}
}

// The leader is cut off during a delete, and the next leader completes it.
func TestADeleteSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, step := range deleteSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindDelete && f.Step == step && at == flow.BeforeCommit {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			})
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			r.deleted(d.ID)
		})
	}
}

// The leader is cut off while a clone is restored from an archive, and the next leader
// completes it.
func TestACloneSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"switch", "template", "sandbox", "tell", "ready", "login"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindCreate && f.Step == step && at == flow.BeforeCommit && strings.Contains(string(f.Data), `"source"`) {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			})
			r.archiveOnly()
			d := r.origin()
			clone := r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning)
			r.isRestored(clone, d)
			if _, h := r.box(clone.ID); h.Credentials(r.row(clone.ID).SandboxID).Password != clone.Password {
				t.Error("PostgreSQL has another password")
			}
			r.settled(2)
		})
	}
}

// The leader is cut off while a host puts a database to sleep, or has just done so. The
// next leader knows that it sleeps, and wakes it.
func TestASleepSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for name, done := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 1, nil)
			d := r.running()
			r.cutDuring("database.sleep", done)
			r.asleep(d.ID)
			r.wokenByAClient(d)
		})
	}
}

// The leader is cut off while a host wakes a database, or has just done so. The client's
// next attempt reaches it.
func TestAWakeSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for name, done := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 1, nil)
			d := r.running()
			r.asleep(d.ID)
			r.cutDuring("wake", done)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_ = r.databases().WakeForClient(ctx, d.ID) // the leader that is cut off may not know
			r.wokenByAClient(d)
		})
	}
}

// cutDuring cuts the leader off once a host is asked for an operation, before or after it
// does it.
func (r *rig) cutDuring(op string, done bool) {
	var once sync.Once
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == op && c.Done == done {
			once.Do(func() { r.Cut(r.Leader()) })
		}
		return nil
	})
}

// wokenByAClient checks that a client reaches a database, which is as it was.
func (r *rig) wokenByAClient(d api.Database) {
	r.t.Helper()
	testcluster.Await(r.t, "a wake", func() bool { return r.databases().WakeForClient(r.t.Context(), d.ID) == nil })
	now := r.becomes(d.ID, api.DatabaseRunning)
	if box, h := r.box(d.ID); now.Password != d.Password || h.Credentials(box.ID).Password != d.Password || h.Boxes()[box.ID].Status != hostapi.StatusRunning {
		r.t.Errorf("%+v", now)
	}
	r.settled(1)
}

// The leader is cut off while the old credentials are put back, and the next leader does
// so.
func TestARevertSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	var once sync.Once
	var r *rig
	r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
		if f.Kind == database.KindRotate && f.Step == "revert" && at == flow.BeforeCommit {
			once.Do(func() { r.Cut(r.Leader()) })
		}
		return nil
	})
	d := r.running()
	box, h := r.box(d.ID)
	var n atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "database.credentials" && n.Add(1) == 1 {
			return &hostapi.Error{Code: hostapi.CodeNotVerified, Message: "log-in failed"}
		}
		return nil
	})
	if _, err := r.databases().ResetCredentials(t.Context(), caller, d.ID); err == nil {
		t.Error("it was not proven, and succeeds")
	}
	testcluster.Await(t, "its end", func() bool { return r.flow(d.ID, "set") == nil && r.flow(d.ID, "revert") == nil })
	if now := r.becomes(d.ID, api.DatabaseRunning); now.Password != d.Password || now.BrokerToken != d.BrokerToken || h.Credentials(box.ID).Password != d.Password {
		t.Errorf("%+v", now)
	}
	r.settled(1)
}
