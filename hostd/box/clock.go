package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/telemetry"
)

// withCause says why a call was cut off, where ctx knows: also a call that had done its
// work by then.
func withCause(ctx context.Context, err error) error {
	if err == nil {
		return context.Cause(ctx)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// stopwatch notes how long the stages of one create take, and adds them to its trace.
// done measures from
// the last done or skip; lap starts a measurement of its own, for stages that
// run beside others.
type stopwatch struct {
	now   func() time.Time
	began time.Time

	mu     sync.Mutex
	last   time.Time
	stages []ledger.Stage
	trace  context.Context // for the span that it has; nil: none
}

func newStopwatch(now func() time.Time) *stopwatch {
	t := now()
	return &stopwatch{now: now, began: t, last: t}
}

// in says below which span the stages are from now on.
func (s *stopwatch) in(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = ctx
}

// traced adds a stage to the trace; the lock is held.
func (s *stopwatch) traced(name string, from, to time.Time, engine bool) {
	if s.trace != nil {
		telemetry.Did(s.trace, from, to, engine, "stage ", name)
	}
}

func (s *stopwatch) done(name string, engine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.now()
	s.add(name, t.Sub(s.last), engine)
	s.traced(name, s.last, t, engine)
	s.last = t
}

// add notes a stage, or more of one that came before.
func (s *stopwatch) add(name string, took time.Duration, engine bool) {
	for i := range s.stages {
		if s.stages[i].Name == name {
			s.stages[i].Duration += took
			return
		}
	}
	s.stages = append(s.stages, ledger.Stage{Name: name, Duration: took, Engine: engine})
}

func (s *stopwatch) skip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = s.now()
}

func (s *stopwatch) lap() func(name string, engine bool) {
	from := s.now()
	return func(name string, engine bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		to := s.now()
		s.add(name, to.Sub(from), engine)
		s.traced(name, from, to, engine)
	}
}

// total is the time since the beginning, and what of it was ours: the engine's
// stages never overlap each other.
func (s *stopwatch) total() (took, own time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took = s.now().Sub(s.began)
	own = took
	for _, st := range s.stages {
		if st.Engine {
			own -= st.Duration
		}
	}
	return took, own
}
