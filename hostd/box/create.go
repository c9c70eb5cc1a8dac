package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// The stages of a create, as metrics and a box's Stages name them.
const (
	stageAdmission = "admission"
	stageSlot      = "slot"
	stageIntent    = "intent" // the record on disk
	stageFiles     = "files"  // disk and configuration, beside cgroup and vmm_start
	stageCgroup    = "cgroup"
	stageVMMStart  = "vmm_start"
	stageRestore   = "restore"
	stageBoot      = "boot"       // cold: define the VM and start its kernel
	stageGuestBoot = "guest_boot" // cold: until the guest's agent answers
	stageResume    = "resume"
	stageIdentity  = "identity"
	stageCommit    = "commit"
)

// create runs under the box's operation lock, and ends with the box running,
// or with nothing left of it.
func (h *Host) create(ctx context.Context, b *box, tpl Template, clock *stopwatch) {
	defer b.release()
	err := h.build(ctx, b, tpl, clock)
	if err == nil {
		h.metrics.created(string(b.rec.Boot), "ok")
		h.log.Info("sandbox is running", "event", "sandbox.running", "sandbox_id", b.id, "generation", b.generation,
			"template", tpl.Name, "boot", b.rec.Boot, "boot_ms", b.rec.Took.Milliseconds(), "own_ms", b.rec.Own.Milliseconds())
		h.watch(b)
		close(b.created)
		h.notify()
		return
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	switch {
	case errors.Is(err, errClosing):
		err = fmt.Errorf("%w: %w", ErrDraining, err)
	case errors.Is(err, errDeleted):
		err = fmt.Errorf("%w: %w", ErrStaleGeneration, err)
	default:
		err = asNoDisk(err)
	}
	b.leave(leaveForget)
	h.metrics.created(string(b.rec.Boot), "error")
	h.log.Warn("create failed", "sandbox_id", b.id, "generation", b.generation, "template", tpl.Name, "error", err)
	b.mu.Lock()
	b.createErr = fmt.Errorf("create sandbox: %w", err)
	b.mu.Unlock()
	// The caller is told once the cleaning up was tried, so that it finds what
	// this box had free again. Not under ctx, which may have ended.
	if err := h.takeApart(b); err != nil {
		h.scheduleRetry(b, err)
	}
	close(b.created)
	h.notify()
}

// build makes everything that a box has. On an error the caller takes apart
// what there is: each resource can be found by the id and by the record.
func (h *Host) build(ctx context.Context, b *box, tpl Template, clock *stopwatch) error {
	defer func() { h.metrics.stages(clock.stages) }()
	slot, err := h.slots.Take(ctx)
	if err != nil {
		return fmt.Errorf("take a network slot: %w", err)
	}
	clock.done(stageSlot, false)

	if err := h.commit(b, func(r *ledger.Record) bool { r.Slot = slot.Number; return true }); err != nil {
		// Not on disk, so the slot goes back without the record's help. (A crash
		// here leaves a slot without a record, which is a free one.)
		h.slots.Return(slot.Number)
		return err
	}
	clock.done(stageIntent, false)

	var identity *guestapi.Identity
	process, err := h.prepare(ctx, b, tpl, slot, clock, &identity)
	if err != nil {
		return err
	}
	// From here the VMM's death ends the create at once, not at a time-out.
	ctx, died := context.WithCancelCause(ctx)
	defer died(nil)
	stop := afterDone(ctx, process.Done(), func() { died(fmt.Errorf("VMM died: %s", exitText(process))) })
	defer stop()

	if err := h.start(ctx, b, tpl, slot, process, clock); err != nil {
		return withCause(ctx, err)
	}
	if err := h.identify(ctx, slot.Number, identity); err != nil {
		return withCause(ctx, err)
	}
	clock.done(stageIdentity, false)

	err = h.commit(b, func(r *ledger.Record) bool {
		r.State = ledger.Running
		r.StartedAt = h.now().UTC()
		r.VMM = ledger.VMM{PID: process.PID(), StartTime: process.StartTime(), Engine: h.cfg.Engine}
		r.Stages = slices.Clone(clock.stages)
		r.Took, r.Own = clock.total()
		return true
	})
	if err != nil {
		return err
	}
	clock.done(stageCommit, false)
	// In memory the commit's own time is counted too.
	b.mu.Lock()
	b.rec.Stages = slices.Clone(clock.stages)
	b.rec.Took, b.rec.Own = clock.total()
	b.mu.Unlock()
	return context.Cause(ctx)
}

// prepare makes disk and cgroup, starts the VMM, and draws the identity, all of
// which are independent of each other.
func (h *Host) prepare(ctx context.Context, b *box, tpl Template, slot Slot, clock *stopwatch, identity **guestapi.Identity) (VMM, error) {
	var process VMM
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		lap := clock.lap()
		if err := h.makeFiles(gctx, b, tpl, slot); err != nil {
			return err
		}
		var err error
		if *identity, err = newIdentity(&b.rec, h.random, h.cfg.GatewayMAC, h.cfg.Nameservers); err != nil {
			return err
		}
		(*identity).ResetTCP = tpl.OpenConnections
		lap(stageFiles, false)
		return nil
	})
	group.Go(func() error {
		lap := clock.lap()
		cg, release, err := h.cgroups.Create(gctx, b.id, Limits{CPUs: b.rec.CPU, MemoryMB: b.rec.MemoryMB, OverheadMB: h.cfg.OverheadMB})
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		defer release()
		lap(stageCgroup, false)
		lap = clock.lap()
		// Not gctx: a start that is cut off cleans up after itself, but only a
		// VMM that we know of can be waited for.
		process, err = h.engine.Start(ctx, Launch{Dir: h.paths.VMM(b.id), Slot: slot, Cgroup: cg})
		if err != nil {
			return fmt.Errorf("start VMM: %w", err)
		}
		b.mu.Lock()
		b.vmm = process
		b.mu.Unlock()
		lap(stageVMMStart, true)
		return nil
	})
	err := group.Wait()
	clock.skip()
	return process, err
}

