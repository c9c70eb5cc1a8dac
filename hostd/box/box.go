// Package box keeps the boxes of a host. A box is one sandbox: its VM, disk,
// slot and cgroup, and the transitions between its states. A transition holds
// the box's operation lock; a second lock, held for moments only, guards what
// readers see.
//
// The ledger knows a box before anything is made for it, and forgets it only
// when nothing of it is left. However the daemon ended, hostd/reconcile can
// tell at the next start what belongs to which box.
package box

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Config bounds a host's boxes.
type Config struct {
	Paths Paths
	// MemoryMB is what all boxes together may reserve: each its whole RAM and
	// OverheadMB for its engine, whether they are touched or not.
	MemoryMB   int
	OverheadMB int
	// DiskHeadroomMB must stay free on the file system of Paths.Data.
	DiskHeadroomMB int
	// DiskOvercommit is by how much more boxes may be promised to write than there
	// is room for; 1 or less: by nothing.
	DiskOvercommit int
	// KeepDisks is how long the disks stay that DeleteKeepingDisk keeps; 0: they do not.
	KeepDisks time.Duration
	// OverlayPool is how many overlays are cloned ahead for each template.
	OverlayPool int
	// CreateTimeout bounds a create.
	CreateTimeout time.Duration
	// MaxExecs, MaxTunnels, MaxUses and OutputBudget bound what is done in guests
	// (guestio.Config).
	MaxExecs     int
	MaxTunnels   int
	MaxUses      int
	OutputBudget int64
	// GatewayMAC and Nameservers are told to each guest.
	GatewayMAC  net.HardwareAddr
	Nameservers []string
	// DatabaseCA has PEM certificates that guests trust beside their own; nil: none.
	DatabaseCA []byte
	// Engine is noted in the ledger and with captures: a state is restored by
	// the engine that saved it.
	Engine string
}

// Deps are the parts that boxes are made of. Now and Random have defaults.
type Deps struct {
	Ledger    *ledger.Ledger
	Slots     Slots
	Engine    Engine
	Cgroups   Cgroups
	Templates Templates
	Metrics   *Metrics
	Log       *slog.Logger
	// Events, Volumes and Remote may be nil: nobody listens, there are no
	// volumes, no snapshot store.
	Events  Events
	Volumes Volumes
	Remote  capture.Remote
	Now     func() time.Time
	Random  io.Reader
	// Leased reports whether the host may run what is exclusive; nil: it may.
	Leased func() bool
	// Guarded reports whether the guard of the host has ended a box's last VMM; nil:
	// there is none.
	Guarded func(id string) bool
	// Promised, where it is not nil, is what others may still take of the disk, in
	// bytes.
	Promised func() int64
	// DiskFree returns the bytes free for an unprivileged user under a path.
	DiskFree func(path string) (int64, error)
	// DiskSize returns the bytes that such a user could have under a path at all.
	DiskSize func(path string) (int64, error)
	// CloneDisk makes dst a copy of the disk src. Default: image.CloneOverlay.
	CloneDisk func(src, dst string) error
}

// Host owns every box of this host.
type Host struct {
	cfg       Config
	paths     Paths
	ledger    *ledger.Ledger
	slots     Slots
	engine    Engine
	cgroups   Cgroups
	templates Templates
	volumes   Volumes
	events    Events
	guests    *guestio.Guests
	overlays  *capture.Overlays
	captures  *capture.Local
	memory    memory
	disk      disk
	metrics   *Metrics
	log       *slog.Logger
	now       func() time.Time
	leased    func() bool
	guarded   func(id string) bool
	clone     func(src, dst string) error

	changed chan struct{} // capacity 1: something in List or Capacity changed
	watch   chan struct{} // as changed
	booting *fairQueue    // bootsAtOnce: who is booted again
	asking  chan struct{} // capacity asksAtOnce: whose guest is asked whether it runs

	work *background.Group // creates, deletes, watches, the sweep

	mu      sync.Mutex
	phase   phase
	boxes   map[string]*box
	burying map[string][]uint64 // generations whose tombstones are being written
}

