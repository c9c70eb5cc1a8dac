// Package hosts contains what the leader knows of the host daemons: one session per
// host, filled by heartbeats and only in memory, the memory that placements have
// reserved, and clients. Only conclusions (a host is up, a host is lost) are
// committed to the control store, when they change.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ErrNotLeading is returned while this replica does not lead, because it knows no
// hosts.
var ErrNotLeading = errors.New("not leading")

// Config configures a Registry.
type Config struct {
	Store    *raftstore.Store
	Clients  *Clients
	Interval time.Duration // between a host's heartbeats
	Lease    time.Duration // a host that is silent for this long is lost
	Clock    func() time.Time
	// Leads reports whether this replica still leads in a term, as far as it knows.
	// nil: it leads until Resign.
	Leads  func(term uint64) bool
	Logger *slog.Logger
}

// Registry contains the sessions of one leadership.
type Registry struct {
	cfg Config

	mu       sync.Mutex
	leading  bool
	term     uint64
	since    time.Time     // start of this leadership, or end of a stall in it
	looked   time.Time     // last call of Overdue
	resigned chan struct{} // closed when the leadership ends; nil outside of one
	sessions map[string]*session
	reserved map[string]reservation // by sandbox id
	trouble  map[string]trouble     // by host id: hosts whose creates fail
	changed  chan struct{}          // closed at the next heartbeat
	shelves  []*shelf               // every set of templates that some session has
	version  uint64                 // grows with each heartbeat
	room     []placement.Host       // of candidates, used again
}

// trouble records consecutive failures of creates on a host.
type trouble struct {
	failures int
	until    time.Time // until then other hosts are preferred
}

type session struct {
	heartbeat hostapi.Heartbeat
	lastSeen  time.Time
	sequence  uint64        // of the last heartbeat in this boot
	lost      chan struct{} // closed when the host is lost or removed
	shelf     *shelf        // of its templates
	boxes     uint64        // Registry.version when its boxes changed
}

// reservation is memory for a box that its host has not reported yet.
type reservation struct {
	hostID     string
	generation uint64
	needMB     int
}

// NewRegistry returns a registry that does not lead yet.
func NewRegistry(cfg Config) *Registry {
	return &Registry{cfg: cfg, changed: make(chan struct{})}
}

// Lead begins a leadership. Every host has a whole lease to send its first
// heartbeat.
func (r *Registry) Lead(term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading, r.term, r.since = true, term, r.cfg.Clock()
	r.looked = r.since
	r.trouble = map[string]trouble{}
	r.resigned = make(chan struct{})
	r.sessions, r.reserved, r.shelves = map[string]*session{}, map[string]reservation{}, nil
	r.announce()
}

// Resign ends the leadership, and with it the contexts of WhileUp.
func (r *Registry) Resign() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading = false
	if r.resigned != nil {
		close(r.resigned)
		r.resigned = nil
	}
	r.sessions, r.reserved, r.shelves, r.room = nil, nil, nil, nil
	r.announce()
}

// LeadWhile leads in a term until ctx ends, does the leader's work, and returns when
// all of it has ended. When ctx ends it resigns at once, so that hosts look for the
// next leader however long the work takes to end.
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

// leads reports whether this replica may accept heartbeats. The caller holds the
// lock.
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

// Session is a copy of a host's session.
type Session struct {
	Heartbeat  hostapi.Heartbeat // its slices are shared and must not be changed
	LastSeen   time.Time
	ReservedMB int // placed, and not yet in the heartbeat
	// BoxesVersion changes whenever the heartbeat's boxes may have. Values of two hosts,
	// or of two leaderships, do not compare.
	BoxesVersion uint64
	// Shelf is the same for hosts whose templates differ in nothing but when they came
	// there and what they take.
	Shelf uint64
}

