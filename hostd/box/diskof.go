package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

// fromDisk is the source of a box that is booted from a copy of another one's disk.
func (h *Host) fromDisk(ctx context.Context, spec *hostapi.BoxSpec) (*source, error) {
	other, err := h.lookup(spec.DiskOf)
	if err != nil {
		return nil, fmt.Errorf("the sandbox whose disk is copied: %w", err)
	}
	rec := other.record()
	if len(rec.Volumes) > 0 {
		return nil, fmt.Errorf("%w: volumes are attached", hosterr.ErrIllegalState)
	}
	tpl, err := h.templates.Build(ctx, rec.BuildID)
	if err != nil {
		return nil, err
	}
	return &source{tpl: tpl, diskOf: other}, nil
}

// maxCopy is how much is copied, in bytes, while nobody can have a box run on, where
// the file system cannot share blocks: a second's work or two.
var maxCopy int64 = 1 << 30

// copyTime bounds for how long a box stands still for a copy of its disk, and flushTime
// the flush before it.
var (
	copyTime  = timescale.Limit(10 * time.Second)
	flushTime = timescale.Limit(time.Minute)
)

// copyDisk clones the box's disk as a power cut would leave it. A box that runs stands
// still meanwhile. Where blocks are shared, that first has the file system write what the
// disk has in memory, so it is flushed before. The clone is not: the first flush of the
// new box's guest has all of it written to disk.
func (b *box) copyDisk(ctx context.Context, dst string) error {
	if err := b.acquire(ctx); err != nil {
		return err
	}
	defer b.release()
	rec, p := b.running()
	switch {
	case b.removing() != removalNone:
		return fmt.Errorf("%w: the sandbox whose disk is copied is being deleted", hosterr.ErrNotFound)
	case p == nil && rec.State != ledger.Hibernated && rec.State != ledger.Failed:
		return b.illegal("copy the disk of")
	}
	src := b.host.paths.Overlay(b.id)
	size := capture.Allocated(src)
	if err := b.host.disk.room(size); err != nil {
		return err
	}
	shares := image.SharesBlocks(src, filepath.Dir(dst))
	if size > maxCopy && !shares {
		return fmt.Errorf("%w: it would stand still until %d MB of its disk are copied, for the file system shares no blocks", hosterr.ErrIllegalState, size>>20)
	}
	if p != nil && shares {
		if err := b.patiently(ctx, flushTime, func() error { return atomicfile.Sync(src) }); err != nil {
			return fmt.Errorf("flush the disk that is copied: %w", err)
		}
	}
	if p != nil {
		return b.copyDiskPaused(ctx, p, dst)
	}
	if err := b.endLast(ctx); err != nil {
		return err
	}
	return image.CloneOverlay(src, dst)
}

// copyDiskPaused is copyDisk of a box that runs. It is not cut off with the new box.
func (b *box) copyDiskPaused(ctx context.Context, p VMM, dst string) error {
	ctx = context.WithoutCancel(ctx) // each step has a limit of its own
	began := b.host.now()
	vm := &saver{box: b, process: p}
	defer b.host.guests.SetClockSoon(b.guest())
	if err := vm.pause(ctx); err != nil {
		return err
	}
	err := b.copyInTime(ctx, dst)
	if err := errors.Join(err, vm.resume(ctx)); err != nil {
		return err
	}
	b.host.log.InfoContext(ctx, "disk is copied", "sandbox_id", b.id, "pause_ms", b.host.now().Sub(began).Milliseconds(), "disk_bytes", capture.Allocated(dst))
	return nil
}

// copyInTime clones the disk to dst, or not at all: a copy that comes too late is of a
// disk that has changed.
func (b *box) copyInTime(ctx context.Context, dst string) error {
	tmp := fmt.Sprintf("%s.%d", dst, b.host.now().UnixNano()) // no other attempt's
	if err := b.patiently(ctx, copyTime, func() error { return b.host.clone(b.host.paths.Overlay(b.id), tmp) }, func() { _ = os.Remove(tmp) }); err != nil {
		return err
	}
	return os.Rename(tmp, dst)
}

// patiently does something that waits for a disk, which cannot be cut off, and waits for
// it so long. If it ends later, it is undone.
func (b *box) patiently(ctx context.Context, limit time.Duration, do func() error, undo ...func()) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mu sync.Mutex
	late := false
	done := make(chan error, 1)
	begun := b.host.work.Go(func() {
		err := do()
		mu.Lock()
		defer mu.Unlock()
		if late && err == nil {
			for _, f := range undo {
				f()
			}
		}
		done <- err
	})
	if !begun {
		return hosterr.ErrDraining
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case err := <-done:
		return err
	default:
	}
	late = true
	return fmt.Errorf("%w: %w", hosterr.ErrDiskStalled, context.Cause(ctx))
}
