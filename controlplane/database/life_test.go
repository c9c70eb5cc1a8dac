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

// idle makes a database's host report that it has been idle since a moment.
func (r *rig) idle(id string, since time.Time) {
	r.t.Helper()
	box, h := r.box(id)
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.IdleSince = since })
}

// asleep puts a database to sleep.
func (r *rig) asleep(id string) api.Database {
	r.t.Helper()
	r.idle(id, time.Now().Add(-time.Hour))
	d := r.becomes(id, api.DatabaseHibernated)
	r.idle(id, time.Time{})
	return d
}

func TestAnIdleDatabaseSleepsAndWakes(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.idle(d.ID, time.Now().Add(time.Hour))
	r.Passes(10)
	if got, _ := r.get(d.ID); got.Status != api.DatabaseRunning {
		t.Errorf("a database that is not idle is %s", got.Status)
	}
	slept := r.asleep(d.ID)
	if slept.Password != "" || slept.ConnectionURL != "" || slept.BrokerToken != "" || slept.Database != "" || slept.Error != "" {
		t.Errorf("%+v", slept)
	}
	_, err := r.databases().Logs(t.Context(), caller, d.ID, 1)
	testplane.Want(t, err, apierror.EConflict, "database is hibernated")
	w, err := r.databases().Wake(t.Context(), caller, d.ID)
	if err != nil || w.Status != api.DatabaseWaking || w.Detail == "" {
		t.Errorf("%+v, %v", w, err)
	}
	if again := r.becomes(d.ID, api.DatabaseRunning); again.Password != d.Password || again.BrokerToken != d.BrokerToken {
		t.Errorf("%+v", again)
	}
	if w, err := r.databases().Wake(t.Context(), caller, d.ID); err != nil || w.Status != api.DatabaseWaking || w.Detail != "it runs already" {
		t.Errorf("%+v, %v", w, err)
	}
	text, err := r.databases().Logs(t.Context(), caller, d.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	text.Close()
}

func TestADatabaseThatIsAlwaysOnDoesNotSleep(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.becomes(r.create(api.CreateDatabase{AlwaysOn: true}).ID, api.DatabaseRunning)
	r.idle(d.ID, time.Now().Add(-time.Hour))
	r.Passes(20)
	if got, _ := r.get(d.ID); got.Status != api.DatabaseRunning {
		t.Errorf("it is %s", got.Status)
	}
	if _, err := r.databases().Patch(t.Context(), caller, d.ID, api.PatchDatabase{}); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseHibernated)
}

// A database whose archive cannot be written would have its ports closed at attempt after
// attempt to put it to sleep.
func TestADatabaseThatCannotBeArchivedDoesNotSleep(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	failing := func(since time.Time) {
		box, h := r.box(d.ID)
		h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
			s.IdleSince, s.Archive.FailingSince = time.Now().Add(-time.Hour), since
		})
	}
	failing(time.Now())
	r.Passes(20)
	if got, _ := r.get(d.ID); got.Status != api.DatabaseRunning {
		t.Errorf("it is %s", got.Status)
	}
	failing(time.Time{})
	r.becomes(d.ID, api.DatabaseHibernated)
}

// An attempt to put a database to sleep closes its ports for as long as it lasts, so the
// pause starts after the attempt.
func TestTriesToSleepHaveAPauseBetweenThem(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 1, 1, nil)
	d := r.running()
	var mu sync.Mutex
	var began, ended []time.Time
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "database.sleep" || c.Done {
			return nil
		}
		mu.Lock()
		began = append(began, time.Now())
		mu.Unlock()
		<-time.After(3 * testplane.DatabaseIdle)
		mu.Lock()
		ended = append(ended, time.Now())
		mu.Unlock()
		return &hostapi.Error{Code: hostapi.CodeDatabaseBusy, Message: "database is not idle"}
	})
	r.idle(d.ID, time.Now().Add(-time.Hour))
	testcluster.Await(t, "another try", func() bool { mu.Lock(); defer mu.Unlock(); return len(began) > 1 })
	r.idle(d.ID, time.Time{})
	mu.Lock()
	defer mu.Unlock()
	if pause := began[1].Sub(ended[0]); pause < testplane.DatabaseIdle/2 {
		t.Errorf("tried again after %s", pause)
	}
}

