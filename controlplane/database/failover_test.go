package database_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func (r *rig) failOver(id string, force bool) (api.DatabaseFailover, error) {
	r.t.Helper()
	return r.databases().Failover(r.t.Context(), caller, id, api.FailoverDatabase{Force: force})
}

// lost silences the host of a database that has an archive, until the database has
// failed.
func (r *rig) lost(id string) (old *record.Sandbox, h *fakehost.Host) {
	r.t.Helper()
	r.archived(id, time.Now().Add(-time.Hour), time.Now().Add(-12*time.Second))
	old, h = r.box(id)
	h.Silence(true)
	r.becomes(id, api.DatabaseFailed)
	return old, h
}

// A database whose host is lost is restored on another host as the same database. When
// the first host returns later, what it still has is removed.
func TestAFailover(t *testing.T) {
	tier.Slow(t)
	began := time.Now()
	r := newRig(t, 3, 2, nil)
	d := r.running()
	old, h := r.lost(d.ID)
	failed, _ := r.get(d.ID)
	if !*failed.FailoverAvailable || !strings.Contains(failed.FailoverReason, "another host") || failed.FailoverETASeconds != 180 {
		t.Errorf("%+v", failed)
	}
	out, err := r.failOver(d.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	if out.ID != d.ID || out.Status != api.DatabaseRestoring || !strings.Contains(out.Error, "LSN 0/5000060") || !strings.HasSuffix(out.Error, "; what was written after "+api.Time{Time: r.row(d.ID).Archives[0].LastRestorable}.String()+" may be lost") {
		t.Errorf("%+v", out)
	}
	_, err = r.failOver(d.ID, false)
	testplane.Want(t, err, apierror.EConflict, "database is restoring")
	_, err = r.failOver(d.ID, true)
	testplane.Want(t, err, apierror.EConflict, "database is restoring")
	again := r.becomes(d.ID, api.DatabaseRunning)
	box, now := r.box(d.ID)
	if now == h || box.ID == old.ID || again.Host != d.Host || again.Password != d.Password || again.BrokerToken != d.BrokerToken || again.Error != "" {
		t.Errorf("%+v", again)
	}
	spec, _ := now.DatabaseSpec(box.ID)
	// The name must differ from any that a row from an older backup could be given.
	second := r.row(d.ID).Archive().Name
	if number, _ := strconv.ParseInt(strings.TrimPrefix(second, d.ID+"/"), 10, 64); number < began.Unix() {
		t.Errorf("the second archive is %s", second)
	}
	if spec.Archive.Name != second || spec.Restore == nil || spec.Restore.From.Name != d.ID+"/1" || spec.Restore.TargetTime != nil || spec.FirstBackupSeconds != 0 || now.Credentials(box.ID).Password != d.Password {
		t.Errorf("%+v", spec)
	}
	if !r.archives.Info(d.ID+"/1").Fenced || r.archives.Info(second).Fenced {
		t.Error("the wrong archive is fenced")
	}
	if row := r.row(d.ID); len(row.Archives) != 2 || row.Archives[0].ClosedAt.IsZero() || !row.Archives[1].ClosedAt.IsZero() {
		t.Errorf("%+v", row.Archives)
	}
	// The second incarnation is lost before it has a base backup, so the first one's
	// archive is restored.
	now.Silence(true)
	h.Become(old.ID, hostapi.StatusFailed)
	h.Silence(false)
	testcluster.Await(t, "the end of the old box", func() bool { return len(h.Boxes()) == 0 })
	if !h.KeptDisk(old.ID) {
		t.Error("what the lost host had is not kept for an operator")
	}
	r.becomes(d.ID, api.DatabaseFailed)
	if _, err = r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	box, now2 := r.box(d.ID)
	if spec, _ := now2.DatabaseSpec(box.ID); now2 != h || spec.Archive.Name == second || spec.Archive.Name != r.row(d.ID).Archive().Name || spec.Restore.From.Name != d.ID+"/1" {
		t.Errorf("%+v", spec)
	}
	now.Silence(false)
	r.settled(1)
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
	if names := r.archives.Names(); len(names) != 0 {
		t.Errorf("archives %q", names)
	}
}

// Of a database that was deleted since, a host that returns keeps nothing.
func TestALostHostKeepsNothingOfADeletedDatabase(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	old, h := r.lost(d.ID)
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	h.Become(old.ID, hostapi.StatusFailed)
	h.Silence(false)
	testcluster.Await(t, "the end of the old box", func() bool { return len(h.Boxes()) == 0 })
	if h.KeptDisk(old.ID) {
		t.Error("its disk is kept")
	}
	r.settled(0)
}

// A forced failover restores a running database, with everything that it could still
// archive.
func TestAForcedFailover(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	d := r.running()
	_, err := r.failOver(d.ID, false)
	testplane.Want(t, err, apierror.EConflict, "database is running")
	_, err = r.failOver(d.ID, true)
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	out, err := r.failOver(d.ID, true)
	if err != nil || !strings.Contains(out.Error, "up to 60 seconds") {
		t.Fatalf("%+v, %v", out, err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	if got := r.archives.Info(d.ID + "/1"); time.Since(got.LastRestorable) > 30*time.Second || !got.Fenced {
		t.Errorf("%+v", got)
	}
	r.settled(1)
}

// If the database's own host is up, another host is preferred. If no other has room, the
// outlook says so.
func TestWhereAFailoverGoes(t *testing.T) {
	tier.Slow(t)
	for name, hosts := range map[string]int{"another host": 2, "its own host": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, hosts, nil)
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			box, h := r.box(d.ID)
			for _, other := range r.hosts {
				if other != h { // less room than on its own host
					other.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 2048 })
				}
			}
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "restart" {
					return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest did not come up"}
				}
				return nil
			})
			h.Become(box.ID, hostapi.StatusFailed)
			if failed := r.becomes(d.ID, api.DatabaseFailed); !strings.Contains(failed.FailoverReason, "on "+name) {
				t.Errorf("%q, want %s", failed.FailoverReason, name)
			}
			if _, err := r.failOver(d.ID, false); err != nil {
				t.Fatal(err)
			}
			r.becomes(d.ID, api.DatabaseRunning)
			if _, now := r.box(d.ID); (now == h) != (hosts == 1) {
				t.Errorf("it is on %s, was on %s", now.ID, h.ID)
			}
		})
	}
}

