package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/telemetry"
)

// Guests is what the routes call that speak to a box's guest.
type Guests interface {
	Exec(ctx context.Context, id string, req hostapi.ExecRequest) (hostapi.ExecResult, error)
	ExecStream(ctx context.Context, id string, req hostapi.ExecStream) (conn *guestio.Conn, first io.Reader, err error)
	DialPort(ctx context.Context, id string, port int) (*guestio.Conn, error)
	Relay(ctx context.Context, id string, r guestio.GuestRequest) (*http.Response, error)
	Ports(ctx context.Context, id string) ([]hostapi.Port, error)
	StartLogs(ctx context.Context, id, stream string, tail int, follow bool, out guestio.Lines) error
	ConsoleLogs(ctx context.Context, id string, tail int, follow bool, out guestio.Lines) error
	Commands
}

// streamRoutes are those whose bodies are not one small JSON value.
func (s *Server) streamRoutes(route func(string, func(http.ResponseWriter, *http.Request) error)) {
	guest := func(pattern string, h func(http.ResponseWriter, *http.Request, string) error) {
		route(pattern, func(w http.ResponseWriter, r *http.Request) error {
			id, err := pathID(r)
			if err != nil {
				return err
			}
			if s.cfg.Guests == nil {
				return errNotHere
			}
			return h(w, r, id)
		})
	}
	guest("POST "+boxPath+"/exec/stream", s.execStream)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		guest(method+" "+boxPath+"/fs", s.files(guestapi.PathFS))
	}
	guest("GET "+boxPath+"/fs/stat", s.files(guestapi.PathFSStat))
	guest("GET "+boxPath+"/fs/dir", s.files(guestapi.PathFSDir))
	guest("POST "+boxPath+"/fs/dir", s.files(guestapi.PathFSDir))
	guest("GET "+boxPath+"/logs", s.boxLogs)
	guest("GET "+commandPath+"/output", s.commandOutput)
	route("GET "+boxPath+"/events", s.events)
	route("GET "+hostapi.PathBuilds+"/{id}/logs", s.buildLogs)
}

// stream renders the errors of a route that writes its own answer. A route that
// fails after it began to answer panics with http.ErrAbortHandler, so that the
// caller does not take a part for the whole.
func (s *Server) stream(h func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		status := http.StatusOK
		defer func() { s.logged(r, status, began) }()
		if err := h(w, r); err != nil {
			status, _ = classify(err)
			fail(w, r, s.cfg.Log, err)
		}
	})
}

func (s *Server) execStream(w http.ResponseWriter, r *http.Request, id string) error {
	if err := upgradable(r, hostapi.UpgradeFrames); err != nil {
		return err
	}
	var req hostapi.ExecStream
	r.Body = http.MaxBytesReader(w, r.Body, hostapi.MaxBody)
	if err := decode(r, &req); err != nil {
		return err
	}
	ctx, detach := detachable(r.Context())
	defer detach()
	conn, first, err := s.cfg.Guests.ExecStream(ctx, id, req)
	if err != nil {
		return err
	}
	detach()
	return s.upgrade(w, hostapi.UpgradeFrames, conn, first)
}

// dial connects to a port of a guest. A router of databases gets PostgreSQL's alone.
func (s *Server) dial(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	if err := upgradable(r, hostapi.UpgradeTCP); err != nil {
		return err
	}
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil {
		return fmt.Errorf("%w: port is no number", hosterr.ErrInvalid)
	}
	if port != pgapi.PostgresPort && strings.HasPrefix(peerName(r), hostapi.RouterPrefix) {
		return errUnauthorized
	}
	if s.cfg.Guests == nil {
		return errNotHere
	}
	ctx, detach := detachable(r.Context())
	defer detach()
	conn, err := s.cfg.Guests.DialPort(ctx, id, port)
	if err != nil {
		return err
	}
	detach()
	// The connection may stay for days; the trace is of how it was made.
	span := telemetry.Current(ctx)
	span.Status(http.StatusSwitchingProtocols)
	span.End(nil)
	return s.upgrade(w, hostapi.UpgradeTCP, conn, nil)
}

