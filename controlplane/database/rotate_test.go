package database_test

import (
	"context"
	"errors"
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

func TestRotation(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	out, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
	if err != nil || out.Password == d.Password || out.BrokerToken == d.BrokerToken || out.ConnectionURL == "" || out.Username != "app" || h.Credentials(box.ID).Password != out.Password {
		t.Errorf("%+v, %v", out, err)
	}
	if now, _ := r.get(d.ID); now.Password != out.Password || now.BrokerToken != out.BrokerToken {
		t.Errorf("%+v", now)
	}
	r.asleep(d.ID)
	_, err = r.databases().ResetCredentials(t.Context(), caller, d.ID)
	testplane.Want(t, err, apierror.EConflict, "database is hibernated")
}

// A database whose disk is full takes no password, neither a new one nor the old one again:
// a rotation of it would be under way until there is room.
func TestARotationOfADatabaseThatTakesNoWrites(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	full := pgapi.VolumeStatus{Writes: pgapi.WritesStopped, Reason: "the data fills it"}
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.Ready, s.Volume = false, full })
	testcluster.Await(t, "the leader hears of it", func() bool { now, _ := r.get(d.ID); return now.Error != "" })
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "database.credentials" {
			return &hostapi.Error{Code: hostapi.CodeNotReady, Message: "PostgreSQL is read-only"}
		}
		return nil
	})
	_, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
	if e := testplane.Want(t, err, apierror.EConflict, "database takes no writes"); e.Detail != "PostgreSQL serves reads alone: the data fills it" {
		t.Errorf("%+v", e)
	}
	if r.flow(d.ID, "set") != nil || r.flow(d.ID, "revert") != nil {
		t.Error("a rotation is under way")
	}
}

// A rotation that finds the database put to sleep meanwhile wakes it.
func TestARotationOfADatabaseThatFallsAsleep(t *testing.T) {
	var once sync.Once
	var r *rig
	r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
		if f.Kind == database.KindRotate && f.Step == "set" && at == flow.BeforeAct {
			once.Do(func() {
				box, ok := raftstore.Get(r.Leader().Store.View(), record.Sandboxes, r.row(strings.TrimPrefix(f.Subject, "databases/")).SandboxID)
				if !ok {
					t.Error("it has no sandbox")
					return
				}
				r.hosts[0].Become(box.ID, hostapi.StatusHibernated)
			})
		}
		return nil
	})
	d := r.running()
	box, h := r.box(d.ID)
	out, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
	if err != nil || out.Password == d.Password || h.Credentials(box.ID).Password != out.Password || h.Transitions("wake") != 1 {
		t.Errorf("%+v, %v, %d wakes", out, err, h.Transitions("wake"))
	}
}

// A rotation with a failed login leaves the old credentials in force.
func TestARotationThatIsNotProven(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	var n atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "database.credentials" && n.Add(1) == 1 {
			return &hostapi.Error{Code: hostapi.CodeNotVerified, Message: "log-in failed"}
		}
		return nil
	})
	_, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
	if e := testplane.Want(t, err, apierror.EBadGateway, ""); e.Detail != "the old credentials are in force" {
		t.Errorf("%+v", e)
	}
	if now, _ := r.get(d.ID); now.Password != d.Password || now.BrokerToken != d.BrokerToken || h.Credentials(box.ID).Password != d.Password {
		t.Errorf("%+v", now)
	}
}

