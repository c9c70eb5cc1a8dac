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
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func (r *rig) clone(id string, in api.CloneDatabase) (out api.Database, err error) {
	r.t.Helper()
	testcluster.Await(r.t, "a leader that answers", func() bool {
		out, err = r.databases().Clone(r.t.Context(), caller, id, in, core.Idempotency{})
		return !retriable(err)
	})
	return out, err
}

// archiveOnly makes every clone take its data from an archive.
func (r *rig) archiveOnly() {
	for _, h := range r.hosts {
		h.RefuseCopies(true)
	}
}

func at(t time.Time) *string {
	s := t.UTC().Format(time.RFC3339Nano)
	return &s
}

// On a single node there is nothing to clone, to fail over or to rotate.
func TestASingleNode(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	_, err := r.clone(d.ID, api.CloneDatabase{})
	testplane.Want(t, err, apierror.ENotImplemented, "not available on a single-node install")
	_, err = r.databases().Failover(t.Context(), caller, d.ID, api.FailoverDatabase{Force: true})
	testplane.Want(t, err, apierror.ENotImplemented, "not available on a single-node install")
	_, err = r.databases().ResetCredentials(t.Context(), caller, d.ID)
	testplane.Want(t, err, apierror.ENotImplemented, "not available on a single-node install")
}

func TestClonesThatAreRefused(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	_, err := r.clone(d.ID, api.CloneDatabase{})
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	first, last := time.Now().Add(-time.Hour), time.Now().Add(-10*time.Minute).UTC().Truncate(time.Millisecond)
	r.archived(d.ID, first, last)
	for _, size := range []api.DatabaseSize{"2g", ""} {
		_, err = r.clone(d.ID, api.CloneDatabase{Size: &size})
		testplane.Want(t, err, apierror.EInvalid, "size must be 1g, 4g or 16g")
	}
	for _, bad := range []string{"", "yesterday", "2026-11-20", "2026-11-20T13:05:09", "1763643909"} {
		_, err = r.clone(d.ID, api.CloneDatabase{TargetTime: &bad})
		testplane.Want(t, err, apierror.EInvalid, "invalid target_time (want RFC3339, such as 2026-11-20T13:05:09Z)")
	}
	for _, young := range []time.Time{time.Now().Add(time.Hour), time.Now(), time.Now().Add(-119 * time.Second)} {
		_, err = r.clone(d.ID, api.CloneDatabase{TargetTime: at(young)})
		if e := testplane.Want(t, err, apierror.EInvalid, ""); !strings.HasPrefix(e.Message, "target_time must be at least 2 minutes in the past (it is now 2") {
			t.Errorf("%q", e.Message)
		}
	}
	_, err = r.clone(d.ID, api.CloneDatabase{TargetTime: at(last.Add(time.Minute))})
	testplane.Want(t, err, apierror.EInvalid, "target_time is beyond the last archived WAL ("+api.Time{Time: last}.String()+") of the source")
	_, err = r.clone(d.ID, api.CloneDatabase{TargetTime: at(first.Add(-time.Minute))})
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	r.archived(d.ID, time.Now().Add(-30*24*time.Hour), last) // not pruned yet
	_, err = r.clone(d.ID, api.CloneDatabase{TargetTime: at(time.Now().Add(-7*24*time.Hour - time.Second))})
	if e := testplane.Want(t, err, apierror.ENoArchive, "no restorable archive"); e.Detail != "nothing is kept from more than 7 days ago" {
		t.Errorf("%q", e.Detail)
	}
	big := api.Database16G
	_, err = r.clone(d.ID, api.CloneDatabase{Size: &big})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
	r.settled(1)
}

