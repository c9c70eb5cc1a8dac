package database_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// copySteps are the steps of a clone that starts with a copy of its source's disk.
var copySteps = []string{"copy", "tell", "ready", "login"}

// cloned begins a clone of a database's latest state.
func (r *rig) cloned(id string) api.Database {
	r.t.Helper()
	clone, err := r.clone(id, api.CloneDatabase{})
	if err != nil {
		r.t.Fatal(err)
	}
	return clone
}

// origin makes a database that can be cloned.
func (r *rig) origin() api.Database {
	r.t.Helper()
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now().Add(-3*time.Minute))
	return d
}

// isCopy checks that a database was made with a copy of another one's disk, and that
// everything else is its own.
func (r *rig) isCopy(clone, of api.Database) {
	r.t.Helper()
	source, _ := r.box(of.ID)
	box, h := r.box(clone.ID)
	spec, _ := h.DatabaseSpec(box.ID)
	if got := h.Spec(box.ID); got.DiskOf != source.ID || got.Boot != hostapi.BootCold || box.HostID != source.HostID || box.BuildID != source.BuildID {
		r.t.Errorf("the box is %+v of %+v", got, box)
	}
	if spec.Archive.Name != clone.ID+"/1" || spec.Restore == nil || !spec.Restore.WithDisk || !spec.Restore.From.IsZero() {
		r.t.Errorf("the host was told %+v", spec)
	}
	if clone.Password == of.Password || clone.BrokerToken == of.BrokerToken || h.Credentials(box.ID).Password != clone.Password {
		r.t.Error("it has credentials of the other one")
	}
}

// isRestored checks that a database was restored from another one's archive.
func (r *rig) isRestored(clone, of api.Database) {
	r.t.Helper()
	box, h := r.box(clone.ID)
	spec, _ := h.DatabaseSpec(box.ID)
	if got := h.Spec(box.ID); got.DiskOf != "" || spec.Restore == nil || spec.Restore.From.Name != of.ID+"/1" || spec.Archive.Name != r.row(clone.ID).Archive().Name {
		r.t.Errorf("the box is %+v, the host was told %+v", got, spec)
	}
}

func TestACloneByACopyOfTheDisk(t *testing.T) {
	tier.Slow(t)
	for name, become := range map[string]func(r *rig, id string){
		"of what runs": func(*rig, string) {},
		"of what sleeps": func(r *rig, id string) {
			r.asleep(id)
		},
		"of what has failed": func(r *rig, id string) {
			box, h := r.box(id)
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "restart" {
					return &hostapi.Error{Code: hostapi.CodeInternal, Message: "not now"}
				}
				return nil
			})
			h.Become(box.ID, hostapi.StatusFailed)
			testcluster.Await(r.t, "the failure", func() bool {
				box, _ := r.box(id)
				return box.Status == record.SandboxFailed
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 2, nil)
			d := r.origin()
			become(r, d.ID)
			source, h := r.box(d.ID)
			before := r.archives.Info(d.ID + "/1")
			clone := r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning)
			r.isCopy(clone, d)
			if after := r.archives.Info(d.ID + "/1"); !after.LastRestorable.Equal(before.LastRestorable) {
				t.Error("the source has archived for it")
			}
			if now, _ := r.box(d.ID); now.ID != source.ID || now.Status != source.Status || h.Credentials(now.ID).Password != d.Password {
				t.Errorf("the source is %+v, was %+v", now, source)
			}
			// The clone is a database like any other, so it can be cloned too.
			r.archived(clone.ID, time.Now().Add(-time.Hour), time.Now().Add(-3*time.Minute))
			again := r.becomes(r.cloned(clone.ID).ID, api.DatabaseRunning)
			r.isCopy(again, clone)
			h.SetFault(nil)
			r.settled(3)
		})
	}
}

// A clone that a disk copy cannot provide is restored from the archive at once.
func TestClonesThatBeginWithTheArchive(t *testing.T) {
	r := newRig(t, 3, 2, nil)
	d := r.origin()
	big := api.Database4G
	for name, in := range map[string]api.CloneDatabase{
		"of another size": {Size: &big},
		"as of a moment":  {TargetTime: at(time.Now().Add(-10 * time.Minute))},
	} {
		clone, err := r.clone(d.ID, in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		clone = r.becomes(clone.ID, api.DatabaseRunning)
		r.isRestored(clone, d)
		if n := len(r.row(clone.ID).Archives); n != 1 {
			t.Errorf("%s: %d incarnations", name, n)
		}
	}
	source, h := r.box(d.ID)
	h.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		c.MemoryMB = boxes[source.ID].MemoryMB + c.OverheadMBPerBox
	})
	r.Passes(2)
	clone := r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning)
	r.isRestored(clone, d)
	if box, _ := r.box(clone.ID); box.HostID == source.HostID {
		t.Error("it is on the full host")
	}
}

