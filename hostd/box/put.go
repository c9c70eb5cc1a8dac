package box

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

// Put makes a box and waits until it runs. The same id and generation again
// joins a create that is under way, or answers with the box as it is; a younger
// generation replaces an older box; an older one is refused. The create goes on
// when ctx ends: whoever asks again joins it.
//
// When Put fails, nothing of the box is left, or what is left is being cleaned
// up and is not shown.
func (h *Host) Put(ctx context.Context, id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	if err := validateSpec(id, &spec); err != nil {
		return hostapi.Box{}, err
	}
	for {
		b, err := h.admit(ctx, id, &spec)
		if err != nil {
			return hostapi.Box{}, err
		}
		switch {
		case spec.Generation > b.generation:
			if err := h.Delete(ctx, id, b.generation); err != nil {
				return hostapi.Box{}, fmt.Errorf("replace generation %d: %w", b.generation, err)
			}
			continue
		case b.removing() == removalBury:
			return hostapi.Box{}, fmt.Errorf("%w: it is being deleted", hosterr.ErrStaleGeneration)
		case b.removing() == removalForget && b.createEnded():
			// An earlier create of this generation failed and is not cleaned up
			// yet: wait, then make it anew.
			if err := wait(ctx, b.gone); err != nil {
				return hostapi.Box{}, err
			}
			continue
		}
		if err := wait(ctx, b.created); err != nil {
			return hostapi.Box{}, err
		}
		if b.createErr != nil {
			return hostapi.Box{}, b.createErr
		}
		v, _ := b.view()
		return v, nil
	}
}

// stallPatience is how long a write to the ledger may take before nothing new is
// begun here: another host has a disk that answers.
var stallPatience = timescale.Limit(5 * time.Second)

// admit returns the box that is there, or reserves what a new one needs and
// starts its create.
func (h *Host) admit(ctx context.Context, id string, spec *hostapi.BoxSpec) (*box, error) {
	if b, err := h.present(id, spec.Generation); b != nil || err != nil {
		return b, err
	}
	if d := h.DiskStalled(); d > stallPatience {
		return nil, fmt.Errorf("%w: one has been under way for %s", hosterr.ErrDiskStalled, d.Round(time.Millisecond))
	}
	clock := newStopwatch(h.now)
	// Outside the lock: it may read the disk.
	src, err := h.source(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	var b *box
	err = h.captures.MakeRoom(func() (missing int64, err error) {
		b, missing, err = h.register(ctx, id, spec, src, clock)
		return missing, err
	})
	if b == nil || b.admitted != src {
		src.release() // another Put came first, or this one was refused
	}
	return b, err
}

// register puts a new box into the map and starts its create. Where there is no room
// for its disk, it says how many bytes are missing.
func (h *Host) register(ctx context.Context, id string, spec *hostapi.BoxSpec, src *source, clock *stopwatch) (_ *box, missing int64, err error) {
	room, err := h.disk.look(h.all())
	if err != nil {
		return nil, 0, err
	}
	if err := h.disk.fits(src.tpl.DiskMB); err != nil {
		return nil, 0, err
	}
	machineID, hostKey, err := h.guests.NewSecrets()
	if err != nil {
		return nil, 0, err
	}
	tpl := src.tpl
	rec := ledger.Record{
		ID: id, Generation: spec.Generation, State: ledger.Creating, Seq: 1, WorkspaceID: spec.WorkspaceID,
		Template: tpl.Name, BuildID: tpl.BuildID, Boot: ledger.Boot(spec.Boot), Hostname: spec.Hostname, MachineID: machineID, HostKey: hostKey, Env: spec.Env,
		Persistent: spec.Persistent, Exclusive: spec.Exclusive, Volumes: asVolumes(spec.Volumes),
		CPU: tpl.CPU, MemoryMB: tpl.MemoryMB, ReservedMB: tpl.MemoryMB + h.cfg.OverheadMB, DiskMB: tpl.DiskMB,
		Slot: ledger.NoSlot, CreatedAt: h.now().UTC(),
	}
	if was := src.arriving; was != nil {
		rec.Hostname, rec.MachineID, rec.HostKey, rec.Boot = was.Hostname, was.MachineID, was.HostKey, ledger.Boot(was.Boot)
		rec.CreatedAt, rec.StartedAt = was.CreatedAt, was.StartedAt
		rec.ResetTCP = true // its connections were through the other host
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	// Another Put may have come first.
	if b, err := h.presentLocked(id, spec.Generation); b != nil || err != nil {
		return b, 0, err
	}
	reserve := rec.ReservedMB
	if src.warm != nil {
		reserve = 0 // it takes its parent's
	}
	// Before the disk: nothing is given up for a box that is refused anyway.
	if err := h.memory.fits(reserve, rec.ReservedMB); err != nil {
		return nil, 0, err
	}
	if missing, err := h.disk.admit(room, h.boxes, rec.DiskMB); err != nil {
		return nil, missing, err
	}
	if err := h.memory.take(reserve, rec.ReservedMB); err != nil {
		return nil, 0, err
	}
	b := h.newBox(rec)
	b.admitted = src
	b.reserved = reserve
	h.boxes[id] = b
	b.op <- struct{}{}
	// It goes on without the caller: see Put.
	limit := h.cfg.CreateTimeout
	if src.arriving != nil {
		limit = max(limit, arrivalTimeout)
	}
	cctx, cancelTimeout := context.WithTimeout(h.work.Detach(ctx), limit)
	cctx, cancel := context.WithCancelCause(cctx)
	b.endedBy(cancel)
	clock.done("admission", false)
	h.work.Go(func() {
		defer cancelTimeout()
		defer cancel(nil)
		(&creation{box: b, source: src, clock: clock}).run(cctx)
	})
	return b, 0, nil
}

func (h *Host) present(id string, generation uint64) (*box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.presentLocked(id, generation)
}

func (h *Host) presentLocked(id string, generation uint64) (*box, error) {
	if h.phase != serving {
		return nil, hosterr.ErrDraining
	}
	if buried := h.buriedLocked(id); generation <= buried {
		return nil, fmt.Errorf("%w: generation %d was deleted here", hosterr.ErrStaleGeneration, buried)
	}
	b := h.boxes[id]
	if b != nil && generation < b.generation {
		return nil, fmt.Errorf("%w: generation %d", hosterr.ErrStaleGeneration, b.generation)
	}
	return b, nil
}

func (b *box) removing() removal {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removal
}

func (b *box) createEnded() bool {
	select {
	case <-b.created:
		return true
	default:
		return false
	}
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
