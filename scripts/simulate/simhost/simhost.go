// Package simhost is a host daemon without virtual machines. What it says and answers is
// the real protocol, over mutual TLS.
package simhost

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// The size of every sandbox, and what the engine of each takes beside.
const (
	SandboxMB     = 512
	SandboxDiskMB = 2048
	OverheadMB    = 32
)

// Config is what a Host is made of.
type Config struct {
	ID        string
	Node      *pki.Node // its certificate
	Listen    string    // address; default any free port of 127.0.0.1
	MemoryMB  int
	Templates []hostapi.TemplateState
	Began     time.Time // when its daemon started
	Heartbeat time.Duration
	Events    bool   // it records events
	Heard     func() // after each heartbeat that a leader has taken; nil: nothing
}

// box is what a simulated host keeps of one.
type box struct {
	generation          uint64
	template, workspace string
	cpu, memoryMB       int
	created             time.Time
}

// Host is one of them.
type Host struct {
	cfg      Config
	boot     string
	listener net.Listener
	server   *http.Server
	changed  chan struct{}

	mu       sync.Mutex
	boxes    map[string]box
	reserved int // MB
	events   []hostapi.Event
	seq      uint64 // of the last event
	usage    *hostapi.UsageBatch
	counted  time.Time // until when usage was handed out
	batches  uint64
}

// New makes a Host that listens, and answers once it runs.
func New(cfg Config) (*Host, error) {
	l, err := net.Listen("tcp", cmp.Or(cfg.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, boot: rand.Text(), listener: l, changed: make(chan struct{}, 1), boxes: map[string]box{}, counted: time.Now()}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	return h, nil
}

// Run serves the control plane and sends it heartbeats until ctx ends.
func (h *Host) Run(ctx context.Context, peers []string) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = h.server.Serve(tls.NewListener(h.listener, h.cfg.Node.ServerTLS("http/1.1"))) }) // ends by Close
	all.Go(func() {
		<-ctx.Done()
		_ = h.server.Close() // its listener is gone all the same
	})
	heartbeat.New(heartbeat.Config{
		Report: h.Report, Changed: h.changed, Peers: peers, Interval: h.cfg.Heartbeat,
		TLS: h.cfg.Node.ClientTLS(pki.AnyOf(pki.RoleReplica)),
		OnReply: func(hostapi.HeartbeatReply, time.Duration) error {
			if h.cfg.Heard != nil {
				h.cfg.Heard()
			}
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	}).Run(ctx)
}

// Report is what it tells in a heartbeat.
func (h *Host) Report() hostapi.Heartbeat {
	h.mu.Lock()
	defer h.mu.Unlock()
	hb := hostapi.Heartbeat{
		HostID: h.cfg.ID, Address: h.listener.Addr().String(), BootID: h.boot, StartedAt: h.cfg.Began, Ready: true,
		Capacity: hostapi.Capacity{
			CPUs: 64, MemoryMB: h.cfg.MemoryMB, ReservedMB: h.reserved, Slots: h.cfg.MemoryMB / (SandboxMB + OverheadMB), SlotsUsed: len(h.boxes),
			DiskFreeBytes: 1<<40 - int64(len(h.boxes))<<20, OverheadMBPerBox: OverheadMB,
		},
		Versions:  hostapi.Versions{Hostd: "simulated", Engine: "none", Kernel: "none"},
		Templates: h.cfg.Templates,
		Boxes:     make([]hostapi.BoxState, 0, len(h.boxes)),
	}
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		b := h.boxes[id]
		hb.Boxes = append(hb.Boxes, hostapi.BoxState{ID: id, Generation: b.generation, Status: hostapi.StatusRunning, Seq: 1, Persistent: new(false)})
	}
	return hb
}