// New returns a host without boxes. It serves no Put until Open.
func New(cfg Config, d Deps) *Host {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.DiskFree == nil {
		d.DiskFree = diskFree
	}
	if d.DiskSize == nil {
		d.DiskSize = diskSize
	}
	if d.CloneDisk == nil {
		d.CloneDisk = image.CloneOverlay
	}
	if d.Events == nil {
		d.Events = noEvents{}
	}
	if d.Leased == nil {
		d.Leased = func() bool { return true }
	}
	if d.Guarded == nil {
		d.Guarded = func(string) bool { return false }
	}
	h := &Host{
		leased: d.Leased, guarded: d.Guarded, volumes: d.Volumes, events: d.Events,
		cfg: cfg, paths: cfg.Paths, ledger: d.Ledger, slots: d.Slots, engine: d.Engine, cgroups: d.Cgroups,
		templates: d.Templates, metrics: d.Metrics, log: d.Log, now: d.Now, clone: d.CloneDisk,
		overlays: capture.NewOverlays(cfg.Paths.Overlays(), cfg.OverlayPool, d.Log),
		changed:  make(chan struct{}, 1),
		watch:    make(chan struct{}, 1),
		booting:  newFairQueue(bootsAtOnce),
		asking:   make(chan struct{}, asksAtOnce),
		memory:   memory{limit: cfg.MemoryMB},
		disk:     newDisk(&cfg, &d),
		boxes:    map[string]*box{},
		work:     background.New(),
		burying:  map[string][]uint64{},
	}
	h.guests = guestio.New(guestio.Config{
		Dial: d.Slots.Dial, MaxExecs: cfg.MaxExecs, MaxTunnels: cfg.MaxTunnels, MaxUses: cfg.MaxUses, OutputBudget: cfg.OutputBudget, GatewayMAC: cfg.GatewayMAC, Nameservers: cfg.Nameservers, Authority: cfg.DatabaseCA,
		Emit: d.Events.Emit, Metrics: d.Metrics.guests, Log: d.Log, Now: d.Now, Random: d.Random,
	}, h)
	h.captures = capture.NewLocal(capture.Config{
		Dir: cfg.Paths.Captures(), Engine: cfg.Engine, Snapshot: h.snapshotInto, Detach: d.Engine.Detach, Remote: d.Remote, Ready: h.Ready, Changed: h.notify,
		Took: func(took time.Duration, err error) { d.Metrics.transition("capture", took, err) }, Log: d.Log, Now: d.Now,
	})
	h.disk.makeRoom = h.captures.MakeRoom
	h.work.Go(h.sweep)
	h.work.Go(func() { h.overlays.Run(h.work.Life()) })
	return h
}

// phase is where the host is in its life.
type phase int

const (
	starting phase = iota // what is in the map is not all there is: nothing is served
	serving
	draining // everything but Put is served
)

// Open begins to serve: every box of the ledger has been recovered.
func (h *Host) Open() { h.enterPhase(serving) }

// Drain refuses every Put from now on.
func (h *Host) Drain() { h.enterPhase(draining) }

func (h *Host) enterPhase(p phase) {
	h.mu.Lock()
	if p == serving || h.phase != starting {
		h.phase = p
	}
	h.mu.Unlock()
	h.notify()
}

// Ready reports whether List is complete.
func (h *Host) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase != starting
}

// Close cuts off the creates that are under way, which then clean up after
// themselves, and waits for every goroutine. VMs live on.
func (h *Host) Close() {
	h.Drain()
	h.work.End(background.ErrClosing) // before the waits: a capture may wait for a create
	h.captures.Close()
	h.guests.Close()
	h.work.Wait()
}

// Captures are the captures of this host's boxes.
func (h *Host) Captures() *capture.Local { return h.captures }

// Overlays are the clones that new boxes' disks are made of.
func (h *Host) Overlays() *capture.Overlays { return h.overlays }

// Guests speaks to the boxes' guests.
func (h *Host) Guests() *guestio.Guests { return h.guests }

// Changed receives after a change of something that heartbeats report.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// Watch receives as Changed does, for a part of the host.
func (h *Host) Watch() <-chan struct{} { return h.watch }

// Notify has heartbeats report what another part knows of a box.
func (h *Host) Notify() { h.notifyOne(h.changed) }

func (h *Host) notify() {
	h.notifyOne(h.changed)
	h.notifyOne(h.watch)
}

func (h *Host) notifyOne(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Get returns one box.
func (h *Host) Get(id string) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	v, shown := b.view()
	if !shown {
		return hostapi.Box{}, hosterr.ErrNotFound
	}
	return v, nil
}

// List returns every box, ordered by id.
func (h *Host) List() []hostapi.Box {
	boxes := h.all()
	out := make([]hostapi.Box, 0, len(boxes))
	for _, b := range boxes {
		if v, shown := b.view(); shown {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b hostapi.Box) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Brief is the part of a box that a meter looks at.
type Brief struct {
	ID        string
	Status    hostapi.Status
	StartedAt time.Time
}

// Briefs returns the boxes that List does, in any order.
func (h *Host) Briefs() []Brief {
	boxes := h.all()
	out := make([]Brief, 0, len(boxes))
	for _, b := range boxes {
		b.mu.Lock()
		if b.removal != removalForget {
			out = append(out, Brief{ID: b.rec.ID, Status: b.statusLocked(), StartedAt: b.rec.StartedAt})
		}
		b.mu.Unlock()
	}
	return out
}

func (h *Host) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.boxes))
}

