package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/ledger"
)

// withCause says why a call was cut off, where ctx knows.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// stopwatch notes how long the stages of one create take. done measures from
// the last done or skip; lap starts a measurement of its own, for stages that
// run beside others.
type stopwatch struct {
	now   func() time.Time
	began time.Time

	mu     sync.Mutex
	last   time.Time
	stages []ledger.Stage
}

func newStopwatch(now func() time.Time) *stopwatch {
	t := now()
	return &stopwatch{now: now, began: t, last: t}
}

func (s *stopwatch) done(name string, engine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.now()
	s.add(name, t.Sub(s.last), engine)
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
		s.add(name, s.now().Sub(from), engine)
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
