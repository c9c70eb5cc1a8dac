package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// captureTimeout bounds one capture, flushing to disk included.
var captureTimeout = timescale.Limit(5 * time.Minute)

// Make keeps a running box's disk, and its memory where it is asked for, as they
// are at one moment. The same id again joins a capture that is under way,
// or answers with the one that is there. It goes on when ctx ends.
func (l *Local) Make(ctx context.Context, id string, spec hostapi.CaptureSpec) (hostapi.Capture, error) {
	switch {
	case !ValidID(id):
		return hostapi.Capture{}, hosterr.Invalid("capture: not an id")
	case !hostapi.ValidID(spec.BoxID):
		return hostapi.Capture{}, hosterr.Invalid("box_id is not %d characters of lower-case base32", hostapi.IDLength)
	case spec.After != "" && spec.After != hostapi.AfterResume:
		return hostapi.Capture{}, hosterr.Invalid("after: want %q", hostapi.AfterResume)
	}
	if !l.cfg.Ready() {
		return hostapi.Capture{}, hosterr.ErrDraining
	}
	c, first, err := l.begin(id)
	if err != nil {
		return hostapi.Capture{}, err
	}
	if first {
		detached := l.work.Detach(ctx)
		take := func() (hostapi.Capture, error) { return l.make(detached, id, &spec) }
		if !l.work.Go(func() { l.finish(c, take) }) {
			l.end(c, hostapi.Capture{}, hosterr.ErrDraining)
		}
	}
	if err := wait(ctx, c.done); err != nil {
		return hostapi.Capture{}, err
	}
	return c.info, c.err
}

// finish makes a capture and tells those who wait.
func (l *Local) finish(c *capture, take func() (hostapi.Capture, error)) {
	began := l.cfg.Now()
	info, err := take()
	if err != nil {
		err = hosterr.AsNoDisk(err)
		err = errors.Join(err, os.RemoveAll(l.tmp(c.id)))
	}
	c.used = l.cfg.Now()
	l.cfg.Took(c.used.Sub(began), err)
	l.end(c, info, err)
	l.cfg.Changed()
}

// make is everything from the box to the capture's directory.
func (l *Local) make(ctx context.Context, id string, spec *hostapi.CaptureSpec) (hostapi.Capture, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), captureTimeout)
	defer cancel()
	dir := l.tmp(id)
	rec, stood, err := l.cfg.Snapshot(ctx, dir, spec)
	if err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	names := []string{FileOverlay}
	if spec.Memory {
		names = append(names, vmm.FileConfig, vmm.FileState, vmm.FileMemory)
	}
	if err := Seal(dir, l.cfg.Detach, !spec.Transient, names...); err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	m := manifest{Format: manifestFormat, Capture: hostapi.Capture{
		ID: id, BoxID: rec.ID, WorkspaceID: rec.WorkspaceID, Template: rec.Template, BuildID: rec.BuildID,
		Engine: cmp.Or(rec.VMM.Engine, rec.SavedBy, l.cfg.Engine), // it may be an earlier one than this daemon's
		CPU:    rec.CPU, MemoryMB: rec.MemoryMB, DiskMB: rec.DiskMB, Memory: spec.Memory,
		MemoryBytes: Allocated(Memory(dir)), DiskBytes: Allocated(filepath.Join(dir, FileOverlay)),
		PauseMS: stood.Milliseconds(), CreatedAt: l.cfg.Now().UTC(),
	}}
	if rec.Leaving {
		m.Identity = identityOf(&rec)
	}
	if spec.Transient {
		m.TransientBoot = bootID()
	}
	if err := l.publish(dir, m, !spec.Transient); err != nil {
		return hostapi.Capture{}, fmt.Errorf("capture sandbox: %w", err)
	}
	l.cfg.Log.InfoContext(ctx, "sandbox is captured", "sandbox_id", rec.ID, "capture_id", id, "memory", spec.Memory, "pause_ms", m.PauseMS,
		"memory_bytes", m.MemoryBytes, "disk_bytes", m.DiskBytes)
	return m.Capture, nil
}

// publish gives a directory its manifest and then its name.
func (l *Local) publish(dir string, m manifest, sync bool) error {
	if err := writeManifest(dir, m, sync); err != nil {
		return err
	}
	if err := os.Rename(dir, l.path(m.ID)); err != nil {
		return err
	}
	if sync {
		return atomicfile.Sync(l.cfg.Dir)
	}
	return nil
}

// Use returns a capture and the directory of its files, which stay until release
// is called. It is fetched from the snapshot store where it is not here, by the
// digest of its manifest.
func (l *Local) Use(ctx context.Context, id, digest string) (info hostapi.Capture, dir string, release func(), err error) {
	c, err := l.use(ctx, id, digest)
	if err != nil {
		return info, "", nil, err
	}
	info, dir, release = l.held(c)
	return info, dir, release, nil
}

func (l *Local) use(ctx context.Context, id, digest string) (*capture, error) {
	for {
		if c := l.pin(id); c != nil {
			l.touch(c)
			return c, nil
		}
		if again, err := l.awaitEviction(ctx, id); err != nil {
			return nil, err
		} else if again {
			continue
		}
		if l.cfg.Remote == nil {
			return nil, fmt.Errorf("%w: %s", hosterr.ErrNoSnapshot, id)
		}
		c, first, err := l.begin(id)
		if err != nil {
			return nil, err
		}
		if first {
			detached := l.work.Detach(ctx)
			fetch := func() (hostapi.Capture, error) { return l.fetch(detached, id, digest) }
			if !l.work.Go(func() { l.finish(c, fetch) }) {
				l.end(c, hostapi.Capture{}, hosterr.ErrDraining)
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

func (l *Local) fetch(ctx context.Context, id, digest string) (hostapi.Capture, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	dir := l.tmp(id)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture: %w", err)
	}
	if err := l.cfg.Remote.Fetch(ctx, id, digest, dir); err != nil {
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
	if err := Seal(dir, l.cfg.Detach, true, FileOverlay, vmm.FileConfig, vmm.FileState, vmm.FileMemory); err != nil {
		return hostapi.Capture{}, fmt.Errorf("fetch capture %s: %w", id, err)
	}
	return m.Capture, l.publish(dir, m, true)
}
