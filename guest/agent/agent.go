// Package agent is guestd's HTTP server, by which hostd controls the guest. It
// answers the gateway alone, so that no process of the guest can use it.
package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/commands"
	"github.com/berth-cloud/berth/guest/disks"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
	"github.com/berth-cloud/berth/guest/ports"
	"github.com/berth-cloud/berth/guest/proc"
)

// Bounds on what a request may make the agent hold.
const (
	maxBody   = 8 << 20  // JSON bodies, in bytes: a command of 1 MiB, six bytes for each, and room; more stdin comes as frames
	maxHeader = 32 << 10 // a path of 4 KB, each byte as %XX, and room
	maxExecs  = 512
	readWait  = 30 * time.Second // for a request's header
)

// Config is what an agent works with.
type Config struct {
	Version  string
	Listen   netip.AddrPort
	Peer     netip.Addr // the only address that is answered; the zero value: any
	Guest    Guest
	Spec     guestapi.BootSpec
	StartLog string // path of the start command's output
	Outputs  string // directory of what keeps the output of commands; default commands.Dir
	Groups   proc.Groups
	Freezer  *proc.Freezer
	PowerOff func() error
	Log      *slog.Logger
}

// Guest applies identities.
type Guest interface {
	Apply(id *guestapi.Identity, received time.Time, keep netip.AddrPort) (guestapi.IdentityConfirmation, error)
	Last() (identity.Last, error)
}

// Server is the agent.
type Server struct {
	cfg      Config
	listener net.Listener
	disks    *disks.Guest
	tunnels  tunnels
	commands *commands.Table

	identityMu sync.Mutex // one identity at a time
	current    incarnation

	mu         sync.Mutex
	generation uint64
	env        map[string]string // of the identity
	execs      map[*session]struct{}
	transfers  cuts
	followers  cuts
}

// New returns an agent that listens. It knows the identity that the agent before
// it confirmed.
func New(cfg Config) (*Server, error) {
	last, err := cfg.Guest.Last()
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(cfg.Listen))
	if err != nil {
		return nil, err
	}
	if cfg.Freezer == nil {
		cfg.Freezer = proc.NewFreezer(proc.Groups{}, FreezeHold, func() error { return nil })
	}
	return &Server{
		cfg: cfg, listener: listener, generation: last.Generation, env: last.Env,
		disks: disks.NewGuest(), execs: map[*session]struct{}{}, transfers: cuts{}, followers: cuts{},
		commands: commands.New(commands.Config{Groups: cfg.Groups, Freezer: cfg.Freezer, Dir: cmp.Or(cfg.Outputs, commands.Dir)}),
	}, nil
}

// Addr is where the agent listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers until Close.
func (s *Server) Serve() error {
	server := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: readWait,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}
	err := server.Serve(fromPeer{s.listener, s.cfg.Peer})
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, server.Close())
}

// Close makes Serve return, and cuts every connection.
func (s *Server) Close() error {
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// fromPeer accepts the connections of one address; the zero value: of all.
type fromPeer struct {
	net.Listener
	peer netip.Addr
}

func (l fromPeer) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); !l.peer.IsValid() || ok && from.AddrPort().Addr().Unmap() == l.peer {
			return conn, nil
		}
		_ = conn.Close()
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+guestapi.PathHealth, s.health)
	mux.HandleFunc("POST "+guestapi.PathIdentity, s.identity)
	mux.HandleFunc("POST "+guestapi.PathExec, s.exec)
	mux.HandleFunc("GET "+guestapi.PathFS, s.onFiles(s.getFile))
	mux.HandleFunc("PUT "+guestapi.PathFS, s.onFiles(s.putFile))
	mux.HandleFunc("DELETE "+guestapi.PathFS, s.onFiles(s.deleteFile))
	mux.HandleFunc("GET "+guestapi.PathFSStat, s.onFiles(s.statFile))
	mux.HandleFunc("GET "+guestapi.PathFSDir, s.onFiles(s.listDir))
	mux.HandleFunc("POST "+guestapi.PathFSDir, s.onFiles(s.makeDir))
	mux.HandleFunc("GET "+guestapi.PathLogs, s.logs)
	mux.HandleFunc("GET "+guestapi.PathPorts, s.ports)
	s.commandRoutes(mux)
	mux.HandleFunc("POST "+guestapi.PathFreeze, s.freeze)
	mux.HandleFunc("POST "+guestapi.PathMounts, s.mount)
	mux.HandleFunc("POST "+guestapi.PathConnect, s.connect)
	mux.HandleFunc("POST "+guestapi.PathSync, s.sync)
	mux.HandleFunc("POST "+guestapi.PathShutdown, s.shutdown)
	return mux
}

func remoteOf(r *http.Request) netip.AddrPort {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up)
	s.mu.Lock()
	h := guestapi.Health{Version: s.cfg.Version, Generation: s.generation, UptimeMS: up.Nano() / 1e6}
	s.mu.Unlock()
	var err error
	if h.Connections, err = identity.CountConnections(remoteOf(r)); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	if s.cfg.Spec.Start != "" {
		h.Start = &guestapi.StartState{}
		if raw, err := os.ReadFile(guestapi.StartStatePath); err == nil {
			_ = json.Unmarshal(raw, h.Start)
		}
	}
	reply(w, http.StatusOK, h)
}

func (s *Server) sync(w http.ResponseWriter, _ *http.Request) {
	if err := disks.Sync(); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) ports(w http.ResponseWriter, _ *http.Request) {
	own, _ := netip.ParseAddrPort(s.Addr().String())
	list, err := ports.Listening("/proc", own)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	reply(w, http.StatusOK, list)
}

func (s *Server) mount(w http.ResponseWriter, r *http.Request) {
	var m guestapi.Mount
	if err := decode(w, r, &m); err != nil {
		badRequest(w, err)
		return
	}
	ctx, leave, ok := s.transfer(w, r)
	if !ok {
		return
	}
	defer leave()
	if err := s.disks.Mount(ctx, m); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) shutdown(w http.ResponseWriter, _ *http.Request) {
	// The answer goes first: process 1 ends this one as soon as it is asked.
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusAccepted)
	if err := http.NewResponseController(w).Flush(); err != nil {
		s.cfg.Log.Warn("power off not acknowledged", "error", err)
	}
	if err := s.cfg.PowerOff(); err != nil {
		s.cfg.Log.Error("power off failed", "error", err)
	}
}

// decode reads a bounded JSON body.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// badRequest answers a body that decode refused.
func badRequest(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("body over %d bytes", tooLarge.Limit))
		return
	}
	fail(w, http.StatusBadRequest, err)
}

func fail(w http.ResponseWriter, status int, err error) {
	reply(w, status, guestapi.Error{Error: err.Error()})
}

func reply(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		status, raw = http.StatusInternalServerError, []byte(`{"error":"unencodable answer"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}
