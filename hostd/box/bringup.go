package box

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/vmm"
)

// source is what a box's guest begins with: the template's stored state, a saved
// one, or its kernel.
type source struct {
	tpl  Template
	cold bool   // boot the kernel
	from string // directory of a saved state; empty: the template's
	disk string // to be cloned; empty: the template's
	// kept says that the box has its disk already, and is who it was.
	kept     bool
	resetTCP bool

	warm   *box           // the parent, whose operation lock is held when staged
	staged bool           // the parent is stopped and its slot the child's
	origin map[string]any // for the event
	done   []func()
}

// release lets go of what the source is made of.
func (s *source) release() {
	for _, f := range s.done {
		f()
	}
	s.done = nil
}

// bringUp starts a VMM in the slot, brings the guest to life in it, and gives it
// its volumes and its identity. mayRun is called before a restored guest goes
// on; ran says that it may have, whatever went wrong later.
func (b *box) bringUp(ctx context.Context, src *source, slot Slot, clock *stopwatch, mayRun func() error) (process VMM, ran bool, err error) {
	defer func() { err = b.quote(process, err) }()
	var identity *guestapi.Identity
	process, err = b.prepare(ctx, src, slot, clock, &identity)
	if err != nil {
		return process, false, err
	}
	// From here the VMM's death ends the attempt at once, not at a time-out.
	ctx, died := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-process.Done():
			died(errors.New(endText(process)))
		case <-ctx.Done():
		}
	}()
	defer func() { died(nil); <-watched }()

	if src.cold {
		ran, err = true, b.boot(ctx, src, slot, process, clock)
	} else {
		ran, err = b.restore(ctx, process, clock, mayRun)
	}
	if err == nil {
		plug := len(b.rec.Volumes) > 0 && (src.cold || !src.kept)
		err = b.settleIn(ctx, slot, process, clock, plug, identity)
	}
	return process, ran, withCause(ctx, err)
}

// settleIn makes a guest that runs the box's own. Its disks come before its
// identity, which lets the tenant's processes go on.
func (b *box) settleIn(ctx context.Context, slot Slot, process VMM, clock *stopwatch, plug bool, id *guestapi.Identity) error {
	if plug {
		if err := b.plugVolumes(ctx, slot, process); err != nil {
			return err
		}
		clock.done(stageVolumes, false)
	}
	if err := b.host.guests.Identify(ctx, slot.Number, id); err != nil {
		return err
	}
	clock.done(stageIdentity, false)
	if plug {
		if err := b.mountVolumes(ctx, slot); err != nil {
			return err
		}
		clock.done(stageVolumes, false)
	}
	return nil
}

