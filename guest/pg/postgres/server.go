package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// Pauses before a server that ended by itself is started again.
const (
	retryMin = 200 * time.Millisecond
	retryMax = 30 * time.Second
	steady   = time.Minute // after so long the pauses begin anew
)

// How long a server may take to stop before it is told in a harsher way.
var (
	fastStop      = timescale.Limit(60 * time.Second)
	immediateStop = timescale.Limit(10 * time.Second)
)

// answerLimit bounds the question whether the server is in recovery; see statusLimit of
// package agent.
var answerLimit = timescale.Limit(20 * time.Second)

// ErrNotServing means that PostgreSQL does not take connections now.
var ErrNotServing = errors.New("PostgreSQL does not take connections")

// Server is a PostgreSQL server that is kept running.
type Server struct {
	cfg Config
	// stopping is called before a server is told to stop, and after: whoever it
	// waits for lets go of it meanwhile.
	stopping func(bool)
	log      *logTail

	mu       sync.Mutex
	settings pgapi.Settings
	mode     Mode
	want     bool // that it runs
	once     bool // that it is not started again when it ends
	proc     *process
	state    string
	err      error  // why state is StateFailed
	loaded   string // what the running server took at its start
	restarts int
	started  time.Time
	changed  chan struct{} // closed at the next change of state
}

// New returns a server that Start will start, once Run runs.
func New(cfg Config, s pgapi.Settings, stopping func(bool)) *Server {
	if stopping == nil {
		stopping = func(bool) {}
	}
	return &Server{cfg: cfg, settings: s, stopping: stopping, log: &logTail{}, state: pgapi.StateStopped, changed: make(chan struct{})}
}

// Config is the server's.
func (s *Server) Config() Config { return s.cfg }

// View is the state of a server at a moment.
type View struct {
	State     string
	Err       error
	LogTail   []string
	StartedAt time.Time
	Restarts  int
	Mode      Mode
	Settings  pgapi.Settings
}

// View returns the state, and a channel that is closed when there is another.
func (s *Server) View() (View, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return View{s.state, s.err, s.log.lines(), s.started, s.restarts, s.mode, s.settings}, s.changed
}

// Start has the server run in a mode. With once it is not started again when it ends.
func (s *Server) Start(m Mode, once bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.once, s.mode, s.err = true, once, m, nil
	if s.proc == nil {
		s.state = pgapi.StateStarting
	}
	s.notify()
}

// Stop ends the server and waits for its end. It is told more and more harshly; the
// end of ctx spares the first patience.
func (s *Server) Stop(ctx context.Context, immediate bool) error {
	s.mu.Lock()
	s.want = false
	if s.proc == nil {
		s.state = pgapi.StateStopped
	}
	s.notify()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	s.stopping(true)
	defer s.stopping(false)
	if err := p.stop(ctx, immediate); err != nil {
		return err
	}
	// Until Run has seen the end, a start would be taken for one of the old server.
	for {
		s.mu.Lock()
		ended, changed := s.proc != p, s.changed
		s.mu.Unlock()
		if ended {
			return nil
		}
		<-changed
	}
}

// Restart stops the server and starts it in a mode.
func (s *Server) Restart(ctx context.Context, m Mode) error {
	if err := s.Stop(ctx, false); err != nil {
		return err
	}
	s.Start(m, false)
	return s.AwaitServing(ctx)
}

// AwaitServing waits until the server takes connections.
func (s *Server) AwaitServing(ctx context.Context) error {
	for {
		v, changed := s.View()
		switch v.State {
		case pgapi.StateReady, pgapi.StateRecovering:
			return nil
		case pgapi.StateFailed, pgapi.StateStopped:
			if v.Err == nil {
				return ErrNotServing
			}
			return fmt.Errorf("%w: %w", ErrNotServing, v.Err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w yet: %w", ErrNotServing, context.Cause(ctx))
		}
	}
}

// Reload takes on settings and a mode without a start, or says that they need one.
func (s *Server) Reload(settings pgapi.Settings, m Mode) (needsRestart bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		s.settings, s.mode = settings, m
		return false, nil // the next start reads them
	}
	startPart, err := s.cfg.writeConf(settings, m)
	if err != nil {
		return false, err
	}
	s.settings, s.mode = settings, m
	return startPart != s.loaded, s.proc.signal(syscall.SIGHUP)
}

// Run keeps the server as it should be until ctx ends, and then stops it.
func (s *Server) Run(ctx context.Context) error {
	pause := retryMin
	for {
		if !s.awaitWanted(ctx) {
			return nil
		}
		began := time.Now()
		err := s.runOnce(ctx)
		if time.Since(began) > steady {
			pause = retryMin
		}
		if !s.ended(err) || ctx.Err() != nil {
			continue
		}
		s.cfg.Log.Error("PostgreSQL ended", "error", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, retryMax)
	}
}

// awaitWanted returns false when ctx ends.
func (s *Server) awaitWanted(ctx context.Context) bool {
	for {
		s.mu.Lock()
		want, changed := s.want, s.changed
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return false
		case want:
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// ended notes the end of a server and says whether a pause is due.
func (s *Server) ended(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notify()
	s.proc = nil
	if !s.want {
		s.state = pgapi.StateStopped
		return false
	}
	s.state, s.err = pgapi.StateFailed, err
	if s.once {
		s.want = false
		return false
	}
	s.restarts++
	return true
}

// runOnce starts a server and waits for its end.
func (s *Server) runOnce(ctx context.Context) error {
	if err := s.cfg.endOrphan(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if !s.want { // Stop came between
		s.mu.Unlock()
		return nil
	}
	startPart, err := s.cfg.writeConf(s.settings, s.mode)
	if err == nil {
		err = s.cfg.clearOverrides(s.mode)
	}
	var p *process
	if err == nil {
		p, err = s.cfg.start(s.log)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.proc, s.loaded, s.state, s.err, s.started = p, startPart, pgapi.StateStarting, nil, time.Now()
	s.notify()
	s.mu.Unlock()

	watch, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(watch, p)
	}()
	select {
	case <-p.done:
	case <-ctx.Done():
		s.stopping(true)
		_ = p.stop(context.Background(), false)
		s.stopping(false)
	}
	cancel()
	<-watched
	if p.err != nil {
		return fmt.Errorf("PostgreSQL ended: %w", p.err)
	}
	return errors.New("PostgreSQL ended")
}

// watch follows a server from its start until it is no longer in recovery.
func (s *Server) watch(ctx context.Context, p *process) {
	for {
		state := pgapi.StateStarting
		if recovering, err := s.inRecovery(ctx); err == nil {
			state = pgapi.StateReady
			if recovering {
				state = pgapi.StateRecovering
			}
		}
		s.mu.Lock()
		if s.proc == p && s.state != state && state != pgapi.StateStarting {
			s.state = state
			s.notify()
		}
		s.mu.Unlock()
		if state == pgapi.StateReady {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.done:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) inRecovery(ctx context.Context) (recovering bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := s.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return recovering, conn.QueryRow(ctx, "SELECT pg_catalog.pg_is_in_recovery()").Scan(&recovering)
}

// notify wakes who waits for a change of state. The caller holds mu.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
