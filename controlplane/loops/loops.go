// Package loops keeps true, on the leader, what must hold for ever: a lost
// host's sandboxes are failed, hosts hold no box without a row and rows point
// at no box that is gone, what has expired goes. Each loop looks at the whole
// state each time and remembers nothing that matters, so it makes no difference
// when a leader dies in the middle.
package loops

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore"
)

// Config is what the loops work with.
type Config struct {
	Store  *raftstore.Store
	Hosts  *hosts.Registry
	Clock  func() time.Time
	Logger *slog.Logger

	// Every is how often the whole state is looked at; what a heartbeat brings
	// is looked at when it comes, though at most ten times as often as that.
	Every time.Duration

	// OrphanGrace is how long a box without a row is left alone: a create
	// writes its row first, so this is only for what was not thought of.
	OrphanGrace time.Duration

	// KeptGrace is the same for a volume or a snapshot, which hold what somebody
	// wanted to keep, and for all that is in the snapshot store; default one hour.
	KeptGrace time.Duration

	// RestPause is how long a persistent sandbox that could not be hibernated at
	// its end is left alone; default ten seconds.
	RestPause time.Duration

	// Moves hibernates persistent sandboxes at their end; New makes one unless
	// it is given.
	Moves *sandbox.Transitions
}

// Loops run on the leader.
type Loops struct {
	cfg          Config
	orphans      map[orphan]time.Time // since when each has been seen
	objectsSince map[object]time.Time // the same
	storedSince  map[string]time.Time // the same, of what is in the snapshot store
	jobs         *jobs

	mu     sync.Mutex
	rows   map[string]sight     // that a heartbeat does not agree with
	notYet map[string]time.Time // sandboxes not to be hibernated before
}

// sight is since when this leader has seen a row as it is. Times in the rows are
// of whichever leader wrote them, by its clock.
type sight struct {
	index uint64
	since time.Time
}

// New makes the loops.
func New(cfg Config) *Loops {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.KeptGrace == 0 {
		cfg.KeptGrace = defaultKeptGrace
	}
	if cfg.RestPause == 0 {
		cfg.RestPause = 10 * time.Second
	}
	if cfg.Moves == nil {
		cfg.Moves = sandbox.NewTransitions(sandbox.TransitionsConfig{Store: cfg.Store, Hosts: cfg.Hosts, Logger: cfg.Logger})
	}
	return &Loops{cfg: cfg}
}

// expiryEvery is how often rows that nobody misses are looked for.
const expiryEvery = time.Minute

// Run runs every loop until ctx ends.
func (l *Loops) Run(ctx context.Context) {
	l.orphans, l.notYet = map[orphan]time.Time{}, map[string]time.Time{}
	l.objectsSince, l.storedSince = map[object]time.Time{}, map[string]time.Time{}
	l.rows = map[string]sight{}
	l.jobs = newJobs()
	defer l.jobs.wg.Wait() // after the passes that begin them
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { every(ctx, l.cfg.Every, l.cfg.Hosts.Changed, l.inventory) })
	wg.Go(func() { every(ctx, l.cfg.Every, nil, l.objects) })
	wg.Go(func() { every(ctx, l.storedEvery(), nil, l.stored) })
	wg.Go(func() { every(ctx, l.cfg.Every, nil, l.lostHosts) })
	wg.Go(func() { every(ctx, l.cfg.Every, nil, l.ttl) })
	wg.Go(func() { every(ctx, l.cfg.Every, nil, l.rest) })
	wg.Go(func() { every(ctx, l.cfg.Every, nil, l.strays) })
	wg.Go(func() { every(ctx, expiryEvery, nil, l.expiredRows) })
	wg.Go(func() { l.countDown(ctx) })
}

// every calls pass at each interval, and sooner when woken, until ctx ends.
func every(ctx context.Context, interval time.Duration, wake func() <-chan struct{}, pass func(context.Context)) {
	for {
		var woken <-chan struct{}
		if wake != nil {
			woken = wake() // before the pass: what changes during it is not missed
		}
		pass(ctx)
		if !pause(ctx, interval/10, nil) || !pause(ctx, interval-interval/10, woken) {
			return
		}
	}
}

// pause waits, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// update runs a transaction of a loop. One that fails is logged and left to the
// next pass.
func (l *Loops) update(ctx context.Context, what string, fn func(tx *raftstore.Tx) error) bool {
	err := l.cfg.Store.Update(ctx, fn)
	if err != nil {
		l.failed(ctx, what, err)
	}
	return err == nil
}

func (l *Loops) failed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		l.cfg.Logger.WarnContext(ctx, "loop could not write", "loop", what, "error", err)
	}
}

// chunk bounds how many rows one transaction of a loop changes.
const chunk = 200

// inParts has change write rows, in transactions of at most chunk of them, and of
// fewer where those are too large for one: with what its tenant has given it a
// sandbox's row may take a fifth of it, and more. done, if there is one, is called
// after each.
func inParts[T any](ctx context.Context, l *Loops, what string, rows []T, change func(tx *raftstore.Tx, part []T) error, done func()) {
	for part := range slices.Chunk(rows, chunk) {
		err := l.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error { return change(tx, part) })
		switch {
		case err == nil && done != nil:
			done()
		case err == nil:
		case errors.Is(err, raftstore.ErrTooLarge) && len(part) > 1:
			inParts(ctx, l, what, part[:len(part)/2], change, done)
			inParts(ctx, l, what, part[len(part)/2:], change, done)
		default:
			l.failed(ctx, what, err)
		}
	}
}
