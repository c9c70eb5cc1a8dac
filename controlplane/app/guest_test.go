package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/guest/appapi"
)

// guests are the guests of all hosts of a rig: guestapp, and the app that it starts. How
// they behave is the same for all, until a test says otherwise.
type guests struct {
	conns  chan net.Conn
	closed chan struct{}
	srv    *http.Server

	mu      sync.Mutex
	boxes   map[string]*guest
	changed chan struct{}

	plan  appapi.BuildStatus // what a build comes to
	hold  bool               // builds do not end
	lines string             // of a build's log
	wrote string             // by the app
	// runLines are what apps write while they are followed, by box; closed: it ends.
	runLines map[string]chan string
	port     int // on which the app listens; 0: on the one that it is told
	status   func(r *appapi.RunStatus)
	cache    string        // what each build keeps; "": nothing
	cutCache bool          // its caches are cut off, and it takes none
	cut      bool          // logs that are followed break off
	mute     bool          // the app takes connections and says nothing
	endless  bool          // the app's answers have no end
	fleeting bool          // the app answers one request, and ends
	down     bool          // nothing answers in any guest
	forgets  bool          // guests know of no build
	restless int           // if above 0, guests say something new of their builds each time
	given    int           // builds that they were given, again too
	opened   int           // connections to apps
	ended    []string      // boxes whose app was told to end
	ending   chan struct{} // an app that is told to end waits for it; nil: it ends at once
}

// guest is one of them.
type guest struct {
	build  appapi.Build
	source []byte
	cache  []byte // that it was given
	builds int    // that were begun
	run    appapi.Run
	starts int
	port   int // on which the app listens; 0: it does not run
}

// guestConn is a connection to a port of a box.
type guestConn struct {
	net.Conn
	box  string
	port int
}

type connKey struct{}

func newGuests(t *testing.T) *guests {
	g := &guests{conns: make(chan net.Conn), closed: make(chan struct{}), boxes: map[string]*guest{}, changed: make(chan struct{}), lines: "cloning\nbuilding\n", wrote: "the app writes\n"}
	g.plan = appapi.BuildStatus{
		State: appapi.StateSucceeded, GitCommit: "0123456789abcdef0123456789abcdef01234567", GitMessage: "First\n\nwords\x1b[31m", GitAuthor: "A <a@b.c>",
		Plan:   appapi.Plan{Framework: "express", Runtime: "node 18", StartCommand: "node ."},
		Phases: []appapi.Phase{{Name: appapi.PhaseSource, DurationMS: 5}, {Name: "evil\n", DurationMS: 1}, {Name: appapi.PhaseBuild, DurationMS: -7}},
	}
	g.srv = &http.Server{Handler: http.HandlerFunc(g.serve), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c.(*guestConn))
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.srv.Serve(g) // until Close
	}()
	t.Cleanup(func() {
		_ = g.srv.Close()
		<-done
	})
	return g
}

// Accept, Close and Addr make the guests a listener.
func (g *guests) Accept() (net.Conn, error) {
	select {
	case c := <-g.conns:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

func (g *guests) Close() error {
	close(g.closed) // once: see http.Server.Serve
	return nil
}

func (g *guests) Addr() net.Addr { return &net.TCPAddr{} }

// dial is what listens in the boxes of a host.
func (g *guests) dial(h *fakehost.Host) fakehost.Dialled {
	return func(box string, port int, conn net.Conn) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		b := g.boxes[box]
		if b == nil {
			b = &guest{}
			if h.Spec(box).Capture != "" { // the app is built in it, and does not run
				b.build.ID = "restored"
			}
			g.boxes[box] = b
		}
		if g.down || port != appapi.Port && port != b.port {
			return false
		}
		if port != appapi.Port {
			g.opened++
		}
		select {
		case g.conns <- &guestConn{Conn: conn, box: box, port: port}:
			return true
		case <-g.closed:
			return false
		}
	}
}

// set changes how guests behave.
func (g *guests) set(change func(g *guests)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
	close(g.changed)
	g.changed = make(chan struct{})
}

// at reads a box's guest.
func (g *guests) at(box string) guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b := g.boxes[box]; b != nil {
		return *b
	}
	return guest{}
}

