package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/vmm"
)

// source is what a guest is started from: the stored state of a template, a
// saved state, or a kernel.
type source struct {
	tpl    Template
	cold   bool   // boot the kernel
	from   string // directory of a saved state; empty: the template's
	disk   string // to be cloned; empty: the template's
	diskOf *box   // or that box's, which may run
	// savedBy is the engine that saved what is in from, where that is a capture.
	savedBy string
	// kept means that the box has its disk and its identity already.
	kept     bool
	resetTCP bool

	// arriving is what a box of another host was, which this one goes on as; it is not
	// started.
	arriving *capture.Identity

	warm     *box           // the parent, whose operation lock is held once taken over
	tookOver bool           // the parent is stopped and its slot the child's
	origin   map[string]any // for the event
	done     []func()
}

// release lets go of what the source is made of.
func (s *source) release() {
	for _, f := range s.done {
		f()
	}
	s.done = nil
}

// launch is one attempt to start a box's guest.
type launch struct {
	box    *box
	host   *Host
	source *source
	slot   Slot
	clock  *stopwatch
	// mayRun, if set, is called before a restored guest is resumed.
	mayRun func() error

	process  VMM // nil where none was started
	identity *guestapi.Identity
	ran      bool // the guest may have run, whatever went wrong later
	refused  bool // the VMM did not take the saved state
}

// launch starts a VMM in the slot, starts the guest in it, and gives it its
// volumes and its identity. The returned launch is valid after an error, too.
func (b *box) launch(ctx context.Context, src *source, slot Slot, clock *stopwatch, mayRun func() error) (*launch, error) {
	l := &launch{box: b, host: b.host, source: src, slot: slot, clock: clock, mayRun: mayRun}
	err := l.run(ctx)
	return l, b.withLogs(l.process, err)
}

func (l *launch) run(ctx context.Context) error {
	if err := l.prepare(ctx); err != nil {
		return err
	}
	// From here the VMM's death ends the attempt at once, not at a time-out.
	ctx, died := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-l.process.Done():
			died(errors.New(endText(l.process)))
		case <-ctx.Done():
		}
	}()
	defer func() { died(nil); <-watched }()

	var err error
	if l.source.cold {
		l.ran = true
		err = l.boot(ctx)
	} else {
		err = l.restore(ctx)
	}
	if err == nil {
		err = l.settleIn(ctx)
	}
	return withCause(ctx, err)
}

// settleIn plugs the volumes in, gives the guest its identity, and mounts the
// volumes. The identity comes after the disks because it lets the tenant's
// processes go on.
func (l *launch) settleIn(ctx context.Context) error {
	plug := len(l.box.rec.Volumes) > 0 && (l.source.cold || !l.source.kept)
	if plug {
		if err := l.plugVolumes(ctx); err != nil {
			return err
		}
		l.clock.done(stageVolumes, false)
	}
	if err := l.host.guests.Identify(ctx, l.slot.Number, l.identity); err != nil {
		return err
	}
	l.host.work.Go(func() { l.host.guests.Trust(l.host.work.Life(), l.slot.Number) })
	l.clock.done(stageIdentity, false)
	if plug {
		if err := l.mountVolumes(ctx); err != nil {
			return err
		}
		l.clock.done(stageVolumes, false)
	}
	return nil
}

// prepare makes disk and cgroup, starts the VMM, and draws the identity, all of
// which are independent of each other.
func (l *launch) prepare(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		lap := l.clock.lap()
		if err := l.makeFiles(gctx); err != nil {
			return err
		}
		var err error
		if l.identity, err = l.host.guests.NewIdentity(&l.box.rec); err != nil {
			return err
		}
		l.identity.ResetTCP = l.source.resetTCP
		if l.source.kept && !l.source.cold {
			l.identity.SSHHostKeys = nil // it has them in memory
		}
		lap(stageFiles, false)
		return nil
	})
	group.Go(func() error { return l.startVMM(ctx, gctx) })
	err := group.Wait()
	l.clock.skip()
	return err
}

// startVMM makes the cgroup, under gctx, and starts the VMM in it, under ctx:
// the start of a VMM is not cut off by a failure beside it, because only a VMM
// that we know of can be waited for.
func (l *launch) startVMM(ctx, gctx context.Context) error {
	lap := l.clock.lap()
	rec := l.box.record()
	cg, release, err := l.host.cgroups.Create(gctx, rec.ID, Limits{
		CPUs: rec.CPU, MemoryMB: rec.MemoryMB, OverheadMB: l.host.cfg.OverheadMB, Exclusive: rec.Exclusive,
	})
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	defer release()
	most, err := l.maxFile()
	if err != nil {
		return err
	}
	lap(stageCgroup, false)
	lap = l.clock.lap()
	l.process, err = l.host.engine.Start(ctx, Launch{Dir: l.host.paths.VMM(rec.ID), Slot: l.slot, Cgroup: cg, MaxFile: most})
	if err != nil {
		return fmt.Errorf("start VMM: %w", err)
	}
	l.box.mu.Lock()
	l.box.vmm, l.box.launched, l.box.booted = l.process, l.host.now(), l.source.cold
	l.box.fenced = "" // was the last one's
	l.box.mu.Unlock()
	lap(stageVMMStart, true)
	return nil
}

