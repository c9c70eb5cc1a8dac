package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// saveTimeout bounds the saving of a VM's memory.
var saveTimeout = timescale.Limit(2 * time.Minute)

const resumeAttempts = 3

// resumeTimeout bounds each attempt.
var resumeTimeout = timescale.Limit(5 * time.Second)

// saver pauses a box's VM, and saves it, under the box's operation lock.
type saver struct {
	*box
	process VMM
}

// pause pauses the VM, or leaves it running. After a call that was cut off, the
// VM is asked.
func (s *saver) pause(ctx context.Context) error {
	err := s.process.Pause(ctx)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("pause VM: %w", err)
	sctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	s.markUncertain()
	if state, stateErr := s.process.State(sctx); stateErr == nil && state == vmm.StatePaused {
		err = errors.Join(err, s.resume(ctx))
	}
	return err
}

// resumeAfterSave resumes a VM whose hibernation failed.
func (s *saver) resumeAfterSave(ctx context.Context) error {
	err := s.resume(ctx)
	s.host.guests.SetClockSoon(s.guest())
	return err
}

// resume resumes a VM that was paused to be captured. If that fails, the box is
// paused, and its record says so.
func (s *saver) resume(ctx context.Context) error {
	var err error
	for range resumeAttempts {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
		if err = s.process.Resume(rctx); err != nil {
			if state, stateErr := s.process.State(rctx); stateErr == nil && state == vmm.StateRunning {
				err = nil
			}
		}
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return errors.New(endText(s.process)) // its watch tells the rest
		default:
		}
	}
	s.markUncertain()
	s.host.log.ErrorContext(ctx, "a sandbox that was captured does not run on", "sandbox_id", s.id, "error", err)
	if e := s.enterState(ledger.Running, ledger.Paused); e == nil {
		s.emit(ctx, hostapi.EventPaused, "sandbox could not be resumed", nil)
	}
	return fmt.Errorf("resume sandbox: %w", err)
}

// save pauses the VM and saves it into the box's state directory. It returns
// for how long the VM was paused when all was written. When it fails, the VM
// runs on.
func (s *saver) save(ctx context.Context, slot Slot) (stood time.Duration, err error) {
	rec := s.record()
	need := int64(rec.MemoryMB) << 20
	if rec.SharedRAM {
		need = 0 // its file is there already
	}
	if err := s.host.disk.room(need); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	tmp, dir := s.host.paths.StateTmp(s.id), s.host.paths.State(s.id)
	if err := errors.Join(capture.MakeStateDir(tmp, slot.UID, slot.GID), os.RemoveAll(dir)); err != nil {
		return 0, err
	}
	began := s.host.now()
	s.host.guests.Freeze(ctx, s.id, slot.Number)
	if err := s.pause(ctx); err != nil {
		s.host.guests.SetClockSoon(s.guest())
		return 0, errors.Join(err, os.RemoveAll(tmp))
	}
	undo := func(err error) (time.Duration, error) {
		return 0, errors.Join(hosterr.AsNoDisk(err), s.resumeAfterSave(ctx), os.RemoveAll(tmp), os.RemoveAll(dir))
	}
	if err := s.process.Snapshot(ctx, tmp); err != nil {
		return undo(fmt.Errorf("save VM: %w", err))
	}
	stood = s.host.now().Sub(began)
	if err := capture.Seal(tmp, s.host.engine.Detach, true, vmm.FileConfig, vmm.FileState, vmm.FileMemory); err != nil {
		return undo(err)
	}
	if rec.SharedRAM {
		if err := s.linkRAM(tmp); err != nil {
			return undo(err)
		}
	}
	// Disks and memory belong together: neither is of use without the other.
	if err := atomicfile.Sync(s.host.paths.Overlay(s.id)); err != nil {
		return undo(fmt.Errorf("flush disk: %w", err))
	}
	if err := s.flushVolumes(rec.Volumes); err != nil {
		return undo(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return undo(err)
	}
	if err := atomicfile.Sync(s.host.paths.Box(s.id)); err != nil {
		return undo(err)
	}
	return stood, nil
}

// linkRAM makes the RAM file of a cold-booted box part of its saved state. From
// then on it is mapped privately, as all saved memory is, so that the state
// never changes.
func (s *saver) linkRAM(dir string) error {
	memory := capture.Memory(dir)
	if err := os.Link(s.host.paths.RAM(s.id), memory); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(memory, os.Geteuid(), os.Getegid()), os.Chmod(memory, 0o644)); err != nil {
		return err
	}
	return errors.Join(atomicfile.Sync(memory), atomicfile.Sync(dir))
}

// copyPaused copies disk and memory side by side, while the VM is paused.
func (s *saver) copyPaused(ctx context.Context, rec *ledger.Record, dir string, memory bool) error {
	var group errgroup.Group
	group.Go(func() error {
		return image.CloneOverlay(s.host.paths.Overlay(s.id), filepath.Join(dir, capture.FileOverlay))
	})
	if memory {
		group.Go(func() error {
			if err := s.process.Snapshot(ctx, dir); err != nil {
				return fmt.Errorf("save VM: %w", err)
			}
			return nil
		})
		if rec.SharedRAM {
			group.Go(func() error { return image.CloneOverlay(s.host.paths.RAM(s.id), capture.Memory(dir)) })
		}
	}
	return group.Wait()
}

// flushVolumes writes to disk what a paused guest has written to its volumes.
func (s *saver) flushVolumes(volumes []ledger.Volume) error {
	for _, v := range volumes {
		if err := s.host.volumes.Flush(v.ID); err != nil {
			return fmt.Errorf("flush volume %s: %w", v.ID, err)
		}
	}
	return nil
}