// Hosts reported their room a while ago. If the others refuse, the database's own host
// takes it.
func TestAFailoverThatTheOthersRefuse(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	_, h := r.box(d.ID)
	for _, other := range r.hosts {
		if other == h {
			continue
		}
		other.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "put" {
				return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "no disk"}
			}
			return nil
		})
	}
	if _, err := r.failOver(d.ID, true); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	if _, now := r.box(d.ID); now != h {
		t.Errorf("it is on %s", now.ID)
	}
	r.settled(1)
}

// Only a running database's own archive has what it has written since its failover. An
// earlier incarnation's archive must not replace that data, nor be cloned in its place.
func TestWhatRunsIsRestoredFromItsOwnArchive(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	_, h := r.lost(d.ID)
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	_, err := r.failOver(d.ID, true)
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	_, err = r.clone(d.ID, api.CloneDatabase{})
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	moment := time.Now().Add(-30 * time.Minute)
	if _, err = r.clone(d.ID, api.CloneDatabase{TargetTime: at(moment)}); err != nil {
		t.Errorf("a clone at a moment of the first incarnation: %v", err)
	}
	h.Silence(false)
	_, now := r.box(d.ID)
	now.Silence(true)
	r.becomes(d.ID, api.DatabaseFailed)
	out, err := r.failOver(d.ID, false)
	if err != nil || !strings.Contains(out.Error, "since its last failover") {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestFailoversThatAreRefused(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	r.asleep(d.ID)
	for _, force := range []bool{false, true} {
		_, err := r.failOver(d.ID, force)
		testplane.Want(t, err, apierror.EConflict, "database is hibernated")
	}
	_, h := r.box(d.ID)
	before := r.row(d.ID)
	h.Silence(true)
	failed := r.becomes(d.ID, api.DatabaseFailed)
	if *failed.FailoverAvailable {
		t.Errorf("%+v", failed)
	}
	_, err := r.failOver(d.ID, false)
	testplane.Want(t, err, apierror.EUnavailable, "no healthy agent available")
	if row := r.row(d.ID); row.SandboxID != before.SandboxID || len(row.Archives) != 1 {
		t.Errorf("%+v", row)
	}
	h.Silence(false)
	r.becomes(d.ID, api.DatabaseHibernated)
	r.hosts[0].SlowDatabases(true)
	other := r.create(api.CreateDatabase{})
	_, err = r.failOver(other.ID, true)
	testplane.Want(t, err, apierror.EConflict, "database is provisioning")
}

// A database can be failed over again after a failover has failed.
func TestAFailoverThatFails(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	_, lost := r.lost(d.ID)
	other := r.hosts[0]
	if other == lost {
		other = r.hosts[1]
	}
	other.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "insufficient host memory for sandbox"}
		}
		return nil
	})
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	failed := r.becomes(d.ID, api.DatabaseFailed)
	if !strings.HasPrefix(failed.Error, "no available compute node") || !*failed.FailoverAvailable {
		t.Errorf("%+v", failed)
	}
	other.SetFault(nil)
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	if again := r.becomes(d.ID, api.DatabaseRunning); again.Password != d.Password {
		t.Errorf("%+v", again)
	}
}

func TestFailoverCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"switch", "fence", "fenced", "template", "sandbox", "tell", "ready", "login"} {
		for _, pt := range points {
			t.Run(fmt.Sprint(step, " ", pt), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r := newRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
					if f.Kind == database.KindFailover && f.Step == step && at == pt && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				d := r.running()
				r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
				old, _ := r.box(d.ID)
				// A leader that loses its leadership does not know the outcome of the
				// call.
				testcluster.Await(t, "the failover", func() bool {
					_, err := r.failOver(d.ID, true)
					if err != nil && !retriable(err) && apierror.CodeOf(err) != apierror.EConflict {
						t.Fatal(err)
					}
					return !retriable(err)
				})
				again := r.becomes(d.ID, api.DatabaseRunning)
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				if box, h := r.box(d.ID); box.ID == old.ID || again.Password != d.Password || h.Credentials(box.ID).Password != d.Password || len(r.row(d.ID).Archives) != 2 {
					t.Errorf("%+v", r.row(d.ID))
				}
				r.settled(1)
			})
		}
	}
}

// The leader is cut off during a failover, and the next leader completes it.
func TestAFailoverSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"switch", "fence", "fenced", "template", "sandbox", "tell", "ready", "login"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			r = newRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindFailover && f.Step == step && at == flow.BeforeCommit {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			})
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			old, _ := r.box(d.ID)
			if _, err := r.failOver(d.ID, true); err != nil {
				t.Fatal(err)
			}
			testcluster.Await(t, "another sandbox", func() bool {
				row := r.row(d.ID)
				return row.Status == record.DatabaseReady && row.SandboxID != old.ID
			})
			r.settled(1)
		})
	}
}

