// Package agent is guestapp: it answers the host, and builds and runs an app for it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/build"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/image"
	"github.com/berth-cloud/berth/guest/app/run"
	"github.com/berth-cloud/berth/guest/app/source"
	"github.com/berth-cloud/berth/guest/appapi"
)

// Config is what the agent needs of the guest that it runs in.
type Config struct {
	Version string
	Listen  netip.AddrPort
	Peer    netip.Addr // the only address that is answered
	Program string     // this program, which serves static sites and installs Go as the tenant's user, and contains images
	Buildah string     // the program that builds images; "": buildah, in PATH

	Dir     string // the agent's own
	WorkDir string // the app's source
	Cache   string // of the tenant's commands
	Home    string // theirs
	Temp    string // emptied after a build; "": nothing is

	Runner  *command.Runner
	GitUser string // whom git runs as
	Limits  source.Limits
	Log     *slog.Logger
}

// Agent is the server.
type Agent struct {
	cfg      Config
	listener net.Listener
	ctx      context.Context // of builds; ends with Run
	stop     context.CancelFunc
	builds   sync.WaitGroup

	uploading sync.Mutex // one source at a time

	mu       sync.Mutex
	state    state
	buildLog *applog.Log
	runLog   *applog.Log
	cancel   context.CancelCauseFunc // of the build that runs; nil: none does
	app      *run.App                // nil: none was started

	starting sync.Mutex // who starts or stops the app
}

// New returns an agent that listens.
func New(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg}
	a.ctx, a.stop = context.WithCancel(context.Background())
	// Git's user reaches what is cloned below it, but cannot list it.
	for dir, mode := range map[string]os.FileMode{cfg.Dir: 0o711, a.path("stage"): 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return nil, err
		}
	}
	var err error
	if a.state, err = readState(a.path(stateFile)); err != nil {
		return nil, err
	}
	if a.buildLog, err = applog.Open(a.path("build.log"), 0); err != nil {
		return nil, err
	}
	if a.runLog, err = applog.Open(a.path("run.log"), 0); err != nil {
		return nil, err
	}
	if a.listener, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(cfg.Listen)); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) path(name string) string { return filepath.Join(a.cfg.Dir, name) }

// Addr is where the agent listens.
func (a *Agent) Addr() net.Addr { return a.listener.Addr() }

// readWait is for a request's header.
const readWait = 30 * time.Second

// Run serves until ctx ends; then everything of the app is ended.
func (a *Agent) Run(ctx context.Context) error {
	a.resume()
	server := &http.Server{
		Handler: a.routes(), ReadHeaderTimeout: readWait, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return a.ctx },
		ErrorLog:    slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	err := server.Serve(fromPeer{a.listener, a.cfg.Peer})
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	a.stop()
	a.builds.Wait()
	a.starting.Lock()
	defer a.starting.Unlock()
	a.mu.Lock()
	app := a.app
	a.mu.Unlock()
	if app != nil {
		app.Stop()
	}
	return errors.Join(err, a.buildLog.Close(), a.runLog.Close())
}

// resume goes on with what an earlier agent, which died, had begun.
func (a *Agent) resume() {
	a.mu.Lock()
	if st := &a.state.Status; st.State == appapi.StateRunning {
		st.State, st.Error = appapi.StateFailed, "the build was interrupted: its guest was started again"
		if err := a.save(); err != nil {
			a.cfg.Log.Error("state not written", "error", err)
		}
	}
	a.buildLog.Finish()
	again := a.state.Running
	a.mu.Unlock()
	if !again {
		return
	}
	if err := a.cfg.Runner.EndAll(a.ctx); err != nil {
		a.cfg.Log.Error("processes of the app were not ended", "error", err)
	}
	a.starting.Lock()
	defer a.starting.Unlock()
	if err := a.begin(); err != nil {
		a.cfg.Log.Error("app not started", "error", err)
	}
}

// fromPeer accepts the connections of one address.
type fromPeer struct {
	net.Listener
	peer netip.Addr
}

