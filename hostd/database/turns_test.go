package database

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// stuck is a bucket that does not answer for some objects, as a directory whose server
// is away: it does not let go of its callers.
type stuck struct {
	bucket.Bucket
	at      string
	release chan struct{}
}

func (s *stuck) Stat(ctx context.Context, key string) (bucket.Object, error) {
	if strings.Contains(key, s.at) {
		<-s.release
	}
	return s.Bucket.Stat(ctx, key)
}

var errNoGuest = errors.New("the guest is away")

// backers are agents of one host, whose guests do not answer.
func backers(t *testing.T, b bucket.Bucket, names ...string) []*agent {
	t.Helper()
	var out []*agent
	backups := make(turns, backupsAtOnce)
	for _, name := range names {
		a, err := pgarchive.New(b).Open(archive(name))
		must(t, err)
		out = append(out, &agent{
			cfg: &Config{Now: time.Now, Log: slog.New(slog.DiscardHandler)}, backups: backups, id: idA, diskMB: 10,
			db:     &database{archive: a, facts: newFacts(a, time.Now)},
			client: pgapi.NewClient(func(context.Context) (net.Conn, error) { return nil, errNoGuest }),
		})
	}
	return out
}

// Others wait for their turn no longer than those before them make progress.
func TestABaseBackupThatHangsGivesItsTurnAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		hung := &stuck{Bucket: b, at: one[:36], release: make(chan struct{})}
		agents := backers(t, hung, one, one[:37]+"2", two)
		var all sync.WaitGroup
		for _, a := range agents[:backupsAtOnce] {
			all.Go(func() {
				if err := a.copyInTurn(t.Context()); err == nil {
					t.Error("it did not fail")
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if err := agents[2].copyInTurn(t.Context()); !errors.Is(err, errNoGuest) {
			t.Errorf("it did not come to its guest: %v", err)
		}
		if waited := time.Since(began); waited != stallLimit {
			t.Errorf("it waited for %s, want %s", waited, stallLimit)
		}
		close(hung.release)
		all.Wait()
		if n := len(agents[0].backups); n != 0 {
			t.Errorf("%d turns are left", n)
		}
	})
}

func TestTurnsGoByTheOrderOfComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := make(turns, 1)
		leave, err := all.enter(t.Context())
		must(t, err)
		var order []int
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				leave, err := all.enter(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				leave()
				leave()
			})
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := all.enter(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("whoever leaves: %v", err)
		}
		leave()
		group.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) || len(all) != 0 {
			t.Errorf("order = %v, %d are left", order, len(all))
		}
	})
}
