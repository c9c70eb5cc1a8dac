package box

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/telemetry"
)

// The stages of a create, as metrics and a box's Stages name them.
const (
	stageAdmission = "admission"
	stageSlot      = "slot"
	stageIntent    = "intent" // the record on disk
	stageFiles     = "files"  // disk and configuration, beside cgroup and vmm_start
	stageCgroup    = "cgroup"
	stageVMMStart  = "vmm_start"
	stageCapture   = "capture" // warm fork: save and stop the parent
	stageRestore   = "restore"
	stageBoot      = "boot" // cold: define the VM and start its kernel
	stageGuestBoot = hostapi.StageGuestBoot
	stageResume    = "resume"
	stageVolumes   = "volumes"
	stageIdentity  = hostapi.StageIdentity
	stageCommit    = "commit"
)

// creation is the create of a box that is under way, under its operation lock.
type creation struct {
	*box
	source *source
	clock  *stopwatch
}

// run ends with the box running, or with nothing left of it.
func (c *creation) run(ctx context.Context) {
	defer c.release()
	defer c.source.release()
	do := c.make
	if c.source.arriving != nil {
		do = c.arrive
	}
	telemetry.Did(ctx, c.clock.began, c.clock.last, false, "stage ", stageAdmission)
	ctx, span := telemetry.Start(ctx, "box.create")
	span.SetSandbox(c.id)
	c.clock.in(ctx)
	err := do(ctx)
	span.End(err)
	if err == nil && c.source.arriving != nil {
		c.arrived(ctx)
		return
	}
	if err == nil {
		c.host.metrics.created(string(c.rec.Boot), "ok")
		c.host.log.InfoContext(ctx, "sandbox is running", "event", "sandbox.running", "sandbox_id", c.id, "generation", c.generation,
			"template", c.source.tpl.Name, "boot", c.rec.Boot, "boot_ms", c.rec.Took.Milliseconds(), "own_ms", c.rec.Own.Milliseconds())
		c.emitRunning()
		c.watch()
		close(c.created)
		c.host.notify()
		return
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	switch {
	case errors.Is(err, background.ErrClosing):
		err = fmt.Errorf("%w: %w", hosterr.ErrDraining, err)
	case errors.Is(err, errDeleted):
		err = fmt.Errorf("%w: %w", hosterr.ErrStaleGeneration, err)
	default:
		err = hosterr.AsNoDisk(err)
	}
	c.beginRemoval(removalForget)
	c.host.metrics.created(string(c.rec.Boot), "error")
	c.host.log.WarnContext(ctx, "create failed", "sandbox_id", c.id, "generation", c.generation, "template", c.source.tpl.Name, "error", err)
	c.mu.Lock()
	c.createErr = fmt.Errorf("create sandbox: %w", err)
	c.mu.Unlock()
	if c.source.tookOver {
		c.giveBackParent(ctx)
	}
	// The caller is told once the cleaning up was tried, so that it finds what
	// this box had free again. Not under ctx, which may have ended.
	if err := c.teardown(ctx); err != nil {
		c.scheduleRetry(ctx, err)
	}
	close(c.created)
	c.host.notify()
}

// make makes everything that a box has. After an error the caller removes what
// was made: each resource can be found by the id and by the record.
func (c *creation) make(ctx context.Context) error {
	defer func() { c.host.metrics.stages(c.clock.stages) }()
	slot, err := c.acquireSlot(ctx)
	if err != nil {
		return err
	}
	launched, err := c.launch(ctx, c.source, slot, c.clock, nil)
	if err != nil {
		return err
	}
	process := launched.process
	err = c.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Running)
		r.StartedAt = c.host.now().UTC()
		r.VMM = c.host.identityOf(process)
		r.SharedRAM = c.source.cold
		r.Stages = slices.Clone(c.clock.stages)
		r.Took, r.Own = c.clock.total()
		return true
	})
	if err != nil {
		return err
	}
	c.clock.done(stageCommit, false)
	// In memory, count the commit's own time as well.
	c.amend(func(r *ledger.Record) {
		r.Stages = slices.Clone(c.clock.stages)
		r.Took, r.Own = c.clock.total()
	})
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case <-process.Done():
		return c.withLogs(process, errors.New(endText(process)))
	default:
	}
	// Its VMM may not have ended for it yet, but the guest has lost its identity.
	if process.Rebooted() {
		return c.withLogs(process, errors.New(endText(process)))
	}
	return nil
}

// acquireSlot gives a new box its slot, and writes both to disk.
func (c *creation) acquireSlot(ctx context.Context) (Slot, error) {
	if c.source.warm != nil {
		slot, err := c.takeOverParent(ctx)
		if err == nil {
			c.clock.done(stageCapture, true)
		}
		return slot, err
	}
	slot, err := c.takeSlot(ctx, func() { c.clock.done(stageSlot, false) })
	if err == nil {
		c.clock.done(stageIntent, false)
	}
	return slot, err
}

// takeSlot takes a slot for a box that has none, and writes its number into the
// record.
func (b *box) takeSlot(ctx context.Context, taken func()) (Slot, error) {
	slot, err := b.host.slots.Take(ctx)
	if err != nil {
		return Slot{}, fmt.Errorf("take a network slot: %w", err)
	}
	taken()
	if err := b.commit(func(r *ledger.Record) bool { r.Slot = slot.Number; return true }); err != nil {
		// Not on disk, so the slot goes back without the record's help. (A crash
		// here leaves a slot without a record, which is a free one.)
		b.host.slots.Return(slot.Number)
		return Slot{}, err
	}
	b.mu.Lock()
	b.net = &slot
	b.mu.Unlock()
	return slot, nil
}

func (h *Host) identityOf(p VMM) ledger.VMM {
	return ledger.VMM{PID: p.PID(), StartTime: p.StartTime(), Engine: h.cfg.Engine}
}
