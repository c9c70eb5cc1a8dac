// Package fakehost is a host daemon without virtual machines: it has the real wire
// contract over real TLS, keeps boxes in a map, and fails where a test wants it to.
package fakehost

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Call is one request, as a Fault sees it.
type Call struct {
	Op        string // "put", "get", "delete", "exec", …; of captures "capture", "store", "uncapture"; of volumes "volume", "unvolume"
	ID        string
	Term      uint64
	RequestID string
	Done      bool // the host has executed the call and is about to answer
}

// ErrDrop, from a Fault, makes the host cut the connection without an answer.
var ErrDrop = errors.New("drop the connection")

// Host is one fake host.
type Host struct {
	ID string

	server  *httptest.Server
	bootID  string
	changed chan struct{}

	mu        sync.Mutex
	capacity  hostapi.Capacity
	templates []hostapi.TemplateState
	sources   []hostapi.TemplateSource
	ready     bool
	silent    bool // it sends no heartbeats
	boxes     map[string]hostapi.Box
	buried    map[string]uint64
	keptDisks map[string]bool // by deleted box: whether its disk was kept
	term      uint64
	cluster   string   // of term
	former    []string // former clusters, whose calls are refused
	sequence  uint64
	puts      map[string]int // by id: how many boxes were created
	envs      map[string]map[string]string
	fault     Fault
	execute   Execute

	transitions map[string]int  // by name: how many were made
	memoryLost  map[string]bool // boxes whose saved memory can never be restored
	guest       guest
	commands    commands
	objects     objects
	builds      builds
	databases   databases
	usage       usageLog
	blobs       map[string][]byte
	dialled     Dialled
	stats       hostapi.BoxStats
}

// Fault is called before each call is executed, and again before it is answered. If
// it returns a *hostapi.Error, the call is refused; ErrDrop cuts the connection. It
// may block until the context ends, which means that the caller is gone.
type Fault func(ctx context.Context, c Call) error

// Execute executes an exec.
type Execute func(ctx context.Context, id string, req hostapi.ExecRequest) (hostapi.ExecResult, error)

// SetFault replaces the fault; nil: none.
func (h *Host) SetFault(f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = f
}

// SetExec sets the result of execs. By default it is exit code 0 and the arguments
// as output.
func (h *Host) SetExec(f Execute) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.execute = f
}

// SetStats sets what every box of the host uses.
func (h *Host) SetStats(u hostapi.BoxStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats = u
}

// New starts a host with the template "base" and memoryMB of memory. It stops when
// the test ends.
func New(t testing.TB, ca *pki.CA, id string, memoryMB int) *Host {
	t.Helper()
	cert, key, err := ca.Issue(pki.Identity{Role: pki.RoleHost, Name: id}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node, err := pki.ParseNode(ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return NewAs(t, node, memoryMB)
}

// NewAs is New with a certificate that may be replaced.
func NewAs(t testing.TB, node *pki.Node, memoryMB int) *Host {
	t.Helper()
	h := &Host{
		ID: node.Identity.Name, bootID: rand.Text(), changed: make(chan struct{}, 1), ready: true,
		capacity:  hostapi.Capacity{CPUs: 4, MemoryMB: memoryMB, Slots: 64, DiskFreeBytes: 1 << 40, OverheadMBPerBox: 32},
		templates: []hostapi.TemplateState{{Name: "base", BuildID: "b1", Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 2048}},
		boxes:     map[string]hostapi.Box{}, buried: map[string]uint64{}, keptDisks: map[string]bool{}, puts: map[string]int{}, envs: map[string]map[string]string{}, transitions: map[string]int{}, memoryLost: map[string]bool{},
	}
	h.guest.init()
	h.objects, h.databases = newObjects(), newDatabases()
	h.server = httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	// httptest has a certificate of its own for clients that name no server.
	h.server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return node.ServerTLS(), nil }}
	h.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.server.StartTLS()
	t.Cleanup(h.server.Close)
	return h
}