// maxFile is the size of the largest file that a box's VMM has to write: its
// disk, a volume, or its saved memory. A VMM that a guest has taken over cannot
// write a larger one.
func (l *launch) maxFile() (int64, error) {
	rec := l.box.record()
	most := vmm.MaxFile(rec.DiskMB, rec.MemoryMB)
	for _, v := range rec.Volumes {
		if l.host.volumes == nil {
			return 0, hosterr.Invalid("this host has no volumes")
		}
		size, err := l.host.volumes.Size(v.ID)
		if err != nil {
			return 0, fmt.Errorf("look at volume %s: %w", v.ID, err)
		}
		most = max(most, size)
	}
	return most, nil
}

// makeFiles makes the box's disk and what its VMM starts the guest from. Only
// disk and RAM belong to the slot's user, so a VMM that a guest has taken over
// cannot plant a link in the directory.
func (l *launch) makeFiles(ctx context.Context) error {
	if err := l.makeDisk(ctx); err != nil {
		return err
	}
	owned := []string{l.host.paths.Overlay(l.box.id)}
	if l.source.cold {
		if err := makeSparse(l.host.paths.RAM(l.box.id), int64(l.source.tpl.MemoryMB)<<20); err != nil {
			return err
		}
		owned = append(owned, l.host.paths.RAM(l.box.id))
	} else if err := l.makeRestore(ctx); err != nil {
		return err
	}
	for _, path := range owned {
		if err := os.Chown(path, l.slot.UID, l.slot.GID); err != nil {
			return fmt.Errorf("give %s to the slot's user: %w", path, err)
		}
	}
	return nil
}

func (l *launch) makeDisk(ctx context.Context) error {
	if l.source.kept {
		return nil
	}
	if err := os.Mkdir(l.host.paths.Box(l.box.id), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if l.source.diskOf != nil {
		return l.source.diskOf.copyDisk(ctx, l.host.paths.Overlay(l.box.id))
	}
	if l.source.disk != "" {
		return image.CloneOverlay(l.source.disk, l.host.paths.Overlay(l.box.id))
	}
	return l.host.overlays.Take(ctx, capture.Seed{Build: l.source.tpl.BuildID, Path: l.source.tpl.OverlaySeed}, l.host.paths.Overlay(l.box.id))
}

// makeRestore makes what vm.restore reads.
func (l *launch) makeRestore(ctx context.Context) error {
	dir := l.host.paths.Restore(l.box.id)
	if l.source.kept {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	m := l.machine()
	if l.source.from == "" {
		if err := l.source.tpl.Restore(dir, m); err != nil {
			return fmt.Errorf("prepare stored state: %w", err)
		}
		return nil
	}
	m.RAM = capture.Memory(l.source.from)
	if l.source.kept {
		var err error
		if m.Volumes, err = l.attachVolumes(ctx); err != nil {
			return err
		}
	}
	if err := l.source.tpl.RestoreFrom(dir, l.source.from, m); err != nil {
		return fmt.Errorf("prepare saved state: %w", err)
	}
	return nil
}

func (l *launch) machine() Machine {
	return Machine{Overlay: l.host.paths.Overlay(l.box.id), Serial: l.host.paths.Serial(l.box.id)}
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

// boot starts the guest's kernel on the box's disk.
func (l *launch) boot(ctx context.Context) error {
	m := l.machine()
	m.RAM = l.host.paths.RAM(l.box.id)
	if err := l.process.Create(ctx, l.source.tpl.Cold(m)); err != nil {
		return fmt.Errorf("define VM: %w", err)
	}
	if err := l.process.Boot(ctx); err != nil {
		return fmt.Errorf("boot VM: %w", err)
	}
	l.clock.done(stageBoot, true)
	if err := l.host.guests.Await(ctx, l.slot.Number); err != nil {
		return err
	}
	l.clock.done(stageGuestBoot, true)
	return nil
}

// restore lets the guest go on from what makeRestore made.
func (l *launch) restore(ctx context.Context) error {
	if err := l.process.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(l.host.paths.Restore(l.box.id))}); err != nil {
		l.refused = refusedBy(l.process, err)
		return fmt.Errorf("restore VM: %w", err)
	}
	l.clock.done(stageRestore, true)
	if l.mayRun != nil {
		if err := l.mayRun(); err != nil {
			return err
		}
		l.clock.done(stageIntent, false)
		// A disk that hung may have used up the time, or outlived the VMM.
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	l.ran = true
	if err := l.process.Resume(ctx); err != nil {
		l.ran = !l.stayedPaused(ctx, err)
		return fmt.Errorf("resume VM: %w", err)
	}
	l.clock.done(stageResume, true)
	return nil
}

// stayedPaused reports whether a VM whose resume was refused has never run, so that the
// memory that it was restored from still fits its disk.
func (l *launch) stayedPaused(ctx context.Context, err error) bool {
	refusal, ok := errors.AsType[*vmm.Error](err)
	if !ok || !refusal.BeforeRun() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, err := l.process.State(ctx)
	return err == nil && state == vmm.StatePaused
}

// endSoon is how long after the end of its socket a VMM's own end is awaited.
const endSoon = time.Second

// refusedBy reports whether a VMM did not take a saved state for what that is: it says
// so, or ends over it. One that was killed may have had too little memory.
func refusedBy(p VMM, err error) bool {
	if refusal, ok := errors.AsType[*vmm.Error](err); ok {
		return !refusal.Lacks()
	}
	select {
	case <-p.Done():
	case <-time.After(endSoon):
		return false
	}
	_, signal, known := p.Exit()
	return known && signal != syscall.SIGKILL && signal != syscall.SIGTERM
}