// A delete preempts a failover at any step.
func TestADeleteDuringAFailover(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"fence", "fenced", "sandbox", "tell", "login"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r := newRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindFailover && f.Step == step && at == flow.BeforeCommit {
					once.Do(func() {
						close(reached)
						<-goOn
					})
				}
				return nil
			})
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			if _, err := r.failOver(d.ID, true); err != nil {
				t.Fatal(err)
			}
			<-reached
			gone := make(chan error, 1)
			go func() { gone <- r.databases().Delete(t.Context(), caller, d.ID) }()
			testcluster.Await(t, "the mark", func() bool { _, err := r.get(d.ID); return apierror.CodeOf(err) == apierror.ENotFound })
			close(goOn)
			if err := <-gone; err != nil {
				t.Fatal(err)
			}
			r.settled(0)
			testcluster.Await(t, "the end of its archives", func() bool { return len(r.archives.Names()) == 0 })
		})
	}
}

// While no host reaches the bucket, the last known facts of an archive are shown, and
// nothing that needs the archive is begun.
func TestABucketThatIsAway(t *testing.T) {
	tier.Slow(t)
	for name, refusal := range map[string]error{
		"it answers nobody": &hostapi.Error{Code: hostapi.CodeInternal, Message: "internal error", Detail: "connection refused"},
		"no host has it":    &hostapi.Error{Code: hostapi.CodeNoStore, Message: "this host has no snapshot store"},
		"no host answers":   fakehost.ErrDrop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 2, nil)
			d := r.running()
			first := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
			r.archived(d.ID, first, time.Now())
			for _, h := range r.hosts {
				h.SetFault(func(_ context.Context, c fakehost.Call) error {
					if c.Op == "archive.info" {
						return refusal
					}
					return nil
				})
			}
			a, err := r.databases().Archive(t.Context(), caller, d.ID)
			if err != nil || a.FirstRestorable == nil || !a.FirstRestorable.Equal(first) || a.LastRestorable == nil || a.Error == nil {
				t.Errorf("%+v, %v", a, err)
			}
			_, err = r.clone(d.ID, api.CloneDatabase{})
			testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
			_, err = r.failOver(d.ID, true)
			testplane.Want(t, err, apierror.EUnavailable, "no healthy agent available")
			if now, _ := r.get(d.ID); now.Status != api.DatabaseRunning {
				t.Errorf("%+v", now)
			}
			r.settled(1)
		})
	}
}

// A restore that is known to be impossible is refused before the database is stopped for it.
func TestAnArchiveWhoseEndIsLost(t *testing.T) {
	const missing = "wal/000000010000000000000003 is missing"
	refused := func(err error) {
		t.Helper()
		if e := testplane.Want(t, err, apierror.EUnprocessable, "archive is damaged"); !strings.HasPrefix(e.Detail, missing) {
			t.Errorf("%+v", e)
		}
	}
	r := newRig(t, 3, 2, nil)
	d := r.origin()
	box, _ := r.box(d.ID)
	r.archives.LoseEnd(d.ID+"/1", missing)
	_, err := r.failOver(d.ID, true)
	refused(err)
	if now, _ := r.get(d.ID); now.Status != api.DatabaseRunning || r.row(d.ID).SandboxID != box.ID {
		t.Errorf("%+v", now)
	}
	big := api.Database4G
	_, err = r.clone(d.ID, api.CloneDatabase{Size: &big})
	refused(err)
	before, err := r.clone(d.ID, api.CloneDatabase{Size: &big, TargetTime: at(time.Now().Add(-10 * time.Minute))})
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(before.ID, api.DatabaseRunning)
	r.isCopy(r.becomes(r.cloned(d.ID).ID, api.DatabaseRunning), d) // which needs no archive
}

// A damaged archive is restored from where the damaged part is not needed, and its error
// says what is wrong.
func TestADamagedArchive(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	r.archives.Damage(d.ID+"/1", "wal/000000010000000000000003 is missing")
	a, err := r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || a.Error == nil || *a.Error != "wal/000000010000000000000003 is missing" || a.FirstRestorable == nil {
		t.Errorf("%+v, %v", a, err)
	}
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(clone.ID, api.DatabaseRunning)
}