// HangUp makes the host close each connection after one request: every call to it has a
// handshake of its own.
func (h *Host) HangUp() { h.server.Config.SetKeepAlivesEnabled(false) }

// Address returns host:port of the host's API.
func (h *Host) Address() string { return h.server.Listener.Addr().String() }

// Change calls f under the host's lock, and reports the result.
func (h *Host) Change(f func(c *hostapi.Capacity, t *[]hostapi.TemplateState, boxes map[string]hostapi.Box)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.capacity, &h.templates, h.boxes)
	h.announce()
}

// Silence stops or resumes the heartbeats.
func (h *Host) Silence(silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = silent
	h.announce()
}

// SetReady sets whether heartbeats claim a complete inventory. Until they do, the
// host does not tell that it lacks a box.
func (h *Host) SetReady(ready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = ready
	h.announce()
}

// Boxes returns the host's boxes.
func (h *Host) Boxes() map[string]hostapi.Box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.boxes)
}

// Made returns how many boxes were created with an id.
func (h *Host) Made(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.puts[id]
}

// Env returns the environment that a box was created with.
func (h *Host) Env(id string) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.envs[id]
}

func (h *Host) announce() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Heartbeat returns the host's current heartbeat.
func (h *Host) Heartbeat() hostapi.Heartbeat {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heartbeat()
}

func (h *Host) heartbeat() hostapi.Heartbeat {
	h.sequence++
	hb := hostapi.Heartbeat{
		HostID: h.ID, Address: h.server.Listener.Addr().String(), BootID: h.bootID, Sequence: h.sequence, Ready: h.ready,
		Capacity: h.capacity, Templates: slices.Clone(h.templates), Sources: slices.Clone(h.sources),
		Versions: hostapi.Versions{Hostd: "fake", Engine: "none", Kernel: "none"},
	}
	hb.Capacity.ReservedMB, hb.Capacity.SlotsUsed = h.reservedMB(), len(h.boxes)
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		b := h.boxes[id]
		state := b.State()
		h.databases.report(&state)
		hb.Boxes = append(hb.Boxes, state)
	}
	h.objects.report(&hb)
	return hb
}

func (h *Host) reservedMB() int {
	sum := 0
	for id, b := range h.boxes {
		if h.objects.stopped[id] && b.Status == hostapi.StatusPaused {
			continue
		}
		sum += b.MemoryMB + h.capacity.OverheadMBPerBox
	}
	return sum
}

// SendHeartbeats sends heartbeats, at once when something changes, until ctx ends.
// send returns an error if no replica accepts one.
func (h *Host) SendHeartbeats(ctx context.Context, every time.Duration, send func(ctx context.Context, hb hostapi.Heartbeat) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		h.mu.Lock()
		silent := h.silent
		hb := h.heartbeat()
		h.mu.Unlock()
		if !silent {
			// If no replica accepts it, the next one follows.
			_ = send(ctx, hb)
		}
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		case <-tick.C:
		}
	}
}

func (h *Host) serve(w http.ResponseWriter, r *http.Request) {
	if id, ok := pki.PeerIdentity(r.TLS); !ok || id.Role != pki.RoleReplica {
		reply(w, nil, &hostapi.Error{Code: hostapi.CodeUnauthorized, Message: "not a replica"})
		return
	}
	rest := strings.TrimPrefix(r.URL.Path, hostapi.PathBoxes+"/")
	id, action, _ := strings.Cut(rest, "/")
	c := Call{Op: strings.ToLower(r.Method), ID: id, RequestID: r.Header.Get(hostapi.HeaderRequestID)}
	if action != "" {
		c.Op = action
	}
	op, object := objectCall(r)
	if object == "" {
		op, object = databaseCall(r)
	}
	if object == "" {
		op, object = blobCall(r)
	}
	if r.URL.Path == hostapi.PathUsage {
		op, object = "usage", h.ID
	}
	if object != "" {
		c.Op, c.ID = op, object
	}
	c.Term, _ = strconv.ParseUint(r.Header.Get(hostapi.HeaderTerm), 10, 64)
	if serve := h.streaming(r, c); serve != nil {
		if !h.faulty(w, r, c) {
			serve(w, r, c)
		}
		return
	}
	// The server notices that a caller is gone only after the body is read.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if h.faulty(w, r, c) {
		return
	}
	out, err := h.do(r, c)
	c.Done = true
	if err == nil && h.faulty(w, r, c) {
		return
	}
	reply(w, out, err)
}