// makeFiles makes the box's disk and what its VMM starts the guest from. Only
// disk and RAM belong to the slot's user: a VMM that a guest has taken over can
// make nothing in the directory that we would then follow.
func (h *Host) makeFiles(ctx context.Context, b *box, tpl Template, slot Slot) error {
	if err := os.Mkdir(h.paths.Box(b.id), 0o711); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := h.overlays.take(ctx, tpl, h.paths.Overlay(b.id)); err != nil {
		return err
	}
	owned := []string{h.paths.Overlay(b.id)}
	if b.rec.Boot == ledger.BootCold {
		if err := makeSparse(h.paths.RAM(b.id), int64(tpl.MemoryMB)<<20); err != nil {
			return err
		}
		owned = append(owned, h.paths.RAM(b.id))
	} else {
		dir := h.paths.Restore(b.id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		if err := tpl.Restore(dir, h.machine(b)); err != nil {
			return fmt.Errorf("prepare stored state: %w", err)
		}
	}
	for _, path := range owned {
		if err := os.Chown(path, slot.UID, slot.GID); err != nil {
			return fmt.Errorf("give %s to the slot's user: %w", path, err)
		}
	}
	return nil
}

func (h *Host) machine(b *box) Machine {
	m := Machine{Overlay: h.paths.Overlay(b.id), Serial: h.paths.Serial(b.id)}
	if b.rec.Boot == ledger.BootCold {
		m.RAM = h.paths.RAM(b.id)
	}
	return m
}

func makeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make RAM file: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("make RAM file: %w", err)
	}
	return nil
}

// start brings the guest to life in a VMM that has none.
func (h *Host) start(ctx context.Context, b *box, tpl Template, slot Slot, process VMM, clock *stopwatch) error {
	if b.rec.Boot == ledger.BootCold {
		if err := process.Create(ctx, tpl.Cold(h.machine(b))); err != nil {
			return fmt.Errorf("define VM: %w", err)
		}
		if err := process.Boot(ctx); err != nil {
			return fmt.Errorf("boot VM: %w", err)
		}
		clock.done(stageBoot, true)
		if _, err := h.guest(slot.Number).Await(ctx); err != nil {
			return fmt.Errorf("%w: boot of the guest: %w", ErrGuest, err)
		}
		clock.done(stageGuestBoot, true)
		return nil
	}
	if err := process.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(h.paths.Restore(b.id))}); err != nil {
		return fmt.Errorf("restore VM: %w", err)
	}
	clock.done(stageRestore, true)
	if err := process.Resume(ctx); err != nil {
		return fmt.Errorf("resume VM: %w", err)
	}
	clock.done(stageResume, true)
	return nil
}

// withCause says why a call was cut off, where ctx knows.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// afterDone calls f when done closes before ctx ends. The returned function
// waits until that is decided and over; it may be called after ctx ended only
// if stop's caller ends ctx itself, which build does.
func afterDone(ctx context.Context, done <-chan struct{}, f func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			f()
		case <-quit:
		case <-ctx.Done():
		}
	}()
	return func() { close(quit); <-ended }
}

// exitText says how a VMM ended, as far as is known.
func exitText(p VMM) string {
	code, signal, known := p.Exit()
	switch {
	case !known:
		return "exit status unknown"
	case signal != 0:
		return "killed by signal " + signalName(signal)
	default:
		return fmt.Sprintf("exit code %d", code)
	}
}

// stopwatch notes how long the stages of one create take. done measures from
// the last done or skip; lap starts a measurement of its own, for stages that
// run beside others.
type stopwatch struct {
	now   func() time.Time
	began time.Time

	mu     sync.Mutex
	last   time.Time
	stages []ledger.Stage
}

func newStopwatch(now func() time.Time) *stopwatch {
	t := now()
	return &stopwatch{now: now, began: t, last: t}
}

func (s *stopwatch) done(name string, engine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.now()
	s.stages = append(s.stages, ledger.Stage{Name: name, Duration: t.Sub(s.last), Engine: engine})
	s.last = t
}

func (s *stopwatch) skip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = s.now()
}

func (s *stopwatch) lap() func(name string, engine bool) {
	from := s.now()
	return func(name string, engine bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stages = append(s.stages, ledger.Stage{Name: name, Duration: s.now().Sub(from), Engine: engine})
	}
}

// total is the time since the beginning, and what of it was ours: the engine's
// stages never overlap each other.
func (s *stopwatch) total() (took, own time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took = s.now().Sub(s.began)
	own = took
	for _, st := range s.stages {
		if st.Engine {
			own -= st.Duration
		}
	}
	return took, own
}
