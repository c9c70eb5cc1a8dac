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
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// captureTimeout bounds one capture, flushing to disk included.
var captureTimeout = timescale.Limit(5 * time.Minute)

// Capture keeps a running box's disk, and its memory where it is asked for, as
// they are at one moment. The same id again joins a capture that is under way,
// or answers with the one that is there. It goes on when ctx ends.
func (h *Host) Capture(ctx context.Context, id string, spec hostapi.CaptureSpec) (hostapi.Capture, error) {
	switch {
	case !validCaptureID(id):
		return hostapi.Capture{}, hosterr.Invalid("capture: not an id")
	case !hostapi.ValidID(spec.BoxID):
		return hostapi.Capture{}, hosterr.Invalid("box_id is not %d characters of lower-case base32", hostapi.IDLength)
	case spec.After != "" && spec.After != hostapi.AfterResume:
		return hostapi.Capture{}, hosterr.Invalid("after: want %q", hostapi.AfterResume)
	}
	if !h.Ready() {
		return hostapi.Capture{}, hosterr.ErrDraining
	}
	c, mine, err := h.captures.begin(id)
	if err != nil {
		return hostapi.Capture{}, err
	}
	if mine {
		detached := h.work.Detach(ctx)
		take := func() (hostapi.Capture, error) { return h.makeCapture(detached, id, &spec) }
		if !h.work.Go(func() { h.endCapture(c, take) }) {
			h.captures.end(c, hostapi.Capture{}, hosterr.ErrDraining)
		}
	}
	if err := wait(ctx, c.done); err != nil {
		return hostapi.Capture{}, err
	}
	return c.info, c.err
}

// endCapture makes a capture and tells those who wait.
func (h *Host) endCapture(c *capture, take func() (hostapi.Capture, error)) {
	began := h.now()
	info, err := take()
	if err != nil {
		err = asNoDisk(err)
		err = errors.Join(err, os.RemoveAll(h.paths.CaptureTmp(c.id)))
	}
	c.used = h.now()
	h.metrics.moved("capture", c.used.Sub(began), err)
	h.captures.end(c, info, err)
	h.notify()
}

// makeCapture is everything from the box to the capture's directory.
func (h *Host) makeCapture(ctx context.Context, id string, spec *hostapi.CaptureSpec) (hostapi.Capture, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), captureTimeout)
	defer cancel()
	dir := h.paths.CaptureTmp(id)
	rec, stood, err := h.shoot(ctx, dir, spec)
	if err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	names := []string{fileOverlay}
	if spec.Memory {
		names = append(names, vmm.FileConfig, vmm.FileState, vmm.FileMemory)
	}
	if err := h.seal(dir, !spec.Transient, names...); err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	m := manifest{Format: manifestFormat, Capture: hostapi.Capture{
		ID: id, BoxID: rec.ID, WorkspaceID: rec.WorkspaceID, Template: rec.Template, BuildID: rec.BuildID, Engine: h.cfg.Engine,
		CPU: rec.CPU, MemoryMB: rec.MemoryMB, DiskMB: rec.DiskMB, Memory: spec.Memory,
		MemoryBytes: allocated(memoryOf(dir)), DiskBytes: allocated(filepath.Join(dir, fileOverlay)),
		PauseMS: stood.Milliseconds(), CreatedAt: h.now().UTC(),
	}}
	if spec.Transient {
		m.TransientBoot = bootID()
	}
	if err := h.publish(dir, m, !spec.Transient); err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	h.log.InfoContext(ctx, "sandbox is captured", "sandbox_id", rec.ID, "capture_id", id, "memory", spec.Memory, "pause_ms", m.PauseMS,
		"memory_bytes", m.MemoryBytes, "disk_bytes", m.DiskBytes)
	return m.Capture, nil
}

// publish gives a directory its manifest and then its name.
func (h *Host) publish(dir string, m manifest, sync bool) error {
	if err := writeManifest(dir, m, sync); err != nil {
		return err
	}
	if err := os.Rename(dir, h.paths.Capture(m.ID)); err != nil {
		return err
	}
	if sync {
		return atomicfile.Sync(h.paths.Captures())
	}
	return nil
}

