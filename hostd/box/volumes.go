package box

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// A volume is plugged into a guest that runs: the state it was restored from
// knows nothing of it. The guest finds it by its serial number, which is the
// volume's id. From then on it is a part of the VM, saved and restored with it.

const volumeFS = "ext4"

func asVolumes(list []hostapi.VolumeAttach) []ledger.Volume {
	var out []ledger.Volume
	for _, v := range list {
		out = append(out, ledger.Volume{ID: v.ID, MountPath: v.MountPath})
	}
	return out
}

// attachVolumes gives a box's volumes to the user of its slot, and returns their
// paths. What was attached is in the record, so whoever takes the box apart
// detaches it.
func (l *launch) attachVolumes(ctx context.Context) (map[string]string, error) {
	volumes := l.box.record().Volumes
	if len(volumes) == 0 {
		return nil, nil
	}
	if l.host.volumes == nil {
		return nil, hosterr.Invalid("this host has no volumes")
	}
	paths := map[string]string{}
	for _, v := range volumes {
		path, err := l.host.volumes.Attach(ctx, l.box.id, v.ID, l.slot.UID, l.slot.GID)
		if err != nil {
			return nil, fmt.Errorf("attach volume %s: %w", v.ID, err)
		}
		paths[v.ID] = path
	}
	return paths, nil
}

func (l *launch) plugVolumes(ctx context.Context) error {
	paths, err := l.attachVolumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range l.box.record().Volumes {
		err := l.process.AddDisk(ctx, vmm.DiskConfig{ID: v.ID, Path: paths[v.ID], ImageType: vmm.ImageRaw, Serial: v.ID})
		if err != nil {
			return fmt.Errorf("plug volume %s: %w", v.ID, err)
		}
	}
	return nil
}

// mountVolumes has the guest mount what was plugged in.
func (l *launch) mountVolumes(ctx context.Context) error {
	for _, v := range l.box.record().Volumes {
		if err := l.host.guests.Mount(ctx, l.slot.Number, guestapi.Mount{Serial: v.ID, Path: v.MountPath, FSType: volumeFS}); err != nil {
			return err
		}
	}
	return nil
}

// guestFlushTimeout bounds for how long whoever stops or ends a guest waits for what it
// still has to write.
var guestFlushTimeout = timescale.Limit(15 * time.Second)

// flushGuest has a guest with volumes write to them what it holds in memory, before it is
// stopped, or ended: they outlive it. The tenant's processes stand still from then on, so
// that no command ends and is answered whose writes come too late. Where the guest runs
// on, an identity thaws them. A guest that does not answer loses what it would lose in a
// power cut.
func (b *box) flushGuest(ctx context.Context, p VMM) {
	rec := b.record()
	if p == nil || ended(p) || len(rec.Volumes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, guestFlushTimeout)
	defer cancel()
	if err := b.host.guests.FlushFrozen(ctx, rec.Slot); err != nil {
		b.reportUnflushed(ctx, "its guest did not flush them", err)
	}
}

// flushBeforeEnd is flushGuest of a guest that is ended next. One that is paused is
// resumed for it: the flush before its pause may have failed, and not every pause has one.
// Its processes stand still all the while, since that flush, if it froze them.
func (b *box) flushBeforeEnd(ctx context.Context) {
	if len(b.record().Volumes) == 0 {
		return
	}
	p, killed := b.lastVMM(ctx)
	if p == nil || killed || ended(p) {
		return
	}
	vm := &saver{box: b, process: p}
	if vm.state() == vmm.StatePaused {
		if err := vm.resumeOnce(ctx); err != nil {
			b.reportUnflushed(ctx, "it is paused and could not be resumed to flush them", err)
			return
		}
	}
	b.flushGuest(ctx, p)
}

// FlushVolumes has every guest that runs with volumes write to them what it holds in
// memory. It is for the end of the daemon: the machine may be about to stop, and ends the
// guests then unasked. They run on meanwhile. An exclusive box is a database's, which syncs
// before it acknowledges.
func (h *Host) FlushVolumes(ctx context.Context) {
	var flushes sync.WaitGroup
	defer flushes.Wait()
	for _, b := range h.all() {
		rec, p := b.running()
		if p == nil || ended(p) || len(rec.Volumes) == 0 || rec.Exclusive {
			continue
		}
		flushes.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, guestFlushTimeout)
			defer cancel()
			if err := h.guests.Flush(ctx, rec.Slot); err != nil {
				b.reportUnflushed(ctx, "its guest did not flush them when the host daemon stopped", err)
			}
		})
	}
}

// reportUnflushed logs, and emits as an event, that a guest stops or ends without a flush
// of its volumes.
func (b *box) reportUnflushed(ctx context.Context, reason string, err error) {
	b.host.log.WarnContext(ctx, "volumes may lack what was written last", "event", string(hostapi.EventVolumeUnflushed),
		"sandbox_id", b.id, "reason", reason, "error", err)
	b.host.events.Emit(b.id, hostapi.EventVolumeUnflushed, "its volumes may lack what was written last", map[string]any{"reason": reason})
}

// detachVolumes takes the volumes of a box back whose VMM has ended.
func (b *box) detachVolumes() error {
	volumes := b.record().Volumes
	if b.host.volumes == nil {
		return nil
	}
	var failed error
	for _, v := range volumes {
		if err := b.host.volumes.Detach(b.id, v.ID); err != nil {
			failed = errors.Join(failed, fmt.Errorf("detach volume %s: %w", v.ID, err))
		}
	}
	return failed
}
