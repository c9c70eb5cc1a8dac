package database_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A failed prune, or one whose room is needed, does not wait for the next interval.
func TestWhenArchivesArePruned(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	var broken atomic.Bool
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "archive.prune" && broken.Load() {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "the bucket is away"}
		}
		return nil
	})
	// The plane's own loop keeps a week of archives; this loop keeps a day.
	n := r.LeaderNode()
	s := database.New(n.Core, database.Config{Sandboxes: n.Sandboxes, Templates: n.Templates, Idle: time.Hour, Retention: 24 * time.Hour, PruneEvery: time.Hour})
	pass := map[string]func(context.Context){}
	for _, l := range s.Loops(loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: time.Now, Logger: testcluster.Log()})) {
		pass[l.Name] = l.Pass
	}
	pruned := func() time.Time {
		pass["database archives"](t.Context())
		return r.archives.Pruned(d.ID + "/1")
	}
	const day = 25 * time.Hour
	broken.Store(true)
	if at := pruned(); time.Since(at) < day {
		t.Fatalf("pruned before %s", at)
	}
	broken.Store(false)
	at := pruned()
	if time.Since(at) > day {
		t.Errorf("after one that failed it is pruned before %s", at)
	}
	if again := pruned(); !again.Equal(at) {
		t.Errorf("pruned again, before %s", again)
	}
	box, h := r.box(d.ID)
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.Archive.Error = hostapi.ArchiveCauseFull })
	testcluster.Await(t, "a prune of what is full", func() bool {
		pass["databases"](t.Context())
		return pruned().After(at)
	})
}

// Of a database that sleeps no host tells, and what its archive takes is what a prune has left.
func TestTheArchiveOfADatabaseThatSleepsIsMeasured(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now()) // its host tells of 3 MiB; there are 2
	n := r.LeaderNode()
	s := database.New(n.Core, database.Config{Sandboxes: n.Sandboxes, Templates: n.Templates, Idle: time.Hour, PruneEvery: time.Nanosecond, FactsEvery: time.Nanosecond})
	pass := map[string]func(context.Context){}
	for _, l := range s.Loops(loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: time.Now, Logger: testcluster.Log()})) {
		pass[l.Name] = l.Pass
	}
	pass["databases"](t.Context()) // it has heard the host
	pass["database archives"](t.Context())
	if got := r.row(d.ID).Archive().SizeBytes; got != 3<<20 {
		t.Errorf("while it runs: %d bytes", got)
	}
	box, h := r.box(d.ID)
	h.Become(box.ID, hostapi.StatusHibernated)
	r.becomes(d.ID, api.DatabaseHibernated)
	pass["database archives"](t.Context())
	pass["databases"](t.Context()) // what was heard before it slept is older
	if got := r.row(d.ID).Archive().SizeBytes; got != 2<<20 {
		t.Errorf("while it sleeps: %d bytes", got)
	}
}

// The row has the size of each archive: of the current one as its host told, of an earlier one
// as it was found when it was pruned.
func TestTheSizesOfArchivesAreKept(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	if got := r.row(d.ID).Archive().SizeBytes; got != 3<<20 {
		t.Errorf("the current one has %d bytes", got)
	}
	earlier := record.DatabaseArchive{Name: d.ID + "/0", CreatedAt: time.Now(), ClosedAt: time.Now(), FirstRestorable: time.Now(), LastRestorable: time.Now(), SizeBytes: 9 << 20}
	key := make([]byte, 32)
	var err error
	if earlier.KeySealed, err = (testplane.Sealer{}).Seal(key, record.ArchiveContext(earlier.Name)); err != nil {
		t.Fatal(err)
	}
	r.edit(d.ID, func(d *record.Database) { d.Archives = append([]record.DatabaseArchive{earlier}, d.Archives...) })
	r.archives.Add(earlier.Name, key)
	r.archives.Fill(earlier.Name, earlier.FirstRestorable, earlier.LastRestorable, "0/4000060") // of 2 MiB
	n := r.LeaderNode()
	s := database.New(n.Core, database.Config{Sandboxes: n.Sandboxes, Templates: n.Templates, Idle: time.Hour})
	for _, l := range s.Loops(loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: time.Now, Logger: testcluster.Log()})) {
		if l.Name == "database archives" {
			l.Pass(t.Context())
		}
	}
	testcluster.Await(t, "its size", func() bool { return r.row(d.ID).Archives[0].SizeBytes == 2<<20 })
}

// What one host tells of its databases keeps nobody from learning of the others'.
func TestAHostThatTellsOfImpossibleTimesHarmsNoOther(t *testing.T) {
	r := newRig(t, 1, 2, nil)
	a, b := r.running(), r.running()
	box, h := r.box(a.ID)
	at := time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)) // in UTC it has a year of five digits
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
		s.Archive = hostapi.ArchiveState{LastLSN: "0/5000060", FirstRestorable: at, LastRestorable: at, BaseBackups: 1}
	})
	r.archived(b.ID, time.Now().Add(-time.Hour), time.Now())
}
