// Package loops runs, on the leader, what keeps true for ever: that hosts hold
// nothing without a row, that what has expired goes, and so on. The loops are
// those that the things of the control plane register. Each looks at the whole
// state each time and remembers nothing that matters, so it makes no difference
// when a leader dies in the middle.
package loops

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/timescale"
)

// Config is what the loops work with.
type Config struct {
	Store  *raftstore.Store
	Clock  func() time.Time
	Logger *slog.Logger

	// Every is how often the whole state is looked at, unless a loop says
	// otherwise; default one second.
	Every time.Duration

	// OrphanGrace is how long something without a row is left where it is: a create
	// writes its row first, so this is only for what was not thought of.
	OrphanGrace time.Duration

	// KeptGrace is the same for what somebody wanted to keep: volumes, snapshots,
	// and all that is in the snapshot store; default one hour.
	KeptGrace time.Duration
}

// Loop looks at the state again and again, while this replica leads.
type Loop struct {
	Name string
	// Pass looks once. It must not wait for a host: see Term.Begin.
	Pass func(ctx context.Context)
	// Every is the time between two passes; default Config.Every.
	Every time.Duration
	// Wake returns a channel that ends the wait for the next pass early, though it
	// lasts a tenth of Every in any case; nil: nothing does.
	Wake func() <-chan struct{}
	// Run is for a loop that keeps its own time, in place of all the above but Name.
	// It returns when ctx ends.
	Run func(ctx context.Context)
}

// Source makes the loops of one term. What they remember belongs into the loops,
// so that it ends with the term.
type Source func(t *Term) []Loop

// Loops are all that are registered.
type Loops struct {
	cfg     Config
	sources []Source
}

// New makes a driver of no loops.
func New(cfg Config) *Loops {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.KeptGrace == 0 {
		cfg.KeptGrace = time.Hour
	}
	return &Loops{cfg: cfg}
}

// Register adds loops, before Run.
func (l *Loops) Register(sources ...Source) { l.sources = append(l.sources, sources...) }

const (
	// ExpiryEvery is how often rows that nobody misses are looked for.
	ExpiryEvery = time.Minute
	// AtOnce bounds how many calls of a kind the loops have under way on a host, so
	// that one that comes back is not given everything to do at once.
	AtOnce = 8
)

// CallTimeout bounds a loop's call to a host, so that one that hangs does not
// hold up the others for long.
var CallTimeout = timescale.Limit(5 * time.Second)

// Run runs every loop until ctx ends.
func (l *Loops) Run(ctx context.Context) {
	t := NewTerm(l.cfg)
	defer t.jobs.wg.Wait() // after the passes that begin them
	var wg sync.WaitGroup
	defer wg.Wait()
	all := []Loop{{Name: "sightings", Every: ExpiryEvery, Pass: t.forget}}
	for _, source := range l.sources {
		all = append(all, source(t)...)
	}
	for _, loop := range all {
		if loop.Every == 0 {
			loop.Every = l.cfg.Every
		}
		if loop.Run == nil {
			loop.Run = loop.repeat
		}
		wg.Go(func() { loop.Run(ctx) })
	}
}

// repeat calls Pass at each interval, and sooner when woken, until ctx ends.
func (l *Loop) repeat(ctx context.Context) {
	for {
		var woken <-chan struct{}
		if l.Wake != nil {
			woken = l.Wake() // before the pass: what changes during it is not missed
		}
		l.Pass(ctx)
		if !Pause(ctx, l.Every/10, nil) || !Pause(ctx, l.Every-l.Every/10, woken) {
			return
		}
	}
}

// Pause waits, for woken at most so long, and reports whether ctx is still alive.
func Pause(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
