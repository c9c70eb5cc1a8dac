package fakehost

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// guest replaces guests: it has files, logs, ports and events, the same for all
// boxes.
type guest struct {
	mu      sync.Mutex
	files   map[string][]byte
	lines   []hostapi.LogLine
	ports   []hostapi.Port
	events  []hostapi.Event
	keys    map[string]bool
	changed chan struct{} // closed at the next line or event
	process Process
	open    int           // number of open streams
	ended   chan struct{} // closed by EndStreams
}

func (g *guest) init() {
	g.files, g.keys, g.changed = map[string][]byte{}, map[string]bool{}, make(chan struct{})
	g.ended = make(chan struct{})
}

// EndStreams ends every open stream of messages normally.
func (h *Host) EndStreams() {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	close(h.guest.ended)
	h.guest.ended = make(chan struct{})
}

// Process imitates a command: it reads and writes frames. The connection ends when
// it returns.
type Process func(req hostapi.ExecStream, rw io.ReadWriter)

// SetProcess sets the process of streamed execs. The default writes its arguments to
// stdout and exits.
func (h *Host) SetProcess(p Process) {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	h.guest.process = p
}

// SetPorts sets the ports on which guests listen.
func (h *Host) SetPorts(ports ...hostapi.Port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guest.ports = ports
}

// File returns the content of a file.
func (h *Host) File(name string) ([]byte, bool) {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	data, ok := h.guest.files[name]
	return data, ok
}

// AddLines adds to the logs.
func (h *Host) AddLines(lines ...hostapi.LogLine) {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	h.guest.lines = append(h.guest.lines, lines...)
	h.guest.announce()
}

// AddEvents adds to the events.
func (h *Host) AddEvents(events ...hostapi.Event) {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	h.guest.events = append(h.guest.events, events...)
	h.guest.announce()
}

// Events returns the events of a box.
func (h *Host) Events(id string) []hostapi.Event {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	var out []hostapi.Event
	for _, e := range h.guest.events {
		if e.SandboxID == id {
			out = append(out, e)
		}
	}
	return out
}

// Streams returns the number of open streams.
func (h *Host) Streams() int {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	return h.guest.open
}

func (g *guest) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *guest) addEvent(r *http.Request, id string, known bool) (any, error) {
	var in hostapi.NewEvent
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	if !known && in.WorkspaceID == "" {
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	}
	meta, err := json.Marshal(in.Metadata)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if key := id + "/" + in.Key; !g.keys[key] {
		g.keys[key] = true
		g.events = append(g.events, hostapi.Event{
			Seq: uint64(len(g.events) + 1), Time: time.Now().UTC().Truncate(time.Millisecond), SandboxID: id, WorkspaceID: in.WorkspaceID, HostID: "fake",
			Type: in.Type, Code: in.Type.Code(), Message: in.Message, Metadata: meta,
		})
		g.announce()
	}
	return nil, nil
}

// streaming returns the handler of a call whose body or answer is a stream, or nil.
func (h *Host) streaming(r *http.Request, c Call) func(http.ResponseWriter, *http.Request, Call) {
	switch {
	case c.Op == "fs", strings.HasPrefix(c.Op, "fs/"):
		return h.running(h.serveFiles)
	case c.Op == "exec/stream":
		return h.running(h.serveProcess)
	case c.Op == "getbuild" && strings.HasSuffix(r.URL.Path, "/logs"):
		return h.serveBuildLog
	case strings.HasPrefix(c.Op, "blob."):
		return h.serveBlob
	case strings.HasPrefix(c.Op, "dial/"):
		return h.running(h.serveDial)
	case c.Op == "commands", strings.HasPrefix(c.Op, "commands/"):
		return h.running(h.serveCommands)
	case c.Op == "logs":
		return h.serveLogs
	case c.Op == "events" && r.Method == http.MethodGet:
		return h.serveEvents
	}
	return nil
}

// running refuses a call to a box that does not run.
func (h *Host) running(serve func(http.ResponseWriter, *http.Request, Call)) func(http.ResponseWriter, *http.Request, Call) {
	return func(w http.ResponseWriter, r *http.Request, c Call) {
		b, ok := h.Boxes()[c.ID]
		switch {
		case !ok:
			reply(w, nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"})
		case b.Status != hostapi.StatusRunning:
			reply(w, nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(b.Status)})
		default:
			h.count(1)
			defer h.count(-1)
			serve(w, r, c)
		}
	}
}

func (h *Host) count(n int) {
	h.guest.mu.Lock()
	defer h.guest.mu.Unlock()
	h.guest.open += n
}

// guestSays refuses a call in the guest's name, with its own status.
func guestSays(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(hostapi.Error{Code: hostapi.CodeGuestSays, Message: message})
}