func (g *guests) serve(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*guestConn)
	if c.port != appapi.Port {
		g.mu.Lock()
		mute, endless := g.mute, g.endless
		if g.fleeting {
			g.boxes[c.box].port = 0
		}
		g.mu.Unlock()
		if mute {
			<-r.Context().Done()
			return
		}
		for endless {
			if _, err := fmt.Fprintln(w, "more"); err != nil {
				return
			}
		}
		fmt.Fprintln(w, "hello")
		return
	}
	if r.URL.Path == appapi.PathBuildLog || r.URL.Path == appapi.PathRunLog {
		g.serveLog(w, r, c.box)
		return
	}
	if r.URL.Path == appapi.PathCache {
		g.serveCache(w, r, c.box)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == appapi.PathRunStop && !g.stop(r.Context(), c.box) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.boxes[c.box]
	switch r.Method + " " + r.URL.Path {
	case "PUT " + appapi.PathSource:
		b.source = body
		w.WriteHeader(http.StatusNoContent)
		return
	case "PUT " + appapi.PathBuild:
		var in appapi.Build
		_ = json.Unmarshal(body, &in)
		g.given++
		if in.ID != b.build.ID {
			b.build, b.builds = in, b.builds+1
		}
	case "PUT " + appapi.PathRun:
		if b.build.ID == "" {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(appapi.Error{Error: "nothing was built", Code: appapi.CodeNotBuilt})
			return
		}
		var in appapi.Run
		_ = json.Unmarshal(body, &in)
		if in.ID != b.run.ID {
			b.run, b.starts = in, b.starts+1
		}
		if b.port = in.Port; g.port != 0 {
			b.port = g.port
		}
	}
	_ = json.NewEncoder(w).Encode(g.statusOf(b))
}

// stop ends the app in a box. It returns false if the caller has gone meanwhile.
func (g *guests) stop(ctx context.Context, box string) bool {
	g.mu.Lock()
	g.ended = append(g.ended, box)
	g.boxes[box].port = 0
	ending := g.ending
	g.mu.Unlock()
	if ending != nil {
		select {
		case <-ending:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (g *guests) serveCache(w http.ResponseWriter, r *http.Request, box string) {
	g.mu.Lock()
	cut, cache, b := g.cutCache, g.cache, g.boxes[box]
	g.mu.Unlock()
	switch {
	case r.Method == http.MethodPut && cut:
		w.WriteHeader(http.StatusInternalServerError)
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		g.mu.Lock()
		b.cache = body
		g.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		fmt.Fprintf(w, "%s of %s", cache, b.build.ID)
		if cut {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

func (g *guests) statusOf(b *guest) appapi.Status {
	st := appapi.Status{Version: "fake"}
	if b.build.ID != "" && !g.forgets {
		st.Build = g.plan
		st.Build.ID, st.Build.LogBytes, st.Build.CacheBytes = b.build.ID, int64(len(g.lines)), int64(len(g.cache))
		if g.hold {
			st.Build = appapi.BuildStatus{ID: b.build.ID, State: appapi.StateRunning, Phase: appapi.PhaseBuild, LogBytes: int64(len(g.lines))}
		}
		if g.restless > 0 {
			g.restless++
			st.Build.Plan.Framework = fmt.Sprint(g.restless)
		}
	}
	if b.run.ID != "" {
		st.Run = appapi.RunStatus{ID: b.run.ID, State: appapi.StateRunning, Starts: 1, LogBytes: int64(len(g.wrote)), Listening: []appapi.Listen{{Port: b.port}}}
		if g.status != nil {
			g.status(&st.Run)
		}
	}
	return st
}

func (g *guests) serveLog(w http.ResponseWriter, r *http.Request, box string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("from"))
	w.Header().Set(appapi.HeaderOffset, strconv.Itoa(from))
	if r.URL.Path == appapi.PathRunLog {
		g.mu.Lock()
		wrote, more := g.wrote, g.runLines[box]
		g.mu.Unlock()
		fmt.Fprint(w, wrote[min(from, len(wrote)):])
		for more != nil && r.URL.Query().Get("follow") != "" && http.NewResponseController(w).Flush() == nil {
			select {
			case line, ok := <-more:
				if !ok {
					return
				}
				fmt.Fprintln(w, line)
			case <-r.Context().Done():
				return
			}
		}
		return
	}
	for {
		g.mu.Lock()
		text, going, changed, cut := g.lines, g.hold, g.changed, g.cut && r.URL.Query().Get("follow") != ""
		g.mu.Unlock()
		if cut {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, text[min(from, len(text)):])
		from = max(from, len(text))
		if !going || r.URL.Query().Get("follow") == "" || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-time.After(5 * time.Second):
			return
		}
	}
}
