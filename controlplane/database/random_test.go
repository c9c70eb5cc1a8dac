package database_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Random events hit a database, one after the other or at once. Afterwards it can be
// brought to run, has one box and one open archive, and accepts the credentials that are
// shown.
func TestRandomLives(t *testing.T) {
	tier.Slow(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	var cut *testcluster.Replica
	events := []func(){
		func() { // its virtual machine ends
			if box, ok := r.Sandbox(r.row(d.ID).SandboxID); ok {
				for _, h := range r.hosts {
					if h.ID == box.HostID && h.Boxes()[box.ID].Status == hostapi.StatusRunning {
						h.Become(box.ID, hostapi.StatusFailed)
					}
				}
			}
		},
		func() { // it becomes idle
			for _, h := range r.hosts {
				for id := range h.Boxes() {
					if _, is := h.DatabaseSpec(id); is {
						h.ChangeDatabase(id, func(s *hostapi.DatabaseState) { s.IdleSince = time.Now().Add(-time.Hour) })
					}
				}
			}
		},
		func() { _ = r.databases().WakeForClient(t.Context(), d.ID) },
		func() { _, _ = r.databases().Wake(t.Context(), caller, d.ID) },
		func() { go func() { _, _ = r.LeaderNode().Databases.ResetCredentials(t.Context(), caller, d.ID) }() },
		func() {
			_, _ = r.databases().Failover(t.Context(), caller, d.ID, api.FailoverDatabase{Force: random.IntN(2) == 0})
		},
		func() { r.hosts[random.IntN(2)].Silence(true) },
		func() {
			for _, h := range r.hosts {
				h.Silence(false)
			}
		},
		func() { // the leader is cut off, or comes back
			if cut == nil {
				cut = r.Leader()
				r.Cut(cut)
				return
			}
			r.Heal(cut)
			cut = nil
		},
	}
	pause := time.NewTimer(0)
	for range 60 {
		events[random.IntN(len(events))]()
		pause.Reset(time.Duration(random.IntN(300)) * time.Millisecond)
		<-pause.C
	}
	if cut != nil {
		r.Heal(cut)
	}
	for _, h := range r.hosts {
		h.Silence(false)
		for id := range h.Boxes() {
			h.ChangeDatabase(id, func(s *hostapi.DatabaseState) { s.IdleSince = time.Time{} })
		}
	}
	var now api.Database
	testcluster.Await(t, "a database that runs", func() bool {
		var err error
		if now, err = r.get(d.ID); err != nil {
			return false
		}
		switch now.Status {
		case api.DatabaseHibernated:
			_, _ = r.databases().Wake(t.Context(), caller, d.ID)
		case api.DatabaseFailed:
			_, _ = r.failOver(d.ID, false)
		}
		return now.Status == api.DatabaseRunning && len(raftstore.All(r.Leader().Store.View(), record.Flows)) == 0
	})
	r.settled(1)
	now, _ = r.get(d.ID)
	box, h := r.box(d.ID)
	if got := h.Credentials(box.ID).Password; got != now.Password {
		t.Errorf("seed %d: PostgreSQL has %q, clients are told %q", seed, got, now.Password)
	}
	row, open := r.row(d.ID), 0
	for _, a := range row.Archives {
		if a.ClosedAt.IsZero() {
			open++
		}
	}
	if spec, _ := h.DatabaseSpec(box.ID); open != 1 || !row.Archive().ClosedAt.IsZero() || spec.Archive.Name != row.Archive().Name {
		t.Errorf("seed %d: %d archives are open: %+v", seed, open, row.Archives)
	}
}
