// Package run keeps an app running: it starts its command, starts it again when it
// ends, and knows on which ports it listens.
package run

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/contain"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/ports"
)

// Config is how an app is run.
type Config struct {
	Runner  *command.Runner
	Log     *applog.Log
	Command command.Command
	Secrets []string // values that its log does not show
	ID      string   // of the deployment

	Pause, MaxPause, Settled time.Duration // before a restart; 0: the package's
}

// An app that ends is started again after a pause, which doubles from minPause to
// maxPause, and is minPause again once the app ran for settled. All of them are by the
// monotonic clock, which stands still while the guest sleeps.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
	settled  = time.Minute
)

// App is an app that runs.
type App struct {
	cfg   Config
	asked context.Context // ends when the app is to end by itself
	ask   context.CancelFunc
	stop  context.CancelFunc // kills it
	done  chan struct{}
	out   *command.Output

	mu     sync.Mutex
	status appapi.RunStatus
}

// Start starts an app, and keeps it running until Stop.
func Start(cfg Config) *App {
	for _, d := range []struct {
		to        *time.Duration
		otherwise time.Duration
	}{{&cfg.Pause, minPause}, {&cfg.MaxPause, maxPause}, {&cfg.Settled, settled}} {
		if *d.to == 0 {
			*d.to = d.otherwise
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	asked, ask := context.WithCancel(ctx)
	a := &App{cfg: cfg, asked: asked, ask: ask, stop: stop, done: make(chan struct{}), out: command.NewOutput(cfg.Log, cfg.Secrets)}
	a.status = appapi.RunStatus{ID: cfg.ID, State: appapi.StateRunning}
	go func() {
		defer close(a.done)
		a.keep(ctx)
	}()
	return a
}

// Stop kills the app's processes, and returns when they are gone.
func (a *App) Stop() {
	a.stop()
	<-a.done
}

// End asks the app's processes to end, by SIGTERM, and kills those that are left when ctx
// ends.
func (a *App) End(ctx context.Context) {
	a.ask()
	select {
	case <-a.done:
	case <-ctx.Done():
	}
	a.Stop()
}

func (a *App) keep(ctx context.Context) {
	pause := a.cfg.Pause
	for a.asked.Err() == nil {
		began := time.Now()
		a.once(ctx)
		if a.asked.Err() != nil {
			break
		}
		if time.Since(began) >= a.cfg.Settled {
			pause = a.cfg.Pause
		}
		a.say("It is started again in %s.", pause)
		select {
		case <-time.After(pause):
		case <-a.asked.Done():
		}
		pause = min(2*pause, a.cfg.MaxPause)
	}
	a.set(func(st *appapi.RunStatus) { st.State = appapi.StateStopped })
	_ = a.out.Close()
}

// once runs the command to its end, and ends what it leaves.
func (a *App) once(ctx context.Context) {
	p, err := a.cfg.Runner.Start(a.cfg.Command)
	a.set(func(st *appapi.RunStatus) {
		st.State, st.StartedAt = appapi.StateRunning, time.Now().UTC()
		st.Starts++
	})
	var ended command.Ended
	if err != nil {
		a.say("It could not be started: %v", err)
		ended.Code = 127
	} else {
		stopAsking := context.AfterFunc(a.asked, p.Terminate)
		ended = p.Wait(ctx, a.out, a.out)
		if stopAsking(); a.asked.Err() != nil {
			p.AwaitRest(ctx) // a shell ends before what it has started
		}
	}
	_ = a.out.Flush()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	if err := a.cfg.Runner.EndAll(ending); err != nil {
		a.say("%v", err)
	}
	if a.asked.Err() != nil {
		return
	}
	a.set(func(st *appapi.RunStatus) {
		st.State, st.ExitCode, st.Signal = appapi.StateExited, &ended.Code, ended.Signal
		if ended.OOM {
			st.Signal = "OOM"
		}
	})
	if err == nil {
		a.say("It %s.", how(ended)) // an app, or the runner of a function
	}
}

// endWait is how long processes have to be gone once they are killed.
const endWait = 30 * time.Second

func how(e command.Ended) string {
	if e.OK() {
		return "ended, with exit code 0: a start command must not return"
	}
	return e.String()
}

func (a *App) say(format string, args ...any) {
	fmt.Fprintf(a.out, "==> "+format+"\n", args...) // the log takes everything
	_ = a.out.Flush()
}

func (a *App) set(change func(*appapi.RunStatus)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.status)
}

// lastLines is how many lines of its output an app's status has.
const lastLines = 20

// Status returns how the app does.
func (a *App) Status() appapi.RunStatus {
	a.mu.Lock()
	st := a.status
	a.mu.Unlock()
	st.LastLines, st.LogBytes = a.cfg.Log.LastLines(lastLines), a.cfg.Log.End()
	if uid, ok := a.cfg.Runner.UID(); ok {
		st.Listening = listening(uid)
	}
	return st
}

// maxListening bounds how many ports are told.
const maxListening = 100

// listening returns the ports on which a user's processes take connections, and those of
// the users that only apps with an image have.
func listening(uid int) []appapi.Listen {
	loopback := map[int]bool{}
	err := ports.TCP(func(s ports.Socket) bool {
		if s.Listens() && (int(s.UID) == uid || contain.Owns(s.UID)) && s.Local.Port() != 0 {
			port := int(s.Local.Port())
			before, known := loopback[port]
			loopback[port] = s.Local.Addr().IsLoopback() && (before || !known)
		}
		return len(loopback) < maxListening
	})
	if err != nil {
		return nil
	}
	var out []appapi.Listen
	for _, port := range slices.Sorted(maps.Keys(loopback)) {
		out = append(out, appapi.Listen{Port: port, Loopback: loopback[port]})
	}
	return out
}