// prepare makes disk and cgroup, starts the VMM, and draws the identity, all of
// which are independent of each other.
func (b *box) prepare(ctx context.Context, src *source, slot Slot, clock *stopwatch, identity **guestapi.Identity) (VMM, error) {
	var process VMM
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		lap := clock.lap()
		if err := b.makeFiles(gctx, src, slot); err != nil {
			return err
		}
		var err error
		if *identity, err = b.host.guests.NewIdentity(&b.rec); err != nil {
			return err
		}
		(*identity).ResetTCP = src.resetTCP
		if src.kept && !src.cold {
			(*identity).SSHHostKeys = nil // it has them in memory
		}
		lap(stageFiles, false)
		return nil
	})
	group.Go(func() error {
		lap := clock.lap()
		cg, release, err := b.host.cgroups.Create(gctx, b.id, Limits{CPUs: b.rec.CPU, MemoryMB: b.rec.MemoryMB, OverheadMB: b.host.cfg.OverheadMB})
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		defer release()
		most, err := b.maxFile()
		if err != nil {
			return err
		}
		lap(stageCgroup, false)
		lap = clock.lap()
		// Not gctx: a start that is cut off cleans up after itself, but only a
		// VMM that we know of can be waited for.
		process, err = b.host.engine.Start(ctx, Launch{Dir: b.host.paths.VMM(b.id), Slot: slot, Cgroup: cg, MaxFile: most})
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

// maxFile is the size of the largest file that a box's VMM has to write: its
// disk, a volume, or its memory and state when they are saved. One that a guest
// has taken over can make none larger.
func (b *box) maxFile() (int64, error) {
	rec := b.record()
	most := vmm.MaxFile(rec.DiskMB, rec.MemoryMB)
	for _, v := range rec.Volumes {
		if b.host.volumes == nil {
			return 0, hosterr.Invalid("this host has no volumes")
		}
		size, err := b.host.volumes.Size(v.ID)
		if err != nil {
			return 0, fmt.Errorf("look at volume %s: %w", v.ID, err)
		}
		most = max(most, size)
	}
	return most, nil
}

// makeFiles makes the box's disk and what its VMM starts the guest from. Only
// disk and RAM belong to the slot's user: a VMM that a guest has taken over can
// make nothing in the directory that we would then follow.
func (b *box) makeFiles(ctx context.Context, src *source, slot Slot) error {
	if err := b.makeDisk(ctx, src); err != nil {
		return err
	}
	owned := []string{b.host.paths.Overlay(b.id)}
	if src.cold {
		if err := makeSparse(b.host.paths.RAM(b.id), int64(src.tpl.MemoryMB)<<20); err != nil {
			return err
		}
		owned = append(owned, b.host.paths.RAM(b.id))
	} else if err := b.makeRestore(ctx, src, slot); err != nil {
		return err
	}
	for _, path := range owned {
		if err := os.Chown(path, slot.UID, slot.GID); err != nil {
			return fmt.Errorf("give %s to the slot's user: %w", path, err)
		}
	}
	return nil
}

func (b *box) makeDisk(ctx context.Context, src *source) error {
	if src.kept {
		return nil
	}
	if err := os.Mkdir(b.host.paths.Box(b.id), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if src.disk != "" {
		return image.CloneOverlay(src.disk, b.host.paths.Overlay(b.id))
	}
	return b.host.overlays.Take(ctx, capture.Seed{Build: src.tpl.BuildID, Path: src.tpl.OverlaySeed}, b.host.paths.Overlay(b.id))
}

// makeRestore makes what vm.restore reads.
func (b *box) makeRestore(ctx context.Context, src *source, slot Slot) error {
	dir := b.host.paths.Restore(b.id)
	if src.kept {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	m := b.machine()
	if src.from == "" {
		if err := src.tpl.Restore(dir, m); err != nil {
			return fmt.Errorf("prepare stored state: %w", err)
		}
		return nil
	}
	m.RAM = capture.Memory(src.from)
	if src.kept {
		var err error
		if m.Volumes, err = b.attachVolumes(ctx, slot); err != nil {
			return err
		}
	}
	if err := src.tpl.RestoreFrom(dir, src.from, m); err != nil {
		return fmt.Errorf("prepare saved state: %w", err)
	}
	return nil
}

func (b *box) machine() Machine {
	return Machine{Overlay: b.host.paths.Overlay(b.id), Serial: b.host.paths.Serial(b.id)}
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
func (b *box) boot(ctx context.Context, src *source, slot Slot, process VMM, clock *stopwatch) error {
	m := b.machine()
	m.RAM = b.host.paths.RAM(b.id)
	if err := process.Create(ctx, src.tpl.Cold(m)); err != nil {
		return fmt.Errorf("define VM: %w", err)
	}
	if err := process.Boot(ctx); err != nil {
		return fmt.Errorf("boot VM: %w", err)
	}
	clock.done(stageBoot, true)
	if err := b.host.guests.Await(ctx, slot.Number); err != nil {
		return err
	}
	clock.done(stageGuestBoot, true)
	return nil
}

// restore lets the guest go on from what makeRestore made.
func (b *box) restore(ctx context.Context, process VMM, clock *stopwatch, mayRun func() error) (ran bool, err error) {
	if err := process.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(b.host.paths.Restore(b.id))}); err != nil {
		return false, fmt.Errorf("restore VM: %w", err)
	}
	clock.done(stageRestore, true)
	if mayRun != nil {
		if err := mayRun(); err != nil {
			return false, err
		}
		clock.done(stageIntent, false)
	}
	if err := process.Resume(ctx); err != nil {
		return true, fmt.Errorf("resume VM: %w", err)
	}
	clock.done(stageResume, true)
	return true, nil
}