// detachable returns a context that ends with parent until detach is called. A
// request's context ends with the caller's half of the connection, while the
// other half may still be used.
func detachable(parent context.Context) (ctx context.Context, detach func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() { cancel(context.Cause(parent)) })
	return ctx, func() { stop() }
}

func upgradable(r *http.Request, protocol string) error {
	if r.ProtoMajor != 1 || r.Header.Get("Upgrade") != protocol {
		return fmt.Errorf("%w: want HTTP/1.1 and Upgrade: %s", hosterr.ErrInvalid, protocol)
	}
	return nil
}

// relayBuffer is what a download holds in memory, in bytes.
const relayBuffer = 64 << 10

// Headers that a transfer keeps, each way.
var (
	filesIn  = []string{"Content-Type", "Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "If-Match", "If-None-Match"}
	filesOut = []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Last-Modified", "Etag"}
)

// files passes requests on to the guest's file system.
func (s *Server) files(path string) func(http.ResponseWriter, *http.Request, string) error {
	return func(w http.ResponseWriter, r *http.Request, id string) error {
		req := guestio.GuestRequest{Method: r.Method, Path: path, Query: r.URL.Query(), Header: http.Header{}, Length: r.ContentLength}
		if r.ContentLength != 0 {
			req.Body = r.Body
		} else if r.Method == http.MethodPut {
			req.Body = http.NoBody
		}
		for _, k := range filesIn {
			if v := r.Header.Values(k); len(v) > 0 {
				req.Header[k] = v
			}
		}
		resp, err := s.cfg.Guests.Relay(r.Context(), id, req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for _, k := range filesOut {
			if v := resp.Header.Values(k); len(v) > 0 {
				w.Header()[k] = v
			}
		}
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(resp.StatusCode)
		if _, err := io.CopyBuffer(plainWriter{w}, resp.Body, make([]byte, relayBuffer)); err != nil {
			s.cfg.Log.DebugContext(r.Context(), "transfer broke off", "error", err)
			panic(http.ErrAbortHandler)
		}
		return nil
	}
}

// plainWriter hides what else a writer can do, so that the copy's buffer is used.
type plainWriter struct{ io.Writer }

// boxLogs answers with what the template's start command, or the console, has
// written.
func (s *Server) boxLogs(w http.ResponseWriter, r *http.Request, id string) error {
	q := r.URL.Query()
	tail := -1
	if raw := q.Get("tail"); raw != "" {
		n, err := strconv.Atoi(raw)
		if err != nil || n < 0 {
			return fmt.Errorf("%w: tail %q", hosterr.ErrInvalid, raw)
		}
		tail = n
	}
	read := s.cfg.Guests.ConsoleLogs
	switch stream := q.Get("stream"); stream {
	case guestio.StreamConsole:
	case "", guestapi.StreamBoth, guestapi.StreamStdout, guestapi.StreamStderr:
		if stream == "" {
			stream = guestapi.StreamBoth
		}
		read = func(ctx context.Context, id string, tail int, follow bool, out guestio.Lines) error {
			return s.cfg.Guests.StartLogs(ctx, id, stream, tail, follow, out)
		}
	default:
		return fmt.Errorf("%w: stream %q: want stdout, stderr, both or console", hosterr.ErrInvalid, stream)
	}
	return s.logs(w, r, func(ctx context.Context, follow bool, out guestio.Lines) error {
		return read(ctx, id, tail, follow, out)
	})
}

func (s *Server) buildLogs(w http.ResponseWriter, r *http.Request) error {
	id, err := objectID(r)
	if err != nil {
		return err
	}
	if s.cfg.Builds == nil {
		return errNotHere
	}
	if _, err := s.cfg.Builds.Build(id); err != nil {
		return err
	}
	return s.logs(w, r, func(ctx context.Context, follow bool, out guestio.Lines) error {
		out.Began()
		return s.cfg.Builds.BuildLogs(ctx, id, follow, out.Emit)
	})
}

// logs answers with lines: as text, or with follow as server-sent events.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, read func(context.Context, bool, guestio.Lines) error) error {
	if follow(r) {
		return s.follow(w, r, func(ctx context.Context, out *sse) error {
			return read(ctx, true, guestio.Lines{
				Began: out.begin,
				Emit:  func(l hostapi.LogLine) error { return out.message("", "log", l) },
			})
		})
	}
	begun := false
	err := read(r.Context(), false, guestio.Lines{
		Began: func() {
			begun = true
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusOK)
		},
		Emit: func(l hostapi.LogLine) error {
			if !l.Partial {
				l.Line += "\n"
			}
			_, err := io.WriteString(w, l.Line)
			return err
		},
	})
	if err != nil && begun {
		panic(http.ErrAbortHandler)
	}
	return err
}