// A host that has no room for a database's memory fails at each attempt, and each adds a
// segment to the archive of a database that writes nothing.
func TestTriesToSleepThatFailBecomeRare(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 1, 1, nil)
	d := r.running()
	var mu sync.Mutex
	var tries []time.Time
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "database.sleep" || c.Done {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		tries = append(tries, time.Now())
		return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "insufficient host disk"}
	})
	r.idle(d.ID, time.Now().Add(-time.Hour))
	testcluster.Await(t, "some tries", func() bool { mu.Lock(); defer mu.Unlock(); return len(tries) > 3 })
	r.idle(d.ID, time.Time{})
	mu.Lock()
	defer mu.Unlock()
	if pause := tries[3].Sub(tries[2]); pause < 3*testplane.DatabaseIdle {
		t.Errorf("the fourth try is %s after the third", pause)
	}
}

// Fifty clients that connect at once wake a database once, and the wake goes on when one
// of them leaves.
func TestClientsShareAWake(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.asleep(d.ID)
	var asked atomic.Int64
	goOn := make(chan struct{})
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "wake" && !c.Done {
			asked.Add(1)
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
		return nil
	})
	s := r.databases()
	gone, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			ctx := t.Context()
			if i == 0 {
				ctx = gone
			}
			if err := s.WakeForClient(ctx, d.ID); (err == nil) != (i > 0) {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	testcluster.Await(t, "the wake", func() bool { return asked.Load() > 0 })
	leave()
	r.becomes(d.ID, api.DatabaseWaking)
	close(goOn)
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the host was asked %d times", n)
	}
	if got, _ := r.get(d.ID); got.Status != api.DatabaseRunning {
		t.Errorf("it is %s", got.Status)
	}
	if err := s.WakeForClient(t.Context(), d.ID); err != nil { // waking a running database
		t.Error(err)
	}
	testplane.Want(t, s.WakeForClient(t.Context(), "nobody"), apierror.ENotFound, "not found")
}

func TestAWakeWithoutMemory(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.asleep(d.ID)
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "wake" {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "insufficient host memory for sandbox"}
		}
		return nil
	})
	_, err := r.databases().Wake(t.Context(), caller, d.ID)
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
	testplane.Want(t, r.databases().WakeForClient(t.Context(), d.ID), apierror.EBadGateway, "no available compute node")
	if got, _ := r.get(d.ID); got.Status != api.DatabaseHibernated || got.Error != "insufficient host memory for sandbox" {
		t.Errorf("%+v", got)
	}
	r.hosts[0].SetFault(nil)
	if err := r.databases().WakeForClient(t.Context(), d.ID); err != nil {
		t.Error(err)
	}
	if got := r.becomes(d.ID, api.DatabaseRunning); got.Error != "" {
		t.Errorf("%+v", got)
	}
}

// A database whose virtual machine ended is booted from its disk, with its data.
func TestADatabaseThatDiedIsStartedAgain(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	h.Become(box.ID, hostapi.StatusFailed)
	testcluster.Await(t, "the restart", func() bool { return h.Transitions("restart") == 1 })
	if again := r.becomes(d.ID, api.DatabaseRunning); again.Password != d.Password {
		t.Errorf("%+v", again)
	}
	r.Passes(10)
	if now, _ := r.box(d.ID); now.ID != box.ID || now.Status != record.SandboxRunning || len(h.Boxes()) != 1 {
		t.Errorf("%+v", now)
	}
}

// A database that cannot be started again fails and says why, and the attempts go on.
func TestADatabaseThatCannotBeStarted(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	box, h := r.box(d.ID)
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "restart" {
			return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest did not come up"}
		}
		return nil
	})
	h.Become(box.ID, hostapi.StatusFailed)
	failed := r.becomes(d.ID, api.DatabaseFailed)
	if !strings.Contains(failed.Error, "it could not be started again: its virtual machine does not answer") || !*failed.FailoverAvailable ||
		!strings.Contains(failed.FailoverReason, "0/5000060") || failed.FailoverETASeconds != 180 || failed.Password != "" {
		t.Errorf("%+v, %v", failed, *failed.FailoverAvailable)
	}
	h.SetFault(nil)
	r.becomes(d.ID, api.DatabaseRunning)
}

