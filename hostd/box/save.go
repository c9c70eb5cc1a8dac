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

// saveTimeout bounds the saving of a VM's memory, once it is paused, apart from what
// a slow disk takes for the memory.
var saveTimeout = timescale.Limit(2 * time.Minute)

// slowDiskMB is what a slow disk takes in a second.
const slowDiskMB = 50

// saveTime bounds the saving of a VM's memory. Cloud Hypervisor writes all memory of a VM
// that was restored, zeros included.
func saveTime(memoryMB int) time.Duration {
	return saveTimeout + timescale.Limit(time.Duration(memoryMB/slowDiskMB)*time.Second)
}

const (
	pauseAttempts  = 2
	resumeAttempts = 3
)

// pauseTimeout bounds one attempt to pause a VM. Cloud Hypervisor waits 30 s for the
// requests that a disk has under way, and only then refuses (wait_for_active_requests in
// its virtio-devices/src/block.rs).
var pauseTimeout = timescale.Limit(45 * time.Second)

// resumeTimeout bounds each attempt.
var resumeTimeout = timescale.Limit(5 * time.Second)

// saver pauses a box's VM, and saves it, under the box's operation lock.
type saver struct {
	*box
	process VMM
}

// pause pauses the VM, or leaves it running. After a call that failed or was cut off,
// the VM is asked.
//
// Cloud Hypervisor stops the CPUs, then the disks. When a disk does not come to rest, it
// refuses the pause and undoes nothing: the guest stands still, the VM is said to run, and
// a resume is refused (Vm::pause in its vmm/src/vm.rs). A second pause goes on from there,
// so it is asked for again; what is left after that is the sweep's.
func (s *saver) pause(ctx context.Context) error {
	return s.pauseAfter(ctx, func(context.Context) {})
}

// pauseFlushed is pause of a guest that may be deleted while it stands still.
func (s *saver) pauseFlushed(ctx context.Context) error {
	return s.pauseAfter(ctx, func(ctx context.Context) { s.flushGuest(ctx, s.process) })
}

// pauseFrozen is pauseFlushed with the tenant's processes standing still.
func (s *saver) pauseFrozen(ctx context.Context, slot Slot) error {
	return s.pauseAfter(ctx, func(ctx context.Context) {
		s.flushGuest(ctx, s.process)
		s.host.guests.Freeze(ctx, s.id, slot.Number) // anew: the flush took some of its time
	})
}

// pauseAfter is pause with a preparation, which is repeated where the guest may have run
// for long since.
func (s *saver) pauseAfter(ctx context.Context, prepare func(context.Context)) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s.endedBy(cancel) // by a delete, which waits for the operation lock
	var err error
	for range pauseAttempts {
		if _, refused := errors.AsType[*vmm.Error](err); !refused { // one that was refused stands still
			prepare(ctx)
		}
		if err = pauseOnce(ctx, s.process); err == nil {
			s.clearDoubt()
			return nil
		}
		if state := s.stateAfterPause(err); state == vmm.StatePaused {
			return errors.Join(err, s.resume(ctx))
		} else if state != vmm.StateRunning || !mayStandStill(err) || context.Cause(ctx) != nil {
			return err
		}
	}
	return err
}

func pauseOnce(ctx context.Context, p VMM) error {
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	if err := p.Pause(ctx); err != nil {
		return fmt.Errorf("pause VM: %w", err)
	}
	return nil
}

// mayStandStill reports whether a guest may stand still although its pause failed.
func mayStandStill(err error) bool {
	refusal, ok := errors.AsType[*vmm.Error](err)
	return !ok || refusal.Halfway()
}

// stateAfterPause notes what is not known after a pause that failed, and asks the VM for
// its state, which is empty where it does not answer.
func (s *saver) stateAfterPause(err error) vmm.State {
	if mayStandStill(err) {
		s.markStill()
	} else {
		s.markUncertain()
	}
	return s.state()
}

// state is the VM's state, empty where it does not answer.
func (s *saver) state() vmm.State {
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	state, err := s.process.State(ctx)
	if err != nil {
		return ""
	}
	return state
}

// resumeAfterSave resumes a VM whose hibernation failed.
func (s *saver) resumeAfterSave(ctx context.Context) error {
	err := s.resume(ctx)
	s.host.guests.SetClockSoon(s.guest())
	return err
}

// resume resumes a VM that was paused to be captured. If it says that it stays paused,
// the box is paused, and its record says so. One that does not answer is at work, on what
// took too long maybe: the box runs on as soon as it answers.
func (s *saver) resume(ctx context.Context) error {
	var err error
	var state vmm.State
	for range resumeAttempts {
		if err = s.resumeOnce(ctx); err == nil {
			return nil
		}
		if state = s.state(); state == vmm.StateRunning {
			return nil
		}
		select {
		case <-s.process.Done():
			return errors.New(endText(s.process)) // its watch tells the rest
		default:
		}
	}
	s.host.log.ErrorContext(ctx, "a sandbox that was captured does not run on", "sandbox_id", s.id, "vm_state", string(state), "error", err)
	if state != vmm.StatePaused {
		s.markStill()
		return fmt.Errorf("resume sandbox: %w", err)
	}
	s.markUncertain()
	if e := s.enterState(ledger.Running, ledger.Paused); e == nil {
		s.emit(ctx, hostapi.EventPaused, "sandbox could not be resumed", nil)
	}
	return fmt.Errorf("resume sandbox: %w", err)
}

func (s *saver) resumeOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
	defer cancel()
	return s.process.Resume(ctx)
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
	tmp, dir := s.host.paths.StateTmp(s.id), s.host.paths.State(s.id)
	if err := errors.Join(capture.MakeStateDir(tmp, slot.UID, slot.GID), os.RemoveAll(dir)); err != nil {
		return 0, err
	}
	began := s.host.now()
	if err := s.pauseFrozen(ctx, slot); err != nil {
		s.host.guests.SetClockSoon(s.guest())
		return 0, errors.Join(err, os.RemoveAll(tmp))
	}
	undo := func(err error) (time.Duration, error) {
		return 0, errors.Join(hosterr.AsNoDisk(err), s.resumeAfterSave(ctx), os.RemoveAll(tmp), os.RemoveAll(dir))
	}
	sctx, cancel := context.WithTimeout(ctx, saveTime(rec.MemoryMB))
	defer cancel()
	if err := s.process.Snapshot(sctx, tmp); err != nil {
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
