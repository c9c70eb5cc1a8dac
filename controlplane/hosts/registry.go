// Package hosts is what the leader knows of the host daemons: a session each,
// fed by heartbeats and kept in memory alone, the memory that placements have
// reserved, and clients to call them with. Only conclusions (a host is up, a
// host is lost) reach the control store, and only when they change.
package hosts

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ErrNotLeading is returned while this replica does not lead: it knows no hosts.
var ErrNotLeading = errors.New("not leading")

// Config is what a Registry works with.
type Config struct {
	Store    *raftstore.Store
	Clients  *Clients
	Interval time.Duration // between a host's heartbeats
	Lease    time.Duration // unheard this long, a host is lost
	Clock    func() time.Time
	// Leads reports whether this replica still leads in a term, as far as it
	// knows; nil: until it resigns.
	Leads  func(term uint64) bool
	Logger *slog.Logger
}

// Registry holds the sessions of one leadership.
type Registry struct {
	cfg Config

	mu       sync.Mutex
	leading  bool
	term     uint64
	since    time.Time     // of this leadership, or of the end of a stall in it
	looked   time.Time     // when Overdue was asked last
	resigned chan struct{} // closed at its end; nil outside of one
	sessions map[string]*session
	reserved map[string]reservation // by sandbox id
	trouble  map[string]trouble     // of hosts whose creates fail, by agent id
	changed  chan struct{}          // closed at the next heartbeat
}

// trouble is a host's that failed creates one after the other.
type trouble struct {
	failures int
	until    time.Time // other hosts are preferred
}

type session struct {
	heartbeat hostapi.Heartbeat
	lastSeen  time.Time
	sequence  uint64        // of the last heartbeat in this boot
	lost      chan struct{} // closed when the host is lost or removed
}

// reservation is memory given to a box that its host has not reported yet.
type reservation struct {
	hostID     string
	generation uint64
	needMB     int
}

// NewRegistry makes a registry that does not lead yet.
func NewRegistry(cfg Config) *Registry {
	return &Registry{cfg: cfg, changed: make(chan struct{})}
}

// Lead begins a leadership: every host has a whole lease to be heard.
func (r *Registry) Lead(term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading, r.term, r.since = true, term, r.cfg.Clock()
	r.looked = r.since
	r.trouble = map[string]trouble{}
	r.resigned = make(chan struct{})
	r.sessions, r.reserved = map[string]*session{}, map[string]reservation{}
	r.announce()
}

// Resign ends the leadership. Contexts of WhileUp end.
func (r *Registry) Resign() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading = false
	if r.resigned != nil {
		close(r.resigned)
		r.resigned = nil
	}
	r.sessions, r.reserved = nil, nil
	r.announce()
}

// LeadWhile leads in a term until ctx ends, doing the work of a leader, and
// returns when all of that has ended. It resigns at once: however long the work
// takes to end, hosts find out that another replica leads.
func (r *Registry) LeadWhile(ctx context.Context, term uint64, work ...func(ctx context.Context)) {
	r.Lead(term)
	var all sync.WaitGroup
	all.Go(func() {
		<-ctx.Done()
		r.Resign()
	})
	for _, w := range work {
		all.Go(func() { w(ctx) })
	}
	all.Wait()
}

// leads reports whether heartbeats are this replica's to take. The caller holds
// the lock.
func (r *Registry) leads() bool {
	return r.leading && (r.cfg.Leads == nil || r.cfg.Leads(r.term))
}

func (r *Registry) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed returns a channel that is closed when the next heartbeat arrives or
// the leadership changes.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Session is a copy of what the leader knows of one host.
type Session struct {
	Heartbeat  hostapi.Heartbeat // its slices are shared and must not be changed
	LastSeen   time.Time
	ReservedMB int // placed, and not yet in the heartbeat
}

// Sessions returns every host heard in this leadership, by id.
func (r *Registry) Sessions() map[string]Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]Session, len(r.sessions))
	for id, s := range r.sessions {
		out[id] = Session{Heartbeat: s.heartbeat, LastSeen: s.lastSeen}
	}
	for _, res := range r.reserved {
		if s, ok := out[res.hostID]; ok {
			s.ReservedMB += res.needMB
			out[res.hostID] = s
		}
	}
	return out
}

// ErrUnknownHost is returned for a host that never joined or was removed.
var ErrUnknownHost = errors.New("agent has not joined")