// Any failure of a copy leads to a restore from the archive, and nothing of the copy is
// kept.
func TestACopyIsGivenUpForTheArchive(t *testing.T) {
	tier.Slow(t)
	refuse := func(op string, code hostapi.Code) func(r *rig, id string) {
		return func(r *rig, _ string) {
			var once atomic.Bool
			for _, h := range r.hosts {
				h.SetFault(func(_ context.Context, c fakehost.Call) error {
					if c.Op == op && !c.Done && once.CompareAndSwap(false, true) {
						return &hostapi.Error{Code: code, Message: "no"}
					}
					return nil
				})
			}
		}
	}
	for name, c := range map[string]struct {
		before func(r *rig, source string)
		during func(r *rig, clone string) // while the copy's PostgreSQL is not ready
	}{
		"the host copies no disk":     {before: func(r *rig, _ string) { r.archiveOnly() }},
		"the host has no room":        {before: refuse("put", hostapi.CodeNoDisk)},
		"the host knows of no copies": {before: refuse("database.put", hostapi.CodeInvalid)},
		"its box is gone":             {before: refuse("database.get", hostapi.CodeNotFound)},
		"the credentials are refused": {before: refuse("database.credentials", hostapi.CodeInvalid)},
		"the guest adopts nothing": {during: func(r *rig, clone string) {
			box, h := r.box(clone)
			h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
				s.Restore = &pgapi.RestoreStatus{Phase: pgapi.RestoreFailed, Error: "its guestpg is of an earlier version"}
			})
		}},
		"its VM fails": {during: func(r *rig, clone string) {
			box, h := r.box(clone)
			h.Become(box.ID, hostapi.StatusFailed)
		}},
		"it takes too long": {during: func(r *rig, clone string) { r.outOfTime(clone) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 2, nil)
			d := r.origin()
			if c.before != nil {
				c.before(r, d.ID)
			}
			r.slow(c.during != nil)
			clone := r.cloned(d.ID)
			if c.during != nil {
				testcluster.Await(t, "the step", func() bool { return r.flow(clone.ID, "ready") != nil })
				r.slow(false) // let the restore become ready
				c.during(r, clone.ID)
			}
			clone = r.becomes(clone.ID, api.DatabaseRunning)
			r.isRestored(clone, d)
			switch archives := r.row(clone.ID).Archives; {
			case len(archives) != 2:
				t.Errorf("%d incarnations", len(archives))
			case archives[0].ClosedAt.IsZero() || !archives[0].ClosedAt.Before(archives[1].CreatedAt):
				t.Errorf("the copy's archive is open until %s, the next begins at %s", archives[0].ClosedAt, archives[1].CreatedAt)
			}
			r.settled(2)
		})
	}
}

// slow sets whether databases that are created from now on stay unready.
func (r *rig) slow(slow bool) {
	for _, h := range r.hosts {
		h.SlowDatabases(slow)
	}
}

// outOfTime makes the copy that a clone starts with exceed its limit.
func (r *rig) outOfTime(id string) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		f, ok := flow.Live(tx, database.Subject(id))
		if !ok {
			return nil
		}
		var data map[string]any
		if err := json.Unmarshal(f.Data, &data); err != nil {
			return err
		}
		data["copy"].(map[string]any)["until"] = time.Now().Add(-time.Second)
		raw, err := json.Marshal(data)
		if err != nil {
			return err
		}
		f = f.Clone()
		f.Data = raw
		raftstore.Put(tx, record.Flows, f)
		return nil
	})
}

// A copy that lasts until the deadline of the whole clone fails the clone.
func TestACopyAtItsLastMoment(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	d := r.origin()
	r.slow(true)
	clone := r.cloned(d.ID)
	testcluster.Await(t, "the step", func() bool { return r.flow(clone.ID, "ready") != nil })
	r.late(clone.ID)
	if failed := r.becomes(clone.ID, api.DatabaseFailed); !strings.HasPrefix(failed.Error, "it took too long: ") {
		t.Errorf("%+v", failed)
	}
	r.settled(1)
}

func TestACopyCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range append([]string{"cleared"}, copySteps...) {
		for _, pt := range points {
			t.Run(fmt.Sprint(step, " ", pt), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r := newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
					if f.Kind == database.KindCreate && f.Step == step && at == pt && strings.Contains(string(f.Data), `"source"`) && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				if step == "cleared" {
					r.archiveOnly()
				}
				d := r.origin()
				clone := r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning)
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				if step == "cleared" {
					r.isRestored(clone, d)
				} else {
					r.isCopy(clone, d)
				}
				r.settled(2)
			})
		}
	}
}

// The leader is cut off during a copy, and the next leader completes the clone.
func TestACopySurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, step := range append([]string{"cleared"}, copySteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			r = newRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindCreate && f.Step == step && at == flow.BeforeCommit && strings.Contains(string(f.Data), `"source"`) {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			})
			if step == "cleared" {
				r.archiveOnly()
			}
			d := r.origin()
			clone := r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning)
			box, h := r.box(clone.ID)
			if spec, _ := h.DatabaseSpec(box.ID); spec.Archive.Name != r.row(clone.ID).Archive().Name {
				t.Errorf("the host was told %+v", spec)
			}
			r.settled(2)
		})
	}
}

// A clone can be deleted at any step of its copy, and then so can its source.
func TestADeleteDuringACopy(t *testing.T) {
	tier.Slow(t)
	for _, step := range append([]string{"cleared"}, copySteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r := newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindCreate && f.Step == step && at == flow.BeforeCommit && strings.Contains(string(f.Data), `"source"`) {
					once.Do(func() {
						close(reached)
						<-goOn
					})
				}
				return nil
			})
			if step == "cleared" {
				r.archiveOnly()
			}
			d := r.origin()
			clone := r.cloned(d.ID)
			<-reached
			testplane.Want(t, r.databases().Delete(t.Context(), caller, d.ID), apierror.EConflict, "database is being cloned")
			deleted := make(chan error, 1)
			go func() { deleted <- r.databases().Delete(t.Context(), caller, clone.ID) }()
			testcluster.Await(t, "the delete", func() bool {
				row, ok := raftstore.Get(r.Leader().Store.View(), record.Databases, clone.ID)
				return !ok || row.Status == record.DatabaseDeleting
			})
			close(goOn)
			if err := <-deleted; err != nil {
				t.Fatal(err)
			}
			if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
				t.Fatal(err)
			}
			r.settled(0)
		})
	}
}