// ServeHTTP answers the routes that the simulated work needs.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, ok := pki.PeerIdentity(r.TLS); !ok || id.Role != pki.RoleReplica {
		answer(w, http.StatusForbidden, &hostapi.Error{Code: hostapi.CodeUnauthorized, Message: "not a replica"})
		return
	}
	id, isBox := strings.CutPrefix(r.URL.Path, hostapi.PathBoxes+"/")
	switch {
	case isBox && r.Method == http.MethodPut:
		var spec hostapi.BoxSpec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			answer(w, http.StatusBadRequest, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
			return
		}
		h.put(w, id, spec)
	case isBox && r.Method == http.MethodGet:
		h.mu.Lock()
		b, ok := h.boxes[id]
		h.mu.Unlock()
		if !ok {
			answer(w, http.StatusNotFound, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"})
			return
		}
		answer(w, http.StatusOK, b.show(id))
	case isBox && r.Method == http.MethodDelete:
		h.remove(id)
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == hostapi.PathUsage:
		h.serveUsage(w, r)
	default:
		answer(w, http.StatusNotFound, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "not simulated"})
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

func (b box) show(id string) hostapi.Box {
	return hostapi.Box{
		ID: id, Generation: b.generation, Status: hostapi.StatusRunning, Seq: 1, Template: b.template, CPU: b.cpu, MemoryMB: b.memoryMB, DiskMB: SandboxDiskMB,
		CreatedAt: b.created, StartedAt: b.created, Boot: hostapi.BootRestore,
	}
}

func (h *Host) put(w http.ResponseWriter, id string, spec hostapi.BoxSpec) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, there := h.boxes[id]
	if !there {
		if h.reserved+SandboxMB+OverheadMB > h.cfg.MemoryMB {
			answer(w, http.StatusInsufficientStorage, &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "insufficient host memory for sandbox"})
			return
		}
		b = box{generation: spec.Generation, template: spec.Template, workspace: spec.WorkspaceID, cpu: 1, memoryMB: SandboxMB, created: time.Now()}
		h.boxes[id] = b
		h.reserved += SandboxMB + OverheadMB
		h.happened(id, b, hostapi.EventRunning)
	}
	answer(w, http.StatusOK, b.show(id))
}

func (h *Host) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b, ok := h.boxes[id]; ok {
		delete(h.boxes, id)
		h.reserved -= SandboxMB + OverheadMB
		h.happened(id, b, hostapi.EventDeleted)
	}
}

// happened records an event, and has the next heartbeat sent soon. The caller holds
// the lock.
func (h *Host) happened(id string, b box, t hostapi.EventType) {
	if h.cfg.Events {
		h.seq++
		h.events = append(h.events, hostapi.Event{
			Seq: h.seq, Time: time.Now().UTC().Truncate(time.Millisecond), SandboxID: id, WorkspaceID: b.workspace, Template: b.template, HostID: h.cfg.ID,
			Type: t, Code: t.Code(), Message: "simulated",
		})
		if len(h.events) > maxEvents {
			h.events = slices.Delete(h.events, 0, len(h.events)-maxEvents)
		}
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// maxEvents bounds the events that a host keeps for replicas that are away.
const maxEvents = 10_000

// EventsAfter returns what a replica lacks.
func (h *Host) EventsAfter(seq uint64) hostapi.EventBatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	batch := hostapi.EventBatch{HostID: h.cfg.ID, First: h.seq + 1}
	if len(h.events) > 0 {
		batch.First = h.events[0].Seq
	}
	i, _ := slices.BinarySearchFunc(h.events, seq+1, func(e hostapi.Event, s uint64) int { return int(e.Seq) - int(s) })
	batch.Events = slices.Clone(h.events[i:min(len(h.events), i+500)])
	return batch
}

// serveUsage hands out what the boxes have used since the last batch that was written
// down.
func (h *Host) serveUsage(w http.ResponseWriter, r *http.Request) {
	now, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("now"))
	sequence, err2 := strconv.ParseUint(r.URL.Query().Get("sequence"), 10, 64)
	if err := errors.Join(err, err2); err != nil {
		answer(w, http.StatusBadRequest, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.usage != nil && r.URL.Query().Get("epoch") == h.boot && sequence >= h.usage.Sequence {
		h.usage = nil
	}
	if took := now.Sub(h.counted); h.usage == nil && took > time.Second && len(h.boxes) > 0 {
		h.batches++
		h.usage = &hostapi.UsageBatch{Epoch: h.boot, Sequence: h.batches, From: h.counted, To: now}
		for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
			ms := min(took, now.Sub(h.boxes[id].created)).Milliseconds()
			h.usage.Boxes = append(h.usage.Boxes, hostapi.BoxUsage{ID: id, RunMS: max(0, ms), MemoryMS: max(0, ms), DiskMS: max(0, ms), CPUMS: max(0, ms/10)})
		}
		h.counted = now
	}
	if h.usage == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, http.StatusOK, h.usage)
}