// The restarts of a database have pauses between them, however many clients ask.
func TestClientsOfADatabaseThatCannotBeStarted(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	var mu sync.Mutex
	var tries []time.Time
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "restart" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		tries = append(tries, time.Now())
		return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest did not come up"}
	})
	h.Become(box.ID, hostapi.StatusFailed)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 5 {
		clients.Go(func() {
			for ctx.Err() == nil {
				_ = r.databases().WakeForClient(ctx, d.ID)
			}
		})
	}
	r.becomes(d.ID, api.DatabaseFailed)
	cancel()
	clients.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i, pause := range []time.Duration{testplane.RestartPause, 4 * testplane.RestartPause} {
		if took := tries[i+1].Sub(tries[i]); took < pause {
			t.Errorf("restart %d came %s after the one before, want %s at least", i+2, took, pause)
		}
	}
}

// If a database's saved memory can never be restored, it boots from its disk, which has
// all data.
func TestADatabaseThatHasLostItsMemory(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.asleep(d.ID)
	box, h := r.box(d.ID)
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "wake" {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "internal error"}
		}
		return nil
	})
	if err := r.databases().WakeForClient(t.Context(), d.ID); err == nil {
		t.Error("it woke")
	}
	if n := h.Transitions("restart"); n != 0 {
		t.Errorf("%d restarts of what may be restored yet", n)
	}
	h.SetFault(nil)
	h.LoseMemory(box.ID)
	if err := r.databases().WakeForClient(t.Context(), d.ID); err != nil {
		t.Error(err)
	}
	if again := r.becomes(d.ID, api.DatabaseRunning); again.Password != d.Password || again.Error != "" || h.Transitions("restart") != 1 {
		t.Errorf("%+v, %d restarts", again, h.Transitions("restart"))
	}
}

// After its host has restarted, a database is booted for as long as that takes. Meanwhile
// it is not shown as running, and its clients are held. After a while it counts as
// failed.
func TestADatabaseThatItsHostBoots(t *testing.T) {
	tier.Slow(t)
	for name, sleeps := range map[string]bool{"running": false, "asleep": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			d := r.running()
			if sleeps {
				r.asleep(d.ID)
			}
			box, h := r.box(d.ID)
			h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
				b := boxes[box.ID]
				b.Status, b.Seq, b.Error = hostapi.StatusStarting, b.Seq+1, "its guest does not come up"
				boxes[box.ID] = b
			})
			if got := r.becomes(d.ID, api.DatabaseWaking); !strings.HasSuffix(got.Error, "its guest does not come up") || got.Password != "" {
				t.Errorf("%+v", got)
			}
			held := make(chan error, 1)
			go func() { held <- r.databases().WakeForClient(t.Context(), d.ID) }()
			failed := r.becomes(d.ID, api.DatabaseFailed)
			if !strings.HasSuffix(failed.Error, "its guest does not come up") {
				t.Errorf("%+v", failed)
			}
			r.Passes(10)
			if got, _ := r.get(d.ID); got.Status != api.DatabaseFailed {
				t.Errorf("it is %s", got.Status)
			}
			select {
			case err := <-held:
				t.Errorf("its client was not held: %v", err)
			default:
			}
			h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
				b := boxes[box.ID]
				b.Status, b.Seq, b.Error = hostapi.StatusRunning, b.Seq+1, ""
				boxes[box.ID] = b
			})
			if err := <-held; err != nil {
				t.Error(err)
			}
			if again := r.becomes(d.ID, api.DatabaseRunning); again.Password != d.Password || again.Error != "" {
				t.Errorf("%+v", again)
			}
		})
	}
}

// While its host is lost, a database has failed. When the host returns with it, it is
// available again.
func TestADatabaseWhoseHostIsLost(t *testing.T) {
	tier.Slow(t)
	for name, sleeps := range map[string]bool{"running": false, "asleep": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			d := r.running()
			if sleeps {
				r.asleep(d.ID)
			}
			box, h := r.box(d.ID)
			h.Silence(true)
			failed := r.becomes(d.ID, api.DatabaseFailed)
			if failed.Error != "its host is unreachable" || failed.FailoverAvailable == nil || *failed.FailoverAvailable || failed.FailoverReason == "" {
				t.Errorf("%+v", failed)
			}
			testcluster.Await(t, "the row", func() bool { return r.row(d.ID).Status == record.DatabaseFailed })
			testplane.Want(t, r.databases().WakeForClient(t.Context(), d.ID), apierror.EConflict, "database is failed")
			if !sleeps {
				h.Become(box.ID, hostapi.StatusFailed) // its host ended it when the lease ran out
			}
			h.Silence(false)
			want := api.DatabaseRunning
			if sleeps {
				want = api.DatabaseHibernated
			}
			if back := r.becomes(d.ID, want); back.Error != "" {
				t.Errorf("%+v", back)
			}
			r.Passes(10)
			if now, _ := r.box(d.ID); now.ID != box.ID || len(h.Boxes()) != 1 {
				t.Errorf("%+v", now)
			}
		})
	}
}

