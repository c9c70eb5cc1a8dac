package database_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/tier"
)

// A delete during a wake, a rotation or an attempt to sleep ends with nothing of the
// database left, and who waits for the other learns that it failed.
func TestADeleteDuring(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		op string // of the host, at which the delete comes
		do func(r *rig, id string) error
	}{
		"a wake": {"wake", func(r *rig, id string) error { return r.databases().WakeForClient(r.t.Context(), id) }},
		"a rotation": {"database.credentials", func(r *rig, id string) error {
			_, err := r.databases().ResetCredentials(r.t.Context(), caller, id)
			return err
		}},
		"a sleep": {"database.sleep", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, 1, nil)
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			if c.op == "wake" {
				r.asleep(d.ID)
			}
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r.hosts[0].SetFault(func(ctx context.Context, call fakehost.Call) error {
				if call.Op == c.op && !call.Done {
					once.Do(func() { close(reached) })
					select {
					case <-goOn:
					case <-ctx.Done():
					}
				}
				return nil
			})
			ended := make(chan error, 1)
			if c.do != nil {
				go func() { ended <- c.do(r, d.ID) }()
			} else {
				r.idle(d.ID, time.Now().Add(-time.Hour))
			}
			<-reached
			gone := make(chan error, 1)
			go func() { gone <- r.databases().Delete(t.Context(), caller, d.ID) }()
			testcluster.Await(t, "the mark", func() bool { _, err := r.get(d.ID); return apierror.CodeOf(err) == apierror.ENotFound })
			close(goOn)
			if err := <-gone; err != nil {
				t.Fatal(err)
			}
			if c.op == "database.credentials" {
				if err := <-ended; err == nil {
					t.Error("a rotation of what is deleted succeeds")
				}
			} else if c.do != nil {
				<-ended // the host may have woken it before it was told
			}
			r.settled(0)
			testcluster.Await(t, "the end of its archives", func() bool { return len(r.archives.Names()) == 0 })
			// And another one is made as if there had been none.
			again := r.becomes(r.create(api.CreateDatabase{}).ID, api.DatabaseRunning)
			if again.ID == d.ID {
				t.Error("it has the same id")
			}
		})
	}
}