func TestClones(t *testing.T) {
	r := newRig(t, 3, 2, nil)
	r.archiveOnly()
	d := r.running()
	first, last := time.Now().Add(-time.Hour), time.Now().Add(-3*time.Minute).UTC()
	r.archived(d.ID, first, last)
	moment := last.Add(-time.Minute).Truncate(time.Microsecond).Add(7 * time.Microsecond)
	zone, _ := time.ParseInLocation(time.RFC3339, moment.Format(time.RFC3339), time.UTC)
	big := api.Database4G
	for name, c := range map[string]struct {
		in     api.CloneDatabase
		label  string
		size   api.DatabaseSize
		target *time.Time
	}{
		"the latest":               {api.CloneDatabase{}, "orders (clone)", "1g", nil},
		"larger, at a moment":      {api.CloneDatabase{Label: "big", Size: &big, TargetTime: at(moment.Add(400 * time.Nanosecond))}, "big", "4g", &moment},
		"at a moment, with a zone": {api.CloneDatabase{TargetTime: new(zone.In(time.FixedZone("", 3600)).Format(time.RFC3339))}, "orders (clone)", "1g", &zone},
	} {
		clone, err := r.clone(d.ID, c.in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if clone.Status != api.DatabaseProvisioning || clone.ClonedFrom != d.ID || clone.Label != c.label || clone.Size != c.size || clone.AlwaysOn {
			t.Errorf("%s: %+v", name, clone)
		}
		clone = r.becomes(clone.ID, api.DatabaseRunning)
		box, h := r.box(clone.ID)
		spec, _ := h.DatabaseSpec(box.ID)
		if clone.Password == d.Password || clone.BrokerToken == d.BrokerToken || spec.Archive.Name != r.row(clone.ID).Archive().Name || spec.Restore == nil || spec.Restore.From.Name != d.ID+"/1" {
			t.Errorf("%s: %+v", name, spec)
		}
		switch got := spec.Restore.TargetTime; {
		case (got == nil) != (c.target == nil), got != nil && !got.Equal(*c.target):
			t.Errorf("%s: to %v, want %v", name, got, c.target)
		}
	}
	// A running source archives its latest WAL first.
	if got := r.archives.Info(d.ID + "/1").LastRestorable; time.Since(got) > time.Minute {
		t.Errorf("archived until %s", got)
	}
	if source, _ := r.get(d.ID); source.Status != api.DatabaseRunning || source.Password != d.Password {
		t.Errorf("the source is %+v", source)
	}
	r.settled(4)
}

// Where WAL is missing, what is before the gap can still be restored.
func TestACloneFromBeforeAGap(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	now := time.Now().UTC().Truncate(time.Second)
	first, last := now.Add(-5*time.Hour), now.Add(-4*time.Hour)
	r.archived(d.ID, now.Add(-time.Hour), now.Add(-3*time.Minute))
	r.archives.Gap(r.row(d.ID).Archive().Name, hostapi.Window{First: first, Last: last})
	for _, at := range []time.Time{first.Add(-time.Second), last.Add(time.Second)} {
		_, err := r.clone(d.ID, api.CloneDatabase{TargetTime: new(at.Format(time.RFC3339))})
		e := testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
		if want := api.NewTime(first).String(); !strings.Contains(e.Detail, want) {
			t.Errorf("detail %q lacks %s", e.Detail, want)
		}
	}
	for _, at := range []time.Time{first, last} {
		clone, err := r.clone(d.ID, api.CloneDatabase{TargetTime: new(at.Format(time.RFC3339))})
		if err != nil {
			t.Fatal(err)
		}
		r.becomes(clone.ID, api.DatabaseRunning)
	}
	r.settled(3)
}

// A sleeping database, or a failed one, is cloned as it is.
func TestClonesOfWhatDoesNotRun(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	r.archiveOnly()
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	r.asleep(d.ID)
	_, h := r.box(d.ID)
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(clone.ID, api.DatabaseRunning)
	if n := h.Transitions("wake"); n != 0 {
		t.Errorf("%d wakes", n)
	}
	h.Silence(true)
	r.becomes(d.ID, api.DatabaseFailed)
	clone, err = r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(clone.ID, api.DatabaseRunning)
}

// A clone from an archive that does not go on says so in its answer and while it is made,
// unless its source archives the rest after all.
func TestACloneOfWhatIsNotArchived(t *testing.T) {
	big := api.Database4G
	for name, c := range map[string]struct {
		failing, refused bool // the archive, and the archiving of what is left
		said, told       bool // in the answer, and then
	}{
		"it fails":                   {failing: true, refused: true, said: true, told: true},
		"it fails for a while":       {failing: true, said: true},
		"it fails from then on":      {refused: true, told: true},
		"it has archived everything": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 1, nil)
			d := r.running()
			end := time.Now().Add(-3 * time.Minute).UTC().Truncate(time.Millisecond)
			r.archived(d.ID, time.Now().Add(-time.Hour), end)
			box, h := r.box(d.ID)
			if c.failing {
				h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.Archive.FailingSince = end })
				testcluster.Await(t, "the news", func() bool {
					a, err := r.databases().Archive(t.Context(), caller, d.ID)
					return err == nil && a.FailingSince != nil
				})
			}
			h.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == "database.switch" && c.refused {
					return &hostapi.Error{Code: hostapi.CodeDatabaseBusy, Message: "database is busy"}
				}
				return nil
			})
			h.SlowDatabases(true)
			clone, err := r.clone(d.ID, api.CloneDatabase{Size: &big})
			if err != nil {
				t.Fatal(err)
			}
			hint := func(want bool) string {
				if !want {
					return ""
				}
				return "it is restored from its source's archive, which ends at LSN 0/5000060, " + api.Time{Time: end}.String() + "; what its source wrote after that may be missing"
			}
			if want := hint(c.said); clone.Error != want {
				t.Errorf("the answer says %q, want %q", clone.Error, want)
			}
			want := strings.TrimPrefix(hint(c.told)+"; PostgreSQL does not serve yet: not yet", "; ")
			testcluster.Await(t, "its sandbox", func() bool {
				_, ok := h.DatabaseSpec(r.row(clone.ID).SandboxID)
				return ok
			})
			made, _ := r.box(clone.ID)
			h.ChangeDatabase(made.ID, func(s *hostapi.DatabaseState) { s.Error = "not yet" })
			var now api.Database
			testcluster.Await(t, "its progress", func() bool {
				now, err = r.get(clone.ID)
				return err == nil && strings.HasSuffix(now.Error, "not yet")
			})
			if now.Error != want {
				t.Errorf("while it is made: %q, want %q", now.Error, want)
			}
			h.ChangeDatabase(made.ID, func(s *hostapi.DatabaseState) { s.State, s.Ready, s.Error = pgapi.StateReady, true, "" })
			if now := r.becomes(clone.ID, api.DatabaseRunning); now.Error != "" {
				t.Errorf("%+v", now)
			}
		})
	}
}