// Accept implements net.Listener.
func (l fromPeer) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.AddrPort().Addr().Unmap() == l.peer {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// status is all that is told.
func (a *Agent) status() appapi.Status {
	a.mu.Lock()
	st := appapi.Status{Version: a.cfg.Version, Build: a.state.Status}
	app, log := a.app, a.buildLog
	a.mu.Unlock()
	st.Build.LogBytes = log.End()
	if app != nil {
		st.Run = app.Status()
	}
	return st
}

var (
	errInvalid  = errors.New("invalid request")
	errBusy     = errors.New("another build runs")
	errNotBuilt = errors.New("there is no build that succeeded")
)

// startBuild begins a build, unless it was begun before.
func (a *Agent) startBuild(in appapi.Build) error {
	if err := checkBuild(in); err != nil {
		return err
	}
	a.mu.Lock()
	same, busy := a.state.Build.ID == in.ID, a.cancel != nil
	a.mu.Unlock()
	switch {
	case same:
		return nil
	case busy:
		return errBusy
	}
	if in.Upload {
		if _, err := os.Stat(a.path(uploadFile)); err != nil {
			return fmt.Errorf("%w: no source was put", errInvalid)
		}
	}
	a.stopApp((*run.App).Stop)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		return errBusy
	}
	if err := a.buildLog.Remove(); err != nil {
		return err
	}
	log, err := applog.Open(a.path("build.log"), 0)
	if err != nil {
		return err
	}
	a.buildLog = log
	former := a.state
	a.state = state{Build: in, Status: appapi.BuildStatus{ID: in.ID, State: appapi.StateRunning, Phase: appapi.PhaseSource}}
	if err := a.save(); err != nil {
		a.state = former // or the next call for this build would find it begun
		log.Finish()
		return err
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	a.cancel = cancel
	a.builds.Go(func() {
		defer cancel(nil)
		a.build(ctx, in, log)
	})
	return nil
}

func (a *Agent) build(ctx context.Context, in appapi.Build, log *applog.Log) {
	made, err := build.Run(ctx, build.Config{
		Runner: a.cfg.Runner, Limits: a.cfg.Limits,
		Cloner:  &source.Cloner{Runner: a.cfg.Runner, User: a.cfg.GitUser, Home: a.path("stage/home"), Limits: a.cfg.Limits},
		WorkDir: a.cfg.WorkDir, Staging: a.path("stage/source"), Upload: a.path(uploadFile), Cache: a.cfg.Cache, Home: a.cfg.Home, Temp: a.cfg.Temp,
		Image:     &image.Builder{Runner: a.cfg.Runner, Program: a.cfg.Program, User: a.cfg.Runner.User, Dir: a.path("image"), Buildah: a.cfg.Buildah},
		Program:   a.cfg.Program,
		LastCache: a.path(cacheFile),
	}, in, log, func(change func(*appapi.BuildStatus)) {
		a.mu.Lock()
		defer a.mu.Unlock()
		change(&a.state.Status)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = nil
	a.state.Made = made
	a.state.Status.CacheBytes = made.CacheBytes
	if a.state.Build.Git != nil {
		a.state.Build.Git.Token = "" // it has served
	}
	if st := &a.state.Status; err != nil {
		st.State, st.Error = appapi.StateFailed, clip(err.Error())
	} else {
		st.State, st.Phase = appapi.StateSucceeded, ""
	}
	if err := a.save(); err != nil {
		a.cfg.Log.Error("state not written", "error", err)
	}
	log.Finish()
}

// maxError bounds what is told of a failure, in bytes: its first line and its end.
const maxError = 8 << 10

func clip(s string) string {
	if len(s) <= maxError {
		return s
	}
	return s[:maxError/4] + " … " + s[len(s)-maxError/2:]
}

// stopBuild ends the build that runs.
func (a *Agent) stopBuild() {
	a.mu.Lock()
	cancel := a.cancel
	a.mu.Unlock()
	if cancel != nil {
		cancel(build.ErrStopped)
	}
}

// startApp starts the app, unless it was started before.
func (a *Agent) startApp(in appapi.Run) error {
	switch {
	case in.ID == "" || in.Port < 1 || in.Port > 65535:
		return fmt.Errorf("%w: id or port is missing", errInvalid)
	case in.Port == appapi.Port: // requests to the app would be to this program, and come from its peer
		return fmt.Errorf("%w: port %d is guestapp's own", errInvalid, in.Port)
	}
	if err := checkEnv(in.Env); err != nil {
		return err
	}
	a.starting.Lock()
	defer a.starting.Unlock()
	a.mu.Lock()
	switch {
	case a.cancel != nil:
		a.mu.Unlock()
		return errBusy
	case a.state.Status.State != appapi.StateSucceeded:
		a.mu.Unlock()
		return errNotBuilt
	case a.state.Running && a.state.Run.ID == in.ID:
		a.mu.Unlock()
		return nil
	}
	former, before := a.app, a.state
	a.state.Run, a.state.Running = in, true
	err := a.save()
	if err != nil {
		a.state = before // or the next call would find it started
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if former != nil {
		former.Stop()
	}
	return a.begin()
}

// begin starts the app as the state has it. The caller has starting.
func (a *Agent) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := a.command()
	if err != nil {
		a.state.Running = false // so that it can be asked for again
		return errors.Join(err, a.save())
	}
	a.app = run.Start(run.Config{
		Runner: a.cfg.Runner, Log: a.runLog, ID: a.state.Run.ID, Command: c, Secrets: a.state.secrets(),
	})
	return nil
}

// command is what starts the app.
func (a *Agent) command() (command.Command, error) {
	plan, in, made := a.state.Status.Plan, a.state.Run, a.state.Made
	if made.Image != nil {
		var argv []string
		if line := a.state.Build.StartCommand; line != "" {
			argv = command.Shell(line)
		}
		return made.Image.Command(a.cfg.Program, a.path(imageFile), a.cfg.Runner.User, argv, in.Env, build.Ports(in.Port))
	}
	c := command.Command{Dir: made.Dir, Env: []map[string]string{made.Environ(a.cfg.Home), in.Env, build.Ports(in.Port)}}
	if plan.StartCommand != "" {
		c.Argv = command.Shell(plan.StartCommand)
		return c, nil
	}
	c.Argv = []string{a.cfg.Program, "static", "-listen", fmt.Sprintf("0.0.0.0:%d", in.Port), "-dir", filepath.Join(made.Dir, plan.StaticDir), fmt.Sprintf("-spa=%t", plan.SPA)}
	return c, nil
}

// stopApp ends the app's processes, as end does it.
func (a *Agent) stopApp(end func(*run.App)) {
	a.starting.Lock()
	defer a.starting.Unlock()
	a.mu.Lock()
	app := a.app
	if a.state.Running {
		a.state.Running = false
		if err := a.save(); err != nil {
			a.cfg.Log.Error("state not written", "error", err)
		}
	}
	a.mu.Unlock()
	if app != nil {
		end(app)
	}
}