// Of two concurrent rotations one is refused.
func TestRotationsDoNotOverlap(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	d := r.running()
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "database.credentials" {
			once.Do(func() { close(asked) })
			<-goOn
		}
		return nil
	})
	s := r.databases()
	first := make(chan error, 1)
	go func() { _, err := s.ResetCredentials(t.Context(), caller, d.ID); first <- err }()
	<-asked
	_, err := s.ResetCredentials(t.Context(), caller, d.ID)
	testplane.Want(t, err, apierror.EConflict, "a rotation of its credentials is under way")
	// And the database does not fall asleep during a rotation.
	r.idle(d.ID, time.Now().Add(-time.Hour))
	r.Passes(20)
	if now, _ := r.get(d.ID); now.Status != api.DatabaseRunning {
		t.Errorf("it is %s", now.Status)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A rotation that a failover preempts has no effect, and says so.
func TestAFailoverInPlaceOfARotation(t *testing.T) {
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	_, h := r.box(d.ID)
	asked := make(chan struct{})
	var once sync.Once
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "database.credentials" {
			once.Do(func() { close(asked) })
			<-ctx.Done()
		}
		return nil
	})
	s := r.databases()
	rotated := make(chan error, 1)
	go func() { _, err := s.ResetCredentials(t.Context(), caller, d.ID); rotated <- err }()
	<-asked
	if _, err := r.failOver(d.ID, true); err != nil {
		t.Fatal(err)
	}
	h.SetFault(nil)
	if e := testplane.Want(t, <-rotated, apierror.EBadGateway, ""); e.Detail != "the old credentials are in force" {
		t.Errorf("%+v", e)
	}
	if now := r.becomes(d.ID, api.DatabaseRunning); now.Password != d.Password || now.BrokerToken != d.BrokerToken {
		t.Errorf("%+v", now)
	}
}

// A rotation ends with one pair of credentials in force, whatever happens in the middle:
// its host does not answer, its leader is lost, or the engine stops.
func TestARotationEndsWithOnePair(t *testing.T) {
	tier.Slow(t)
	for _, pt := range points {
		t.Run("crash "+string(pt), func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			r := newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
				if f.Kind == database.KindRotate && at == pt && n.Add(1) <= 2 {
					return errors.New("crash")
				}
				return nil
			})
			d := r.running()
			out, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
			box, h := r.box(d.ID)
			if now, _ := r.get(d.ID); err != nil || out.Password == d.Password || now.Password != out.Password || h.Credentials(box.ID).Password != out.Password {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
	t.Run("the host is cut off after it did", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 3, 1, nil)
		d := r.running()
		var n atomic.Int64
		r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "database.credentials" && c.Done && n.Add(1) <= 2 {
				return fakehost.ErrDrop
			}
			return nil
		})
		out, err := r.databases().ResetCredentials(t.Context(), caller, d.ID)
		box, h := r.box(d.ID)
		if err != nil || h.Credentials(box.ID).Password != out.Password {
			t.Errorf("%+v, %v", out, err)
		}
	})
	t.Run("it takes too long, and its virtual machine ends", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 3, 1, nil)
		d := r.running()
		box, h := r.box(d.ID)
		var cut atomic.Bool
		cut.Store(true)
		h.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "database.credentials" && c.Done && cut.Load() {
				return fakehost.ErrDrop
			}
			return nil
		})
		ended := make(chan error, 1)
		go func() { _, err := r.databases().ResetCredentials(t.Context(), caller, d.ID); ended <- err }()
		testcluster.Await(t, "the new pair in the guest", func() bool { return h.Credentials(box.ID).Password != d.Password })
		testcluster.Await(t, "the revert", func() bool { r.late(d.ID); return r.flow(d.ID, "revert") != nil })
		h.Become(box.ID, hostapi.StatusFailed)
		cut.Store(false)
		if e := testplane.Want(t, <-ended, apierror.EBadGateway, ""); e.Detail != "the old credentials are in force" {
			t.Errorf("%+v", e)
		}
		if now := r.becomes(d.ID, api.DatabaseRunning); now.Password != d.Password || h.Credentials(box.ID).Password != d.Password {
			t.Errorf("%+v", now)
		}
	})
	t.Run("its leader is cut off", func(t *testing.T) {
		t.Parallel()
		var once sync.Once
		var r *rig
		r = newRig(t, 3, 1, func(f *record.Flow, at flow.Point) error {
			if f.Kind == database.KindRotate && at == flow.BeforeCommit {
				once.Do(func() { r.Cut(r.Leader()) })
			}
			return nil
		})
		d := r.running()
		s := r.databases()
		if _, err := s.ResetCredentials(t.Context(), caller, d.ID); err == nil {
			t.Error("a leader that is cut off has an answer")
		}
		testcluster.Await(t, "its end", func() bool { return r.flow(d.ID, "set") == nil && r.flow(d.ID, "revert") == nil })
		box, h := r.box(d.ID)
		if now := r.becomes(d.ID, api.DatabaseRunning); now.Password == d.Password || h.Credentials(box.ID).Password != now.Password {
			t.Errorf("%+v", now)
		}
	})
}