// Sessions returns the sessions of all hosts heard in this leadership, by host id.
func (r *Registry) Sessions() map[string]Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]Session, len(r.sessions))
	for id, s := range r.sessions {
		out[id] = s.show()
	}
	for _, res := range r.reserved {
		if s, ok := out[res.hostID]; ok {
			s.ReservedMB += res.needMB
			out[res.hostID] = s
		}
	}
	return out
}

func (s *session) show() Session {
	return Session{Heartbeat: s.heartbeat, LastSeen: s.lastSeen, BoxesVersion: s.boxes, Shelf: s.shelf.id}
}

// Session returns the session of one host, if it was heard in this leadership. It does not
// tell what is reserved.
func (r *Registry) Session(hostID string) (Session, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[hostID]
	if s == nil {
		return Session{}, false
	}
	return s.show(), true
}

// ErrUnknownHost is returned for a host that never joined or was removed.
var ErrUnknownHost = errors.New("agent has not joined")

// take records a heartbeat. One that arrives out of order only proves that the host
// lives.
func (r *Registry) take(hb hostapi.Heartbeat, part *hostapi.HeartbeatPart) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads() {
		return ErrNotLeading
	}
	now := r.cfg.Clock()
	s := r.sessions[hb.HostID]
	if part != nil {
		if s == nil || s.heartbeat.BootID != hb.BootID || s.sequence != part.Before {
			return errGap
		}
		var err error
		if hb, err = part.Whole(s.heartbeat); err != nil {
			return fmt.Errorf("%w: %w", errBadHeartbeat, err)
		}
	}
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
	r.note(s, hb, part)
	if part != nil && slices.Contains(part.Same, hostapi.ListBoxes) {
		r.announce()
		return nil
	}
	for _, b := range hb.Boxes {
		// The host's own numbers include this box now.
		if res, ok := r.reserved[b.ID]; ok && res.hostID == hb.HostID && b.Generation >= res.generation {
			delete(r.reserved, b.ID)
		}
	}
	r.announce()
	return nil
}

// note replaces a session's heartbeat and notes what has changed.
func (r *Registry) note(s *session, hb hostapi.Heartbeat, part *hostapi.HeartbeatPart) {
	before := s.heartbeat
	s.heartbeat, s.sequence = hb, hb.Sequence
	r.version++
	if part == nil || !slices.Contains(part.Same, hostapi.ListBoxes) || before.Ready != hb.Ready {
		s.boxes = r.version
	}
	if s.shelf != nil && (part != nil && slices.Contains(part.Same, hostapi.ListTemplates) || slices.Equal(before.Templates, hb.Templates)) {
		s.heartbeat.Templates = before.Templates // the other is garbage now
		return
	}
	r.leave(s.shelf)
	s.shelf = r.shelve(hb.Templates)
	if slices.Equal(s.shelf.of, hb.Templates) {
		s.heartbeat.Templates = s.shelf.of // one list for all that have the same
	}
}

// drop ends the session of a host.
func (r *Registry) drop(hostID string, s *session) {
	close(s.lost)
	delete(r.sessions, hostID)
	r.leave(s.shelf)
	r.announce()
}

// silence is the number of intervals without a heartbeat after which a host is
// dialled again. Its old connections may be dead, and a call on a dead one has an
// unknown outcome.
const silence = 3

// Overdue returns the hosts that the store has as up and that have been silent for a
// lease, and ends their sessions. It must be called often: if there is a gap between
// two calls, this replica was stopped or starved and heard nobody, so every host
// gets a whole lease again.
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
			r.drop(a.ID, s)
		}
		if a.State == record.HostUp {
			out = append(out, a.ID)
		}
	}
	return out
}

// stalls: a gap longer than a lease divided by this counts as a stall.
const stalls = 4

// Forget ends the session of a removed host.
func (r *Registry) Forget(hostID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[hostID]; s != nil {
		r.drop(hostID, s)
	}
	r.cfg.Clients.HangUp(hostID)
}

// Warming reports whether this leader is new and has not heard all hosts that the
// store has as up, so that placement might wrongly find no host.
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