// A clone of a failed database may lack what its lost host has not archived.
func TestACloneOfAFailedDatabase(t *testing.T) {
	r := newRig(t, 3, 2, nil)
	d := r.origin()
	_, h := r.box(d.ID)
	h.Silence(true)
	r.becomes(d.ID, api.DatabaseFailed)
	if clone := r.cloned(d.ID); !strings.HasSuffix(clone.Error, "; what its source wrote after that may be missing") {
		t.Errorf("the answer says %q", clone.Error)
	}
}

// A source cannot be deleted while it is being cloned. The clone can be deleted at any
// time.
func TestASourceIsKeptForItsClone(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	r.hosts[0].SlowDatabases(true)
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	testplane.Want(t, r.databases().Delete(t.Context(), caller, d.ID), apierror.EConflict, "database is being cloned")
	if err := r.databases().Delete(t.Context(), caller, clone.ID); err != nil {
		t.Fatal(err)
	}
	r.hosts[0].SlowDatabases(false)
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
}

// A restore that cannot finish leaves a failed clone that says what is wrong.
func TestACloneThatCannotBeRestored(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	r.archiveOnly()
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	r.hosts[0].SlowDatabases(true)
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "its sandbox", func() bool {
		_, ok := r.hosts[0].DatabaseSpec(r.row(clone.ID).SandboxID)
		return ok
	})
	box, h := r.box(clone.ID)
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
		s.Restore = &pgapi.RestoreStatus{Phase: pgapi.RestoreFailed, Error: "wal/000000010000000000000003 is missing"}
	})
	failed := r.becomes(clone.ID, api.DatabaseFailed)
	if failed.Error != "its data could not be restored: wal/000000010000000000000003 is missing" || *failed.FailoverAvailable {
		t.Errorf("%+v", failed)
	}
	// The clone never had a base backup, so nothing of it is kept.
	testcluster.Await(t, "the end of its archive", func() bool { return len(r.row(clone.ID).Archives) == 0 })
	r.settled(1)
}

