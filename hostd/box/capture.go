package box

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// snapshotInto writes a box's memory and disk into dir while its VM is paused,
// and returns for how long it was. What can be done while the box runs is done
// before or after.
func (h *Host) snapshotInto(ctx context.Context, dir string, spec *hostapi.CaptureSpec) (ledger.Record, time.Duration, error) {
	b, err := h.lookup(spec.BoxID)
	if err != nil {
		return ledger.Record{}, 0, err
	}
	if err := b.acquire(ctx); err != nil {
		return ledger.Record{}, 0, err
	}
	defer b.release()
	rec, p := b.running()
	switch {
	case spec.Generation != b.generation:
		return rec, 0, fmt.Errorf("%w: generation %d", hosterr.ErrStaleGeneration, b.generation)
	case b.removing() == removalForget:
		return rec, 0, hosterr.ErrNotFound
	case rec.Leaving && rec.State == ledger.Hibernated && spec.Memory && b.removing() == removalNone:
		return rec, 0, b.copySaved(ctx, dir)
	case p == nil || b.removing() != removalNone:
		return rec, 0, fmt.Errorf("%w: it is %s", hosterr.ErrNotRunning, b.status())
	case spec.Memory && len(rec.Volumes) > 0:
		// Two guests would write to one volume.
		return rec, 0, fmt.Errorf("%w: volumes are attached", hosterr.ErrIllegalState)
	}
	slot, err := b.claim(ctx)
	if err != nil {
		return rec, 0, err
	}
	need := capture.Allocated(h.paths.Overlay(b.id))
	if spec.Memory {
		need += int64(rec.MemoryMB) << 20
	}
	if err := h.disk.room(need); err != nil {
		return rec, 0, err
	}
	if err := capture.MakeStateDir(dir, slot.UID, slot.GID); err != nil {
		return rec, 0, err
	}
	if !spec.Memory {
		// The disk will be booted from, so it must have what the guest still holds
		// in memory.
		if err := h.guests.Flush(ctx, slot.Number); err != nil {
			return rec, 0, err
		}
	}
	began := h.now()
	vm := &saver{box: b, process: p}
	if spec.Memory {
		err = vm.pauseFrozen(ctx, slot)
	} else {
		err = vm.pause(ctx)
	}
	if err != nil {
		h.guests.SetClockSoon(b.guest())
		return rec, 0, err
	}
	copyErr := vm.copyPaused(ctx, &rec, dir, spec.Memory)
	if err := errors.Join(copyErr, vm.resume(ctx)); err != nil {
		h.guests.SetClockSoon(b.guest())
		return rec, 0, err
	}
	if spec.Memory {
		h.guests.SetClock(ctx, b.guest()) // its processes stand still until then
	} else {
		h.guests.SetClockSoon(b.guest())
	}
	return rec, h.now().Sub(began), nil
}