// A database that runs may not serve: its status stays, and says so.
func TestADatabaseThatRunsAndDoesNotServe(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.State, s.Ready, s.Error = pgapi.StateFailed, false, "out of memory" })
	said := func(want string) func() bool {
		return func() bool { now, err := r.get(d.ID); return err == nil && now.Error == want }
	}
	testcluster.Await(t, "the reason", said("PostgreSQL does not serve: out of memory"))
	if now, _ := r.get(d.ID); now.Status != api.DatabaseRunning || now.Password != d.Password {
		t.Errorf("%+v", now)
	}
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.State, s.Ready, s.Error = pgapi.StateReady, true, "" })
	testcluster.Await(t, "that it serves", said(""))
}

// A host that returns without the box has lost the database.
func TestADatabaseThatIsGoneFromItsHost(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		delete(boxes, box.ID)
	})
	if failed := r.becomes(d.ID, api.DatabaseFailed); !strings.Contains(failed.Error, "gone") {
		t.Errorf("%+v", failed)
	}
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Error(err)
	}
	r.settled(0)
}

// What is older than all that is kept is not told to be restorable, although a base backup
// of then is still there.
func TestTheFirstMomentIsWithinTheRetention(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	last := time.Now().UTC()
	r.archived(d.ID, last.Add(-8*24*time.Hour), last)
	a, err := r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || a.FirstRestorable == nil || a.FirstRestorable.Before(last.Add(-7*24*time.Hour)) {
		t.Errorf("%+v, %v", a, err)
	}
}

// After a failover, until the next base backup, the moments before it can be restored.
func TestTheLastMomentAfterAFailover(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	last := time.Now().Add(-10 * time.Minute).UTC().Truncate(time.Millisecond)
	r.had(d.ID, []archive{{"0", last.Add(-time.Hour), last}})
	r.archives.Fill(d.ID+"/1", time.Time{}, time.Time{}, "0/7000000") // WAL alone
	a, err := r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || a.LastRestorable == nil || !a.LastRestorable.Equal(last) || a.LastArchivedLSN == nil || *a.LastArchivedLSN != "0/7000000" {
		t.Errorf("%+v, %v", a, err)
	}
}

// A host's report of an archive reaches the row, and clients.
func TestArchiveFacts(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	a, err := r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || a.FirstRestorable != nil || a.LastRestorable != nil || a.LastArchivedLSN != nil || len(a.BaseBackups) != 0 || a.BaseBackups == nil {
		t.Errorf("%+v, %v", a, err)
	}
	first, last := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond), time.Now().UTC().Truncate(time.Millisecond)
	r.archived(d.ID, first, last)
	a, err = r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || !a.FirstRestorable.Equal(first) || !a.LastRestorable.Equal(last) || *a.LastArchivedLSN != "0/5000060" || a.LagSeconds < 12 || len(a.BaseBackups) != 1 || a.SizeBytes != 2<<20 || a.Error != nil {
		t.Errorf("%+v, %v", a, err)
	}
	box, h := r.box(d.ID)
	later := last.Add(time.Minute)
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
		s.Archive.LastRestorable, s.Archive.LastLSN = later, "0/6000000"
		s.Archive.FailingSince, s.Archive.Error = last, "bucket is away"
	})
	testcluster.Await(t, "the news in the row", func() bool { return r.row(d.ID).Archive().LastRestorable.Equal(later) })
	a, err = r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || *a.Error != "bucket is away" || !a.FailingSince.Equal(last) || *a.LastArchivedLSN != "0/6000000" {
		t.Errorf("%+v, %v", a, err)
	}
	// Base backups that fail are told of an archive that goes on.
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
		s.Archive.FailingSince, s.Archive.Error = time.Time{}, ""
		s.Archive.BackupsFailingSince, s.Archive.BackupError = last, hostapi.ArchiveCauseUncopied
	})
	testcluster.Await(t, "base backups that fail", func() bool {
		a, err = r.databases().Archive(t.Context(), caller, d.ID)
		return err == nil && a.FailingSince == nil
	})
	want := fmt.Sprintf("no base backup of it could be made since %s: %s", api.Time{Time: last}, hostapi.ArchiveCauseUncopied)
	if a.Error == nil || *a.Error != want {
		t.Errorf("%+v, want the error %q", a, want)
	}
	// The row changes rarely, however often the host is heard.
	before := r.row(d.ID).ModifyIndex
	r.Passes(20)
	if after := r.row(d.ID).ModifyIndex; after != before {
		t.Error("the row was written without news")
	}
	testcluster.Await(t, "the first prune", func() bool { return !r.archives.Pruned(d.ID + "/1").IsZero() })
	if before := r.archives.Pruned(d.ID + "/1"); time.Since(before) < 7*24*time.Hour || time.Since(before) > 7*24*time.Hour+time.Minute {
		t.Errorf("pruned before %s", before)
	}
}

