package database

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/timescale"
)

// Limits of calls to a guest.
var (
	statusLimit      = timescale.Limit(10 * time.Second)
	settingsLimit    = timescale.Limit(2 * time.Minute) // PostgreSQL may be started again for them
	credentialsLimit = timescale.Limit(time.Minute)
	pollSlack        = timescale.Limit(10 * time.Second) // of a long poll, beyond its own time
)

// errRestoring refuses what needs the database's own data.
var errRestoring = fmt.Errorf("%w: its data is being restored", hosterr.ErrDatabaseUnready)

// agent is what is done for one database while its VM runs.
type agent struct {
	cfg     *Config
	backups turns // of the host
	wal     turns // of the host
	ahead   turns // of the host
	id      string
	diskMB  int
	run     <-chan struct{} // of the VMM; the agent's name
	db      *database
	client  *pgapi.Client
	began   time.Time
	asked   chan struct{} // capacity 1: a base backup is wanted
	tuned   chan struct{} // closed once PostgreSQL is tuned: it may be started again for it

	cancel context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	spec      *hostapi.DatabaseSpec
	settings  pgapi.Settings
	changed   chan struct{} // closed when settings changed
	restoring restoring
	seen      look
	sleeping  bool      // the guest is about to be hibernated
	copying   bool      // a base backup is under way, or waits for its turn
	copied    time.Time // when the last one ended
	told      summary
}

// begin starts an agent once the one before it has ended.
func (d *Databases) begin(b box.DatabaseBox, db *database, last *agent) *agent {
	ctx, cancel := context.WithCancel(d.work.Life())
	a := &agent{
		cfg: &d.cfg, backups: d.backups, wal: d.wal, ahead: d.ahead, id: b.ID, diskMB: b.DiskMB, run: b.Run, db: db, began: d.cfg.Now(), asked: make(chan struct{}, 1),
		cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		tuned: make(chan struct{}),
	}
	a.client = pgapi.NewClient(func(ctx context.Context) (net.Conn, error) { return d.cfg.Dial(ctx, b.ID, pgapi.Port) })
	a.change(b)
	if !d.work.Go(func() {
		defer close(a.done)
		if last != nil {
			<-last.done
		}
		db.facts.begin(d.cfg.Quota.of(b.DiskMB), b.Since, b.Settled, time.Duration(b.Spec.ArchiveIntervalSeconds)*time.Second)
		a.live(ctx)
	}) {
		close(a.done)
	}
	return a
}

// end has the agent end soon. A nil one has.
func (a *agent) end() {
	if a != nil {
		a.cancel()
	}
}

// change takes over what was changed of the database.
func (a *agent) change(b box.DatabaseBox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spec = b.Spec
	s := pgapi.Settings{MemoryMB: b.MemoryMB, CPUs: b.CPU, ArchiveIntervalSeconds: b.Spec.ArchiveIntervalSeconds}
	if s != a.settings {
		a.settings = s
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// live does everything until ctx ends.
func (a *agent) live(ctx context.Context) {
	var group errgroup.Group
	settled := make(chan struct{})
	group.Go(func() error { a.watch(ctx); return nil })
	group.Go(func() error { a.settle(ctx, settled); return nil })
	group.Go(func() error {
		// A restore starts PostgreSQL as it is tuned by then.
		select {
		case <-settled:
		case <-ctx.Done():
			return nil
		}
		if !a.restore(ctx) {
			return nil
		}
		group.Go(func() error { a.db.facts.keep(ctx, a.cfg); return nil })
		group.Go(func() error { a.archiveWAL(ctx); return nil })
		group.Go(func() error { a.backUp(ctx); return nil })
		return nil
	})
	_ = group.Wait() // none fails
}

// settle has PostgreSQL tuned, and again when its settings change. tried is closed
// once the guest has answered.
func (a *agent) settle(ctx context.Context, tried chan<- struct{}) {
	retry := newBackoff(time.Second, 30*time.Second)
	for {
		a.mu.Lock()
		want, changed := a.settings, a.changed
		a.mu.Unlock()
		_, err := within(ctx, settingsLimit, func(ctx context.Context) (pgapi.SettingsApplied, error) { return a.client.Settings(ctx, want) })
		if _, refused := errors.AsType[*pgapi.Refusal](err); (err == nil || refused) && tried != nil {
			close(tried)
			tried = nil
		}
		if err == nil {
			retry.reset()
			if !a.isTuned() {
				close(a.tuned)
				_, _ = a.look(ctx) // it is ready by now
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		if !retry.wait(ctx) {
			return
		}
	}
}

func (a *agent) isTuned() bool {
	select {
	case <-a.tuned:
		return true
	default:
		return false
	}
}

// within makes a call that takes no longer than limit.
func within[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

// backoff is how long to wait between tries: twice as long each time.
type backoff struct{ first, last, next time.Duration }

func newBackoff(first, last time.Duration) *backoff {
	return &backoff{first: first, last: last, next: first}
}

func (b *backoff) reset() { b.next = b.first }

// wait reports whether ctx goes on after the pause.
func (b *backoff) wait(ctx context.Context) bool {
	d := b.next
	b.next = min(2*d, b.last)
	return pause(ctx, d)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fenced notes that another incarnation has taken over, which ends all writing.
func (a *agent) fenced(err error) bool {
	if !errors.Is(err, pgarchive.ErrFenced) {
		return false
	}
	if a.db.facts.fence() {
		a.cfg.Log.Error("another incarnation of a database has taken over, its archive is not written to any more", "sandbox_id", a.id, "error", err)
		a.cfg.Boxes.Notify()
	}
	return true
}