// take notes a heartbeat; an out-of-date one only proves that the host lives.
func (r *Registry) take(hb hostapi.Heartbeat) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads() {
		return ErrNotLeading
	}
	now := r.cfg.Clock()
	s := r.sessions[hb.HostID]
	if s == nil || now.Sub(s.lastSeen) > silence*r.cfg.Interval {
		r.cfg.Clients.HangUp(hb.HostID)
	}
	if s == nil {
		s = &session{lost: make(chan struct{})}
		r.sessions[hb.HostID] = s
	}
	s.lastSeen = now
	if s.heartbeat.BootID == hb.BootID && hb.Sequence <= s.sequence && s.sequence != 0 {
		return nil
	}
	s.heartbeat, s.sequence = hb, hb.Sequence
	for _, b := range hb.Boxes {
		// The host counts this box itself now.
		if res, ok := r.reserved[b.ID]; ok && res.hostID == hb.HostID && b.Generation >= res.generation {
			delete(r.reserved, b.ID)
		}
	}
	r.announce()
	return nil
}

// silence is after how many intervals without a heartbeat a host is dialled anew: a
// connection of before may be dead, and the next call on it would learn that alone,
// when it may have been carried out.
const silence = 3

// Overdue lists the agents, of those that the store has as up, that have been
// unheard for a lease, and ends their sessions. It is to be asked often: a gap
// between two questions is one in which this replica heard nobody, because it
// was stopped or starved, and every host is given a whole lease again.
func (r *Registry) Overdue(agents []*record.Host) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return nil
	}
	now := r.cfg.Clock()
	if now.Sub(r.looked) > r.cfg.Lease/stalls {
		r.since = now
	}
	r.looked = now
	var out []string
	for _, a := range agents {
		last := r.since
		s := r.sessions[a.ID]
		if s != nil && s.lastSeen.After(last) {
			last = s.lastSeen
		}
		if now.Sub(last) < r.cfg.Lease {
			continue
		}
		if s != nil {
			close(s.lost)
			delete(r.sessions, a.ID)
			r.announce()
		}
		if a.State == record.HostUp {
			out = append(out, a.ID)
		}
	}
	return out
}

// stalls is the part of a lease by which Overdue may be late.
const stalls = 4

// Forget ends the session of an agent that was removed.
func (r *Registry) Forget(hostID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[hostID]; s != nil {
		close(s.lost)
		delete(r.sessions, hostID)
		r.announce()
	}
	r.cfg.Clients.HangUp(hostID)
}

// Warming reports whether a host that the store has as up has yet to be heard
// by this new leader, so that "no host" would be a guess.
func (r *Registry) Warming(view raftstore.Reader) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading || r.cfg.Clock().Sub(r.since) >= r.cfg.Lease {
		return false
	}
	return slices.ContainsFunc(raftstore.All(view, record.Hosts), func(a *record.Host) bool {
		s := r.sessions[a.ID]
		return a.State == record.HostUp && (s == nil || !s.heartbeat.Ready)
	})
}

// Place chooses a host and reserves its memory for the sandbox in one step, so
// that two placements at once do not both take the last of it. It fails with a
// *placement.Error or ErrNotLeading. An earlier reservation of the sandbox is
// replaced.
func (r *Registry) Place(view raftstore.Reader, sandboxID string, generation uint64, req placement.Request) (placement.Choice, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return placement.Choice{}, ErrNotLeading
	}
	before, had := r.reserved[sandboxID]
	delete(r.reserved, sandboxID)
	choice, err := placement.Choose(r.candidates(view), req)
	if err != nil {
		if had {
			r.reserved[sandboxID] = before
		}
		return placement.Choice{}, err
	}
	r.reserved[sandboxID] = reservation{hostID: choice.HostID, generation: generation, needMB: choice.NeedMB}
	return choice, nil
}

// Choosable reports what Place would say, without reserving anything.
func (r *Registry) Choosable(view raftstore.Reader, req placement.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return ErrNotLeading
	}
	_, err := placement.Choose(r.candidates(view), req)
	return err
}

// PlaceVolume chooses a host for a new volume. It fails with a
// *placement.Error or ErrNotLeading.
func (r *Registry) PlaceVolume(view raftstore.Reader, sizeMB int, exclude []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return "", ErrNotLeading
	}
	return placement.ChooseForVolume(r.candidates(view), sizeMB, exclude)
}