func (h *Host) faulty(w http.ResponseWriter, r *http.Request, c Call) bool {
	h.mu.Lock()
	fault := h.fault
	h.mu.Unlock()
	if fault == nil {
		return false
	}
	err := fault(r.Context(), c)
	var refusal *hostapi.Error
	switch {
	case err == nil:
		return false
	case errors.As(err, &refusal):
		reply(w, nil, refusal)
		return true
	default:
		panic(http.ErrAbortHandler) // the connection is cut
	}
}

func (h *Host) do(r *http.Request, c Call) (any, error) {
	if c.Op == "exec" {
		return h.exec(r, c)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Op != "get" && c.Op != "database.get" {
		cluster := r.Header.Get(hostapi.HeaderCluster)
		if cluster != h.cluster && !slices.Contains(h.former, cluster) {
			h.former, h.cluster, h.term = append(h.former, h.cluster), cluster, 0
		}
		if c.Term < h.term || cluster != h.cluster {
			return nil, &hostapi.Error{Code: hostapi.CodeStaleTerm, Message: "stale term"}
		}
		h.term = c.Term
	}
	if _, object := objectCall(r); object != "" {
		return h.object(r, c)
	}
	if _, object := databaseCall(r); object != "" {
		return h.database(r, c)
	}
	switch c.Op {
	case "usage":
		return h.usage.next(r.URL.Query())
	case "put":
		var spec hostapi.BoxSpec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
		}
		return h.put(c.ID, spec)
	case "get":
		if !h.ready {
			return nil, &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is starting up"}
		}
		if b, ok := h.boxes[c.ID]; ok {
			return b, nil
		}
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	case "stats":
		if _, ok := h.boxes[c.ID]; !ok {
			return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
		}
		return h.stats, nil
	case "delete":
		generation, _ := strconv.ParseUint(r.URL.Query().Get(hostapi.QueryGeneration), 10, 64)
		if b, ok := h.boxes[c.ID]; ok && generation > 0 && b.Generation > generation {
			return nil, &hostapi.Error{Code: hostapi.CodeStaleGeneration, Message: "a younger box is here"}
		}
		h.buried[c.ID] = max(h.buried[c.ID], generation)
		h.keptDisks[c.ID] = r.URL.Query().Get(hostapi.QueryKeepDisk) == "true"
		delete(h.boxes, c.ID)
		h.objects.gone(c.ID)
		h.databases.gone(c.ID)
		h.announce()
		return nil, nil
	}
	return h.transition(r, c)
}