// SlotsUsed counts the slots that boxes hold.
func (h *Host) SlotsUsed() int {
	n := 0
	for _, b := range h.all() {
		if b.slotNumber() != ledger.NoSlot {
			n++
		}
	}
	return n
}

// lookup finds a box. Until every record is recovered it answers ErrDraining:
// whether a box is missing is not known before.
func (h *Host) lookup(id string) (*box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[id]
	switch {
	case h.phase == starting:
		return nil, hosterr.ErrDraining
	case b == nil:
		return nil, hosterr.ErrNotFound
	}
	return b, nil
}

// box is one sandbox. Its id and generation never change.
type box struct {
	host       *Host
	id         string
	generation uint64

	// op is held by whoever changes the box: a create from its beginning, then
	// every other transition, a capture, a delete. It is a channel so that waiting for
	// it can end.
	op chan struct{}

	memoryLost bool // the wake before has found that no VM can ever go on from its saved state; op guards it
	refusals   int  // of the wakes before in a row, how often the VMM did not take the saved state; op guards it

	created chan struct{} // closed when the create has ended; createErr is set then
	gone    chan struct{} // closed when nothing of the box is left and the map forgot it

	keeps atomic.Bool // its delete keeps its disk

	admitted *source // what its create was begun with; nil for a recovered box

	line *guestio.Line // who uses its slot

	// writing serializes changes of the record. It is held during the write to
	// disk, and is taken before mu. mu is held for moments only: whoever looks
	// at a box never waits for a disk.
	writing sync.Mutex

	mu         sync.Mutex
	cancel     context.CancelCauseFunc // of the create or the boot that was begun last
	createErr  error
	rec        ledger.Record
	vmm        VMM
	launched   time.Time // when that VMM was started; zero: before the daemon came
	booted     bool      // its guest was booted then, not restored
	net        *Slot     // the record's slot, once this daemon has made sure that it is complete
	waking     *flight   // the wake that is under way
	restarting *flight   // the restart
	deleting   *flight   // the delete
	unreleased bool      // what its last VMM used has not been released yet; see releaseResources
	formerVM   VMM       // that VMM, where it is known
	failing    string    // why the box has failed as soon as that VMM has ended
	answersDue int       // answers of its VMM that are needed until its state is known; see markUncertain
	stillSince time.Time // since when its guest may stand still while its box runs; see markStill
	reserved   int       // MB held in Host.memory for it
	fenced     string    // why its VMM was ended here, if it was
	removal    removal   // removalNone while it is not being removed
	retry      bool      // its removal failed; the sweep tries again
}

// removal is what becomes of the record of a box that is being removed.
type removal int

const (
	removalNone   removal = iota
	removalForget         // a create that failed: the same generation may come again
	removalBury           // a delete: its generation is over
)

func (h *Host) newBox(rec ledger.Record) *box {
	return &box{
		host: h, id: rec.ID, generation: rec.Generation, rec: rec,
		op: make(chan struct{}, 1), created: make(chan struct{}), gone: make(chan struct{}),
		cancel: func(error) {}, line: h.guests.NewLine(rec.WorkspaceID),
	}
}

// acquire takes the operation lock.
func (b *box) acquire(ctx context.Context) error {
	select {
	case b.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *box) release() { <-b.op }

// endedBy notes how the create, or the boot, that begins is cut off.
func (b *box) endedBy(cancel context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel = cancel
}

// cutOff ends the create, or the boot, that is under way.
func (b *box) cutOff(cause error) {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	cancel(cause)
}

func (b *box) slotNumber() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec.Slot
}

// beginRemoval marks the box as being removed. A delete overrides the cleanup
// of a failed create, never the other way round.
func (b *box) beginRemoval(how removal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removal = max(b.removal, how)
}

// commit changes the record on disk and then in memory, where others see it.
// change is called with mu held, and returns false where nothing has to be
// changed any more.
func (b *box) commit(change func(*ledger.Record) bool) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	next := b.rec
	changed := change(&next)
	err := b.rec.State.MayBecome(next.State)
	b.mu.Unlock()
	if !changed || err != nil {
		return err
	}
	if err := b.host.ledger.Put(next); err != nil {
		return err
	}
	b.mu.Lock()
	b.rec = next
	b.mu.Unlock()
	return nil
}

// amend changes the record in memory alone; the next commit writes it to disk.
func (b *box) amend(change func(*ledger.Record)) {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.rec)
}

// DiskStalled is for how long a write to the ledger has been under way, 0 if
// none is.
func (h *Host) DiskStalled() time.Duration { return h.ledger.Stalled() }