// follow reports whether the caller wants to hear what comes.
func follow(r *http.Request) bool {
	v := r.URL.Query().Get("follow")
	return v == "true" || v == "1"
}

// Events is what the routes of events call.
type Events interface {
	// Query returns events of a sandbox, oldest first; hosterr.ErrNotFound where it
	// has none and never had.
	Query(id string, q hostapi.EventQuery) ([]hostapi.Event, error)
	// Follow hands on the events asked for and those to come, until ctx ends or
	// the sandbox's stream is closed, which is no error. began is called once it
	// is known that there is a stream.
	Follow(ctx context.Context, id string, q hostapi.EventQuery, began func(), emit func(hostapi.Event) error) error
	// Post adds an event, once a key.
	Post(id string, e hostapi.NewEvent) error
}

func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	q, err := eventQuery(r)
	if err != nil {
		return err
	}
	if s.cfg.Events == nil {
		return errNotHere
	}
	if follow(r) {
		return s.follow(w, r, func(ctx context.Context, out *sse) error {
			return s.cfg.Events.Follow(ctx, id, q, out.begin, func(e hostapi.Event) error {
				return out.message(e.Time.UTC().Format(hostapi.TimeFormat), "ev", e)
			})
		})
	}
	list, err := s.cfg.Events.Query(id, q)
	if err != nil {
		return err
	}
	if list == nil {
		list = []hostapi.Event{}
	}
	reply(w, http.StatusOK, list)
	return nil
}

func eventQuery(r *http.Request) (q hostapi.EventQuery, err error) {
	values := r.URL.Query()
	if raw := values.Get("tail"); raw != "" {
		n, err := strconv.Atoi(raw)
		if err != nil || n < 0 {
			return q, fmt.Errorf("%w: tail %q", hosterr.ErrInvalid, raw)
		}
		n = min(n, hostapi.MaxEventTail)
		q.Tail = &n
	}
	if raw := values.Get("since"); raw != "" {
		if q.Since, err = time.Parse(time.RFC3339Nano, raw); err != nil {
			return q, fmt.Errorf("%w: since: want a time as in 2006-01-02T15:04:05.000Z", hosterr.ErrInvalid)
		}
	}
	return q, nil
}

func (s *Server) postEvent(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var e hostapi.NewEvent
	if err := decode(r, &e); err != nil {
		return nil, err
	}
	if s.cfg.Events == nil {
		return nil, errNotHere
	}
	return nil, s.cfg.Events.Post(id, e)
}

// errStopping ends who only listens.
var errStopping = errors.New("host daemon is shutting down")

// follow answers with server-sent events. If send fails after the first of
// them, the answer is cut off: an orderly end would tell the caller that
// nothing more will come.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, send func(context.Context, *sse) error) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := newSSE(w)
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	stopBeats := out.keepAlive()
	err := send(ctx, out)
	cancel(nil)
	<-beats
	stopBeats()
	if err != nil && out.begun() {
		panic(http.ErrAbortHandler)
	}
	return err
}