func (h *Host) put(id string, spec hostapi.BoxSpec) (any, error) {
	b, there := h.boxes[id]
	i := slices.IndexFunc(h.templates, func(t hostapi.TemplateState) bool {
		return t.Status == "ready" && (len(spec.Builds) == 0 && t.Name == spec.Template || slices.Contains(spec.Builds, t.BuildID))
	})
	switch {
	case spec.Generation <= h.buried[id], there && spec.Generation < b.Generation:
		return nil, &hostapi.Error{Code: hostapi.CodeStaleGeneration, Message: "older than what is or was here"}
	case there && spec.Generation == b.Generation:
		return b, nil
	}
	source, err := h.sourceOf(id, spec)
	if err != nil {
		return nil, err
	}
	var t hostapi.TemplateState
	switch {
	case source != nil:
		t = hostapi.TemplateState{Name: spec.Template, CPU: source.CPU, MemoryMB: source.MemoryMB, DiskMB: source.DiskMB}
	case i < 0:
		return nil, &hostapi.Error{Code: hostapi.CodeTemplateMissing, Message: "no such template"}
	default:
		t = h.templates[i]
	}
	if h.reservedMB()+t.MemoryMB+h.capacity.OverheadMBPerBox > h.capacity.MemoryMB {
		return nil, &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "insufficient host memory for sandbox"}
	}
	b = hostapi.Box{
		ID: id, Generation: spec.Generation, Status: hostapi.StatusRunning, Seq: 1, Persistent: spec.Persistent, Template: t.Name, CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB,
		CreatedAt: time.Now(), StartedAt: time.Now(), Boot: hostapi.BootRestore,
		Stages: []hostapi.Stage{{Name: "overlay", Duration: time.Millisecond}, {Name: "restore", Duration: 2 * time.Millisecond, Engine: true}},
	}
	if spec.Asleep {
		b.Status = hostapi.StatusHibernated
	}
	if source != nil && spec.WarmFrom != "" {
		b.PauseMS = source.PauseMS
	}
	h.boxes[id], h.envs[id] = b, spec.Env
	h.objects.made(id, spec)
	h.puts[id]++
	h.announce()
	return b, nil
}

func (h *Host) exec(r *http.Request, c Call) (any, error) {
	var req hostapi.ExecRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	h.mu.Lock()
	b, ok := h.boxes[c.ID]
	execute := h.execute
	h.mu.Unlock()
	switch {
	case !ok:
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	case b.Status != hostapi.StatusRunning:
		return nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(b.Status)}
	case execute != nil:
		return execute(r.Context(), c.ID, req)
	}
	return hostapi.ExecResult{Stdout: []byte(strings.Join(req.Argv, " ")), DurationMS: 1}, nil
}

var statuses = map[hostapi.Code]int{
	hostapi.CodeInvalid: 400, hostapi.CodeInvalidCwd: 400, hostapi.CodeInvalidUser: 400, hostapi.CodeInvalidMount: 400, hostapi.CodeUnauthorized: 403, hostapi.CodeNotFound: 404, hostapi.CodeStaleTerm: 409,
	hostapi.CodeStaleGeneration: 409, hostapi.CodeNotRunning: 409, hostapi.CodeCutOff: 409, hostapi.CodeIllegalState: 409, hostapi.CodeTooLarge: 413,
	hostapi.CodeBusy: 429, hostapi.CodeTemplateMissing: 422, hostapi.CodeInternal: 500, hostapi.CodeGuest: 502,
	hostapi.CodeDraining: 503, hostapi.CodeNoMemory: 507, hostapi.CodeNoDisk: 507, hostapi.CodeNoSlot: 507, hostapi.CodePortClosed: 502,
	hostapi.CodeNoSnapshot: 404, hostapi.CodeBadSnapshot: 422, hostapi.CodeNoStore: 422, hostapi.CodeForeignStore: 409, hostapi.CodeInUse: 409,
	hostapi.CodeNoArchive: 404, hostapi.CodeArchiveDamaged: 422, hostapi.CodeArchiveFenced: 409, hostapi.CodeNotVerified: 502,
	hostapi.CodeDatabaseBusy: 409, hostapi.CodeNotReady: 503,
}

func reply(w http.ResponseWriter, out any, err error) {
	status := http.StatusOK
	var refusal *hostapi.Error
	switch {
	case errors.As(err, &refusal):
		status, out = statuses[refusal.Code], refusal
	case err != nil:
		status, out = http.StatusInternalServerError, &hostapi.Error{Code: hostapi.CodeInternal, Message: err.Error()}
	case out == nil:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // the caller may be gone
}