// Reserve holds memory for a sandbox that a leader before this one placed; the
// box may exist already, unreported.
func (r *Registry) Reserve(s *record.Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sess := r.sessions[s.HostID]
	if !r.leading || sess == nil {
		return
	}
	if _, had := r.reserved[s.ID]; had || slices.ContainsFunc(sess.heartbeat.Boxes, func(b hostapi.BoxState) bool { return b.ID == s.ID }) {
		return
	}
	r.reserved[s.ID] = reservation{hostID: s.HostID, generation: s.Generation, needMB: s.MemoryMB + sess.heartbeat.Capacity.OverheadMBPerBox}
}

// Release gives a reservation back: the host refused, or the sandbox is gone.
func (r *Registry) Release(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reserved, sandboxID)
}

// maxDiskStalledMS is how long a host's disk may work on one write before nothing
// is placed there.
const maxDiskStalledMS = 2000

// candidates are the hosts as placement sees them.
func (r *Registry) candidates(view raftstore.Reader) []placement.Host {
	held, count := map[string]int{}, map[string]int{}
	for _, res := range r.reserved {
		held[res.hostID] += res.needMB
		count[res.hostID]++
	}
	now := r.cfg.Clock()
	var out []placement.Host
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		agent, ok := raftstore.Get(view, record.Hosts, id)
		if !ok {
			continue
		}
		hb := s.heartbeat
		h := placement.Host{
			ID:         id,
			Accepting:  hb.Ready && !hb.Draining && !agent.Draining && hb.Capacity.DiskStalledMS < maxDiskStalledMS && now.Sub(s.lastSeen) < r.cfg.Lease,
			FreeMB:     hb.Capacity.MemoryMB - hb.Capacity.ReservedMB - held[id],
			FreeSlots:  hb.Capacity.Slots - hb.Capacity.SlotsUsed - count[id],
			OverheadMB: hb.Capacity.OverheadMBPerBox,
			Boxes:      len(hb.Boxes) + count[id],
			Store:      hb.Store,
			DiskFreeMB: hb.Capacity.DiskFreeBytes >> 20,
			Troubled:   now.Before(r.trouble[id].until),
			Templates:  make(map[string]placement.Template, len(hb.Templates)),
			Builds:     make(map[string]placement.Template, len(hb.Templates)),
		}
		for _, t := range hb.Templates {
			of := placement.Template{Ready: t.Status == "ready", CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB}
			h.Templates[t.Name] = of
			if of.Ready {
				h.Builds[t.BuildID] = of
			}
		}
		out = append(out, h)
	}
	return out
}

// WhileUp returns a context that ends with ctx, and also when the host is lost
// or the leadership ends: a flow waits for no answer that is not its to use.
func (r *Registry) WhileUp(ctx context.Context, hostID string) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	resigned := r.resigned
	r.mu.Unlock()
	return r.while(ctx, hostID, resigned)
}

// WhileHeard is WhileUp for what outlives the leadership, such as a command
// that runs: its answer is as good when another replica leads.
func (r *Registry) WhileHeard(ctx context.Context, hostID string) (context.Context, context.CancelFunc) {
	return r.while(ctx, hostID, nil)
}

func (r *Registry) while(ctx context.Context, hostID string, resigned <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	s := r.sessions[hostID]
	r.mu.Unlock()
	if s == nil {
		cancel()
		return ctx, cancel
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.lost:
			cancel()
		case <-resigned:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel()
		watch.Wait()
	}
}

// How long a host is passed over whose creates fail: a broken host is empty, and
// would be given every one of them.
const (
	firstTrouble = 2 * time.Second
	lastTrouble  = time.Minute
)

// created notes how a create went on a host.
func (r *Registry) created(hostID string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.leading:
	case err == nil:
		delete(r.trouble, hostID)
	case hostsFault(err):
		t := r.trouble[hostID]
		t.until = r.cfg.Clock().Add(min(firstTrouble<<min(t.failures, 10), lastTrouble))
		t.failures++
		r.trouble[hostID] = t
	}
}

// hostsFault reports whether a create failed for what is wrong with its host,
// and not with what was asked for or with the room that there is.
func hostsFault(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	return Unreachable(err) || hostapi.HasCode(err, hostapi.CodeInternal) || hostapi.HasCode(err, hostapi.CodeGuest)
}
