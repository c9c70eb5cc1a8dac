package sandbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// lives makes a sandbox persistent, with a time to live that is over at a time.
func (r *moveRig) lives(id string, until time.Time) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, id)
		c := s.Clone()
		c.Persistent, c.TTLSeconds, c.ExpiresAt = true, new(int64(3600)), until
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
}

func TestAMoveDoesNotBeginTheTimeToLiveAgain(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id, until := r.running("t"), time.Now().UTC().Truncate(time.Millisecond).Add(10*time.Minute)
	r.lives(id, until)
	h2 := r.target("h2", 16<<10)
	r.evacuate()
	if row := r.on(id, h2, record.SandboxRunning); !row.ExpiresAt.Equal(until) {
		t.Errorf("it expires at %s, want %s", row.ExpiresAt, until)
	}
}

func TestASandboxWhoseTimeEndsWhileItMovesStaysAsleep(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	var until time.Time
	r := newMoveRig(t, 1, func(f *record.Flow, at flow.Point) error {
		if f.Step == "arrive" && at == flow.BeforeCommit && time.Now().Before(until) {
			return context.DeadlineExceeded // it is tried again
		}
		return nil
	})
	id := r.running("t")
	until = time.Now().Add(2 * time.Second)
	r.lives(id, until)
	h2 := r.target("h2", 16<<10)
	r.evacuate()
	r.on(id, h2, record.SandboxHibernated)
	if h2.Transitions("wake") != 0 {
		t.Error("it was woken")
	}
}