func (h *Host) serveFiles(w http.ResponseWriter, r *http.Request, c Call) {
	g := &h.guest
	name := r.URL.Query().Get("path")
	switch c.Op + " " + r.Method {
	case "fs PUT":
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return // nothing changes
		}
		g.mu.Lock()
		_, there := g.files[name]
		g.files[name] = data
		g.mu.Unlock()
		w.WriteHeader(map[bool]int{true: http.StatusNoContent, false: http.StatusCreated}[there])
		return
	case "fs/dir POST":
		w.WriteHeader(http.StatusCreated)
		return
	case "fs/dir GET":
		g.mu.Lock()
		dir := guestapi.Directory{Path: name, Entries: []guestapi.FileStat{}}
		for f, data := range g.files {
			if path.Dir(f) == name {
				dir.Entries = append(dir.Entries, stat(f, data))
			}
		}
		g.mu.Unlock()
		slices.SortFunc(dir.Entries, func(a, b guestapi.FileStat) int { return strings.Compare(a.Name, b.Name) })
		reply(w, dir, nil)
		return
	}
	g.mu.Lock()
	data, ok := g.files[name]
	if ok && c.Op == "fs" && r.Method == http.MethodDelete {
		delete(g.files, name)
	}
	g.mu.Unlock()
	switch {
	case name == "/":
		guestSays(w, http.StatusBadRequest, "is a directory")
	case !ok:
		guestSays(w, http.StatusNotFound, "no such file or directory")
	case c.Op == "fs/stat":
		reply(w, stat(name, data), nil)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(&rangeRefusal{ResponseWriter: w}, r, "", time.Unix(1700000000, 0), strings.NewReader(string(data)))
	}
}

// rangeRefusal writes a 416 like a host; http.ServeContent has set the header.
type rangeRefusal struct {
	http.ResponseWriter
	refused bool
}

func (w *rangeRefusal) WriteHeader(status int) {
	if w.refused = status == http.StatusRequestedRangeNotSatisfiable; w.refused {
		guestSays(w.ResponseWriter, status, "invalid range")
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *rangeRefusal) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

func stat(name string, data []byte) guestapi.FileStat {
	return guestapi.FileStat{
		Path: name, Name: path.Base(name), Type: "file", SizeBytes: int64(len(data)), Mode: "0644", ModifiedAt: time.Unix(1700000000, 0).UTC(),
	}
}

func (h *Host) serveProcess(w http.ResponseWriter, r *http.Request, _ Call) {
	var req hostapi.ExecStream
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		reply(w, nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
		return
	}
	h.guest.mu.Lock()
	process := h.guest.process
	h.guest.mu.Unlock()
	if process == nil {
		process = echoArgs
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", hostapi.UpgradeFrames)
	if rw.Flush() != nil {
		return
	}
	process(req, struct {
		io.Reader
		io.Writer
	}{rw, conn})
}

func echoArgs(req hostapi.ExecStream, rw io.ReadWriter) {
	_ = guestapi.WriteFrame(rw, guestapi.FrameStdout, []byte(strings.Join(req.Argv, " ")+"\n"))
	_ = WriteExit(rw, guestapi.ExecExit{DurationMS: 1})
}

// WriteExit writes the frame that ends a process.
func WriteExit(w io.Writer, e guestapi.ExecExit) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return guestapi.WriteFrame(w, guestapi.FrameExit, raw)
}

func (h *Host) serveLogs(w http.ResponseWriter, r *http.Request, _ Call) {
	g := &h.guest
	q := r.URL.Query()
	want := func(l hostapi.LogLine) bool {
		return q.Get("stream") == l.Stream || q.Get("stream") == "both" && l.Stream != "console"
	}
	if q.Get("follow") == "" {
		g.mu.Lock()
		lines := slices.Clone(g.lines)
		g.mu.Unlock()
		lines = slices.DeleteFunc(lines, func(l hostapi.LogLine) bool { return !want(l) })
		if n, err := strconv.Atoi(q.Get("tail")); err == nil && n < len(lines) {
			lines = lines[len(lines)-n:]
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, l := range lines {
			fmt.Fprintln(w, l.Line)
		}
		return
	}
	follow(h, w, r, func(from int) (out []any, next int) {
		for _, l := range g.lines[from:] {
			if want(l) {
				out = append(out, l)
			}
		}
		return out, len(g.lines)
	})
}

func (h *Host) serveEvents(w http.ResponseWriter, r *http.Request, c Call) {
	g := &h.guest
	q := r.URL.Query()
	since, _ := time.Parse(time.RFC3339Nano, q.Get("since"))
	pick := func(from int) (out []any, next int) {
		for _, e := range g.events[from:] {
			if e.SandboxID == c.ID && e.Time.After(since) {
				out = append(out, e)
			}
		}
		if n, err := strconv.Atoi(q.Get("tail")); err == nil && from == 0 && n < len(out) {
			out = out[len(out)-n:]
		}
		return out, len(g.events)
	}
	if q.Get("follow") == "" {
		g.mu.Lock()
		out, _ := pick(0)
		g.mu.Unlock()
		if out == nil {
			out = []any{}
		}
		reply(w, out, nil)
		return
	}
	follow(h, w, r, pick)
}

// follow sends the items that pick returns, now and after each change.
func follow(h *Host, w http.ResponseWriter, r *http.Request, pick func(from int) ([]any, int)) {
	h.count(1)
	defer h.count(-1)
	g := &h.guest
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	from := 0
	g.mu.Lock()
	ended := g.ended
	g.mu.Unlock()
	for {
		g.mu.Lock()
		changed := g.changed
		var out []any
		out, from = pick(from)
		g.mu.Unlock()
		for _, v := range out {
			raw, err := json.Marshal(v)
			if err != nil {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", raw)
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}