// A restore that does not go on says why, and so does its end. A failover says so after
// which writes it loses.
func TestARestoreThatDoesNotGoOn(t *testing.T) {
	tier.Slow(t)
	const cause = "the archive's bucket does not answer"
	for name, begin := range map[string]func(r *rig, d api.Database) (id, hint string){
		"clone": func(r *rig, d api.Database) (string, string) {
			clone, err := r.clone(d.ID, api.CloneDatabase{})
			if err != nil {
				t.Fatal(err)
			}
			return clone.ID, ""
		},
		"failover": func(r *rig, d api.Database) (string, string) {
			out, err := r.failOver(d.ID, true)
			if err != nil {
				t.Fatal(err)
			}
			return d.ID, out.Error + "; "
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 1, nil)
			r.archiveOnly()
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			before := r.row(d.ID).SandboxID
			r.hosts[0].SlowDatabases(true)
			id, hint := begin(r, d)
			testcluster.Await(t, "its sandbox", func() bool {
				box := r.row(id).SandboxID
				_, ok := r.hosts[0].DatabaseSpec(box)
				return ok && box != before
			})
			box, h := r.box(id)
			h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
				s.State, s.Restore = pgapi.StateRecovering, &pgapi.RestoreStatus{Phase: pgapi.RestoreRecovering, WALFiles: 3, Error: cause}
			})
			want := "its data is being restored: recovering, 3 WAL files, and does not go on now: " + cause
			testcluster.Await(t, "the cause", func() bool { now, err := r.get(id); return err == nil && now.Error == hint+want })
			r.late(id)
			if failed := r.becomes(id, api.DatabaseFailed); failed.Error != "it took too long: "+want {
				t.Errorf("%+v", failed)
			}
		})
	}
}

// A clone that takes too long fails, and says how far it came.
func TestACloneThatTakesTooLong(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	r.archiveOnly()
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	r.hosts[0].SlowDatabases(true)
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the step", func() bool { return r.flow(clone.ID, "ready") != nil })
	r.late(clone.ID)
	failed := r.becomes(clone.ID, api.DatabaseFailed)
	if !strings.HasPrefix(failed.Error, "it took too long: ") {
		t.Errorf("%+v", failed)
	}
	r.settled(1)
}

func TestCloneCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"switch", "template", "sandbox", "tell", "ready", "login"} {
		for _, pt := range points {
			t.Run(fmt.Sprint(step, " ", pt), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				var armed atomic.Bool
				r := newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
					if armed.Load() && f.Kind == database.KindCreate && f.Step == step && at == pt && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				r.archiveOnly()
				d := r.running()
				r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
				armed.Store(true)
				clone, err := r.clone(d.ID, api.CloneDatabase{})
				if err != nil {
					t.Fatal(err)
				}
				r.becomes(clone.ID, api.DatabaseRunning)
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				r.settled(2)
			})
		}
	}
}

// Concurrent clone requests with the same key create one clone.
func TestACloneIsRepeatedByItsKey(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	r.archiveOnly()
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	var ids sync.Map
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			clone, err := r.databases().Clone(t.Context(), caller, d.ID, api.CloneDatabase{}, testplane.Key("k", "{}"))
			if err != nil {
				t.Error(err)
			}
			ids.Store(clone.ID, true)
		})
	}
	wg.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d clones", n)
	}
	// This also holds once the source is deleted; a request with another key then fails.
	s := r.databases()
	again := func(key string) (api.Database, error) {
		return s.Clone(t.Context(), caller, d.ID, api.CloneDatabase{}, testplane.Key(key, "{}"))
	}
	first, err := again("k")
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(first.ID, api.DatabaseRunning)
	if err := s.Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	if replayed, err := again("k"); err != nil || replayed.ID != first.ID {
		t.Errorf("%s, %v; the first answer was %s", replayed.ID, err, first.ID)
	}
	_, err = again("another")
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Clone(t.Context(), testplane.Stranger, d.ID, api.CloneDatabase{}, testplane.Key("k", "{}"))
	testplane.Want(t, err, apierror.ENotFound, "not found")
}

// An inherited label is valid.
func TestTheLabelOfAClone(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.becomes(r.create(api.CreateDatabase{Label: strings.Repeat("ä", 100)}).ID, api.DatabaseRunning)
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if want := strings.Repeat("ä", 92) + " (clone)"; err != nil || clone.Label != want {
		t.Errorf("label %q, want %q, %v", clone.Label, want, err)
	}
}