// Place chooses a host and reserves memory for the sandbox in one step, so that
// simultaneous placements do not use the same memory. It replaces an earlier
// reservation of the sandbox. The error is a *placement.Error or ErrNotLeading.
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

// Choosable returns the error that Place would return, without reserving anything.
func (r *Registry) Choosable(view raftstore.Reader, req placement.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return ErrNotLeading
	}
	_, err := placement.Choose(r.candidates(view), req)
	return err
}

// PlaceVolume chooses a host for a new volume. The error is a *placement.Error or
// ErrNotLeading.
func (r *Registry) PlaceVolume(view raftstore.Reader, sizeMB int, exclude []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return "", ErrNotLeading
	}
	return placement.ChooseForVolume(r.candidates(view), sizeMB, exclude)
}

// Reserve reserves memory for a sandbox that an earlier leader placed. Its box may
// exist but not be reported yet.
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

// Release removes a reservation, because the host refused or the sandbox is gone.
func (r *Registry) Release(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reserved, sandboxID)
}

// Rooms returns what placement knows of the hosts that this leader has heard, except for
// their templates.
func (r *Registry) Rooms(view raftstore.Reader) []placement.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return nil
	}
	out := slices.Clone(r.candidates(view))
	for i := range out {
		out[i].Templates, out[i].Builds = nil, nil
	}
	return out
}

// MaxDiskStalledMS is how long a host's disk may take for one write before nothing
// is placed there.
const MaxDiskStalledMS = 2000

// candidates converts the sessions for placement. What it returns is valid until its
// next call.
func (r *Registry) candidates(view raftstore.Reader) []placement.Host {
	held, count := map[string]int{}, map[string]int{}
	for _, res := range r.reserved {
		held[res.hostID] += res.needMB
		count[res.hostID]++
	}
	now := r.cfg.Clock()
	out := r.room[:0]
	for _, agent := range raftstore.All(view, record.Hosts) {
		s := r.sessions[agent.ID]
		if s == nil {
			continue
		}
		hb := &s.heartbeat
		out = append(out, placement.Host{
			ID:         agent.ID,
			Accepting:  hb.Ready && !hb.Draining && !agent.Draining && hb.Capacity.DiskStalledMS < MaxDiskStalledMS && now.Sub(s.lastSeen) < r.cfg.Lease,
			MemoryMB:   hb.Capacity.MemoryMB,
			FreeMB:     hb.Capacity.MemoryMB - hb.Capacity.ReservedMB - held[agent.ID],
			FreeSlots:  hb.Capacity.Slots - hb.Capacity.SlotsUsed - count[agent.ID],
			OverheadMB: hb.Capacity.OverheadMBPerBox,
			Boxes:      len(hb.Boxes) + count[agent.ID],
			Store:      hb.Store,
			DiskFreeMB: hb.Capacity.DiskFreeBytes >> 20,
			Troubled:   now.Before(r.trouble[agent.ID].until),
			Templates:  s.shelf.templates,
			Builds:     s.shelf.builds,
		})
	}
	r.room = out
	return out
}

// WhileUp returns a context that also ends when the host is lost or the leadership
// ends, so that a flow does not wait for an answer that it cannot use.
func (r *Registry) WhileUp(ctx context.Context, hostID string) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	resigned := r.resigned
	r.mu.Unlock()
	return r.while(ctx, hostID, resigned)
}

// WhileHeard is WhileUp for calls that outlive the leadership, such as commands,
// whose answers are useful whoever leads.
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

// How long a host whose creates fail is avoided. Otherwise a broken host, being
// empty, would be given every create.
const (
	firstTrouble = 2 * time.Second
	lastTrouble  = time.Minute
)

// created records whether a create on a host failed.
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

// hostsFault reports whether a create failed because of its host, and not because of
// the request or a lack of memory.
func hostsFault(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	return Unreachable(err) || hostapi.HasCode(err, hostapi.CodeInternal) || hostapi.HasCode(err, hostapi.CodeGuest)
}