// shoot writes a box's memory and disk into dir while it stands still, and
// returns how long that was. Whatever can be done while the box runs, is done
// before or after.
func (h *Host) shoot(ctx context.Context, dir string, spec *hostapi.CaptureSpec) (ledger.Record, time.Duration, error) {
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
	case b.isLeaving() == leaveForget:
		return rec, 0, hosterr.ErrNotFound
	case p == nil || b.isLeaving() != leaveNot:
		return rec, 0, fmt.Errorf("%w: it is %s", hosterr.ErrNotRunning, b.status())
	case spec.Memory && len(rec.Volumes) > 0:
		// Two guests would write to one volume.
		return rec, 0, fmt.Errorf("%w: volumes are attached", hosterr.ErrIllegalState)
	}
	slot, err := h.claim(ctx, b)
	if err != nil {
		return rec, 0, err
	}
	need := allocated(h.paths.Overlay(b.id))
	if spec.Memory {
		need += int64(rec.MemoryMB) << 20
	}
	if err := h.room(need); err != nil {
		return rec, 0, err
	}
	if err := makeStateDir(dir, slot); err != nil {
		return rec, 0, err
	}
	if !spec.Memory {
		// The disk will be booted from: what only the guest's memory holds of it
		// is to be there.
		if err := h.guests.Flush(ctx, slot.Number); err != nil {
			return rec, 0, err
		}
	}
	began := h.now()
	if spec.Memory {
		h.guests.Freeze(ctx, b.id, slot.Number)
	}
	if err := h.still(ctx, b, p); err != nil {
		h.guests.SetClockSoon(b.guest())
		return rec, 0, err
	}
	copyErr := h.copyStill(ctx, b, &rec, p, dir, spec.Memory)
	if err := errors.Join(copyErr, h.unpause(ctx, b, p)); err != nil {
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

// copyStill copies what must not move meanwhile, side by side.
func (h *Host) copyStill(ctx context.Context, b *box, rec *ledger.Record, p VMM, dir string, memory bool) error {
	var group errgroup.Group
	group.Go(func() error { return image.CloneOverlay(h.paths.Overlay(b.id), filepath.Join(dir, fileOverlay)) })
	if memory {
		group.Go(func() error {
			if err := p.Snapshot(ctx, dir); err != nil {
				return fmt.Errorf("save VM: %w", err)
			}
			return nil
		})
		if rec.SharedRAM {
			group.Go(func() error { return image.CloneOverlay(h.paths.RAM(b.id), memoryOf(dir)) })
		}
	}
	return group.Wait()
}

// useCapture returns a capture whose files stay until letGo, fetched from the
// snapshot store where it is not here, by the digest of its manifest.
func (h *Host) useCapture(ctx context.Context, id, digest string) (*capture, error) {
	for {
		if c := h.captures.pin(id); c != nil {
			h.used(c)
			return c, nil
		}
		if again, err := h.untilGone(ctx, id); err != nil {
			return nil, err
		} else if again {
			continue
		}
		if h.remote == nil {
			return nil, fmt.Errorf("%w: %s", hosterr.ErrNoSnapshot, id)
		}
		c, mine, err := h.captures.begin(id)
		if err != nil {
			return nil, err
		}
		if mine {
			detached := h.work.Detach(ctx)
			fetch := func() (hostapi.Capture, error) { return h.fetchCapture(detached, id, digest) }
			if !h.work.Go(func() { h.endCapture(c, fetch) }) {
				h.captures.end(c, hostapi.Capture{}, hosterr.ErrDraining)
			}
		}
		if err := wait(ctx, c.done); err != nil {
			return nil, err
		}
		if c.err != nil {
			return nil, c.err
		}
	}
}

// fetchTimeout bounds the fetching of one capture.
var fetchTimeout = timescale.Limit(30 * time.Minute)

func (h *Host) fetchCapture(ctx context.Context, id, digest string) (hostapi.Capture, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	dir := h.paths.CaptureTmp(id)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture: %w", err)
	}
	if err := h.remote.Fetch(ctx, id, digest, dir); err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture %s: %w", id, err)
	}
	m, err := readManifest(filepath.Join(dir, fileManifest))
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: it says that it is %s", hosterr.ErrBadSnapshot, m.ID)
	}
	if err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture %s: %w", id, err)
	}
	m.Stored, m.TransientBoot = true, ""
	if err := h.seal(dir, true, fileOverlay, vmm.FileConfig, vmm.FileState, vmm.FileMemory); err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture %s: %w", id, err)
	}
	return m.Capture, h.publish(dir, m, true)
}