// A host may be lost before it reports the first base backup. The control plane then
// finds it in the bucket.
func TestTheArchiveOfADatabaseWhoseHostIsLost(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	_, h := r.box(d.ID)
	h.Silence(true)
	if failed := r.becomes(d.ID, api.DatabaseFailed); *failed.FailoverAvailable {
		t.Errorf("%+v", failed)
	}
	first := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	r.archives.Fill(d.ID+"/1", first, first.Add(time.Minute), "0/5000060")
	testcluster.Await(t, "a failover that is offered", func() bool {
		failed, err := r.get(d.ID)
		return err == nil && *failed.FailoverAvailable && strings.Contains(failed.FailoverReason, "0/5000060")
	})
}

// A managed sandbox without its database is deleted. A database that has lost its flow
// does not stay in an intermediate status.
func TestStraysOfDatabases(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, _ := r.box(d.ID)
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Databases, d.ID); return nil })
	testcluster.Await(t, "the end of its sandbox", func() bool { _, ok := r.Sandbox(box.ID); return !ok })

	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Databases, &record.Database{Meta: record.Meta{ID: "left"}, WorkspaceID: "ws", Size: "1g", Status: record.DatabaseProvisioning})
		return nil
	})
	if left := r.becomes("left", api.DatabaseFailed); left.Error != "what made it was interrupted" {
		t.Errorf("%+v", left)
	}
	r.edit("left", func(d *record.Database) { d.Status = record.DatabaseDeleting })
	testcluster.Await(t, "its end", func() bool {
		_, ok := raftstore.Get(r.Leader().Store.View(), record.Databases, "left")
		return !ok
	})
}

// The leader is cut off while a database is being created, and the next leader completes
// it.
func TestACreateSurvivesItsLeader(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"template", "sandbox", "tell", "ready", "login"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var r *rig
			r = newRig(t, 3, 1, func(f *record.Flow, pt flow.Point) error {
				if f.Kind == "database.create" && f.Step == step && pt == flow.BeforeCommit {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			})
			d := r.running()
			if box, h := r.box(d.ID); h.Credentials(box.ID).Password != d.Password {
				t.Error("the password is another one")
			}
			r.settled(1)
		})
	}
}

// A sandbox that a flow has given up may write to its archive until it is gone, so the
// archives are removed after that.
func TestArchivesGoAfterEverySandbox(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	goOn := make(chan struct{})
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		switch c.Op {
		case "database.credentials":
			return &hostapi.Error{Code: hostapi.CodeInvalid, Message: "no such role"}
		case "delete":
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	d := r.becomes(r.create(api.CreateDatabase{}).ID, api.DatabaseFailed)
	gone := make(chan error, 1)
	go func() { gone <- r.databases().Delete(t.Context(), caller, d.ID) }()
	testcluster.Await(t, "the delete", func() bool { return r.flow(d.ID, "sandboxes") != nil })
	r.Passes(20)
	if names := r.archives.Names(); len(names) != 1 {
		t.Errorf("archives %q, and its sandbox is there", names)
	}
	close(goOn)
	if err := <-gone; err != nil && !errors.Is(err, core.ErrRemoving) {
		t.Fatal(err)
	}
	r.settled(0)
}
