// Package loops runs the leader's periodic work: hosts keep nothing without a row,
// expired rows are removed, and so on. The parts of the control plane register the
// loops. Each pass examines the whole state and remembers nothing that matters, so a
// leader may die during it.
package loops

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/timescale"
)

// Config configures the loops.
type Config struct {
	Store  *raftstore.Store
	Clock  func() time.Time
	Logger *slog.Logger

	// Every is the time between two passes, unless a loop has its own; default one
	// second.
	Every time.Duration

	// OrphanGrace is how long something without a row is kept. A create writes its
	// row first, so this is a precaution.
	OrphanGrace time.Duration

	// KeptGrace is the same for volumes, snapshots, and all objects in the snapshot
	// store; default one hour.
	KeptGrace time.Duration
}

// Loop examines the state periodically while this replica leads.
type Loop struct {
	Name string
	// Pass examines the state once. It must not wait for a host: see Term.Begin.
	Pass func(ctx context.Context)
	// Every is the time between two passes; default Config.Every.
	Every time.Duration
	// Wake returns a channel that starts the next pass early, but not before a tenth
	// of Every has passed; nil: never.
	Wake func() <-chan struct{}
	// Run is for a loop with its own schedule, instead of the fields above except
	// Name. It returns when ctx ends.
	Run func(ctx context.Context)
}

// Source returns the loops of one term. Their state belongs in them, so that it ends
// with the term.
type Source func(t *Term) []Loop

// Loops runs the registered loops.
type Loops struct {
	cfg     Config
	sources []Source
}

// New returns Loops without any loop.
func New(cfg Config) *Loops {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.KeptGrace == 0 {
		cfg.KeptGrace = time.Hour
	}
	return &Loops{cfg: cfg}
}

// Register adds loops. Call it before Run.
func (l *Loops) Register(sources ...Source) { l.sources = append(l.sources, sources...) }

const (
	// ExpiryEvery is the interval of loops that are not urgent.
	ExpiryEvery = time.Minute
	// AtOnce limits the calls of one kind that the loops make to a host at once, so
	// that a host that returns is not overloaded.
	AtOnce = 8
)

// CallTimeout limits a loop's call to a host, so that a host that hangs does not
// delay others for long.
var CallTimeout = timescale.Limit(5 * time.Second)

// Run runs every loop until ctx ends.
func (l *Loops) Run(ctx context.Context) {
	t := NewTerm(l.cfg)
	defer t.jobs.wg.Wait() // after the passes, which begin jobs
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

// repeat calls Pass at each interval, or sooner if woken, until ctx ends.
func (l *Loop) repeat(ctx context.Context) {
	for {
		var woken <-chan struct{}
		if l.Wake != nil {
			woken = l.Wake() // before the pass, so that no change during it is missed
		}
		l.Pass(ctx)
		if !Pause(ctx, l.Every/10, nil) || !Pause(ctx, l.Every-l.Every/10, woken) {
			return
		}
	}
}

// Pause waits for d or until woken is closed, and reports whether ctx is still
// alive.
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
