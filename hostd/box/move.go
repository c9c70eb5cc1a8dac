package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// A box moves to another host while it is hibernated. Here it is marked as leaving, and
// from then on nothing makes it run: the capture that is made of it stays all that it
// is, for as long as it takes to have it elsewhere. There it arrives under its own id,
// with a higher generation, and sleeps on. Then it is deleted here.

// arrivalTimeout bounds the arrival of a box: all of its memory is copied and flushed.
var arrivalTimeout = timescale.Limit(10 * time.Minute)

// errLeaving refuses to run a box that another host may have by now.
var errLeaving = fmt.Errorf("%w: it is being moved to another host", hosterr.ErrIllegalState)

// setLeaving marks a hibernated box as leaving, or ends that. The caller holds the
// operation lock, so no wake is under way.
func (b *box) setLeaving(ctx context.Context, leaving bool) error {
	rec := b.record()
	switch {
	case !leaving:
	case rec.State != ledger.Hibernated:
		return b.illegal("move")
	case len(rec.Volumes) > 0:
		return fmt.Errorf("%w: volumes are attached", hosterr.ErrIllegalState)
	default:
		if err := b.retryRelease(ctx); err != nil {
			return fmt.Errorf("its old VMM could not be ended: %w", err)
		}
	}
	return b.commit(func(r *ledger.Record) bool {
		changed := r.Leaving != leaving
		r.Leaving = leaving
		return changed
	})
}

// savedFiles are a saved state's. The RAM of some engines' is in the state.
var savedFiles = []string{vmm.FileConfig, vmm.FileState, vmm.FileMemory}

// copySaved copies the disk and the saved state of a box that is leaving into a
// capture's directory. Its VMM has ended, so no file changes meanwhile. The caller
// holds the operation lock.
func (b *box) copySaved(ctx context.Context, dir string) error {
	state := b.host.paths.State(b.id)
	if !capture.HasState(state) {
		return fmt.Errorf("%w: its saved memory is gone", hosterr.ErrBadSnapshot)
	}
	overlay := b.host.paths.Overlay(b.id)
	if err := b.host.disk.room(capture.Allocated(overlay) + capture.Allocated(capture.Memory(state))); err != nil {
		return err
	}
	if err := capture.MakeStateDir(dir, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	if err := image.CloneOverlay(overlay, filepath.Join(dir, capture.FileOverlay)); err != nil {
		return err
	}
	return copyState(ctx, state, dir)
}

func copyState(ctx context.Context, from, to string) error {
	for _, name := range savedFiles {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		src := filepath.Join(from, name)
		if _, err := os.Stat(src); errors.Is(err, os.ErrNotExist) && name == vmm.FileMemory {
			continue
		}
		if err := image.CloneOverlay(src, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// arrives makes a source one of a box that has left another host. Only that box goes
// on from it: any other would be its double.
func (s *source) arrives(id string) error {
	was, err := capture.IdentityIn(s.from)
	if err != nil {
		return err
	}
	if was.BoxID != id {
		return hosterr.Invalid("the capture is of another sandbox, which moves")
	}
	s.arriving = was
	return nil
}

// arrive makes everything that a hibernated box has. After an error the caller removes
// what was made, as of any create.
func (c *creation) arrive(ctx context.Context) error {
	if _, err := c.acquireSlot(ctx); err != nil {
		return err
	}
	paths := c.host.paths
	if err := c.host.disk.room(capture.Allocated(c.source.disk) + capture.Allocated(capture.Memory(c.source.from))); err != nil {
		return err
	}
	if err := os.Mkdir(paths.Box(c.id), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := image.CloneOverlay(c.source.disk, paths.Overlay(c.id)); err != nil {
		return err
	}
	tmp := paths.StateTmp(c.id)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := copyState(ctx, c.source.from, tmp); err != nil {
		return err
	}
	// As after a hibernate: disk and memory are on disk before the record says so.
	detached := func(string) error { return nil }
	if err := capture.Seal(tmp, detached, true, savedFiles...); err != nil {
		return err
	}
	if err := errors.Join(atomicfile.Sync(paths.Overlay(c.id)), os.Rename(tmp, paths.State(c.id)), atomicfile.Sync(paths.Box(c.id))); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return c.commit(func(r *ledger.Record) bool {
		r.Enter(ledger.Hibernated)
		r.SavedBy = c.source.savedBy
		return true
	})
}

// arrived ends the create of a box that sleeps: it takes no memory.
func (c *creation) arrived(ctx context.Context) {
	c.unreserve()
	c.host.metrics.created(string(c.rec.Boot), "ok")
	rec := c.record()
	c.host.open(&rec)
	c.host.log.InfoContext(ctx, "sandbox has moved here", "event", "sandbox.moved", "sandbox_id", c.id, "generation", c.generation, "template", c.source.tpl.Name)
	close(c.created)
	c.host.notify()
}
