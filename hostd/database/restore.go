package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/timescale"
)

// restoring is how far the restore of a database is, as the host sees it. The guest
// has its phase on disk, so whoever comes goes on from there.
type restoring struct {
	bases   int    // base backups that this agent has put
	failed  string // why it cannot end; empty: it goes on, or is done
	trouble string // why it does not go on for the moment
}

// done reports whether the database has its own data.
func (r *restoring) done(spec *hostapi.DatabaseSpec, st *pgapi.Status) bool {
	switch {
	case spec.Restore == nil:
		return true
	case st.Restore == nil || st.Restore.Phase != pgapi.RestoreDone:
		return false
	}
	// On a disk that was copied, the status may still tell of the other database's restore.
	return !spec.Restore.WithDisk || st.Restore.As == spec.Archive.Name
}

// state is what the host tells of it. What the guest calls failed is begun anew until
// this agent has given it up.
func (r *restoring) state(spec *hostapi.DatabaseSpec, st *pgapi.Status) *pgapi.RestoreStatus {
	if spec.Restore == nil {
		return nil
	}
	out := pgapi.RestoreStatus{Phase: pgapi.RestoreUnpacking, TargetTime: spec.Restore.TargetTime}
	switch {
	case r.done(spec, st):
		out = *st.Restore
	case spec.Restore.WithDisk:
		out.Phase = pgapi.RestoreRecovering
	case st.Restore != nil && (st.Restore.Phase != pgapi.RestoreFailed || r.failed != ""):
		out = *st.Restore
	}
	switch {
	case r.done(spec, st):
	case r.failed != "":
		out.Phase, out.Error = pgapi.RestoreFailed, r.failed
	case r.trouble != "":
		out.Error = r.trouble
	}
	return &out
}

var (
	restoreLimit = timescale.Limit(time.Minute)
	fetchLimit   = timescale.Limit(2 * time.Minute)
	unpackLimit  = timescale.Limit(15 * time.Minute) // until what the guest has unpacked is on its disk
)

var errNoMore = errors.New("the guest takes no more")

// errRestoreFailed is a restore that cannot end.
type errRestoreFailed struct{ why string }

func (e errRestoreFailed) Error() string { return e.why }

// restore brings a database its data, if it has none of its own, and reports whether
// it is there. It returns false when it never will, or when ctx has ended.
func (a *agent) restore(ctx context.Context) bool {
	a.mu.Lock()
	spec := a.spec
	a.mu.Unlock()
	if spec.Restore == nil {
		return true
	}
	retry := newBackoff(time.Second, 30*time.Second)
	for {
		done, err := a.restoreStep(ctx, spec)
		if ctx.Err() != nil {
			return false
		}
		if lost, ok := errors.AsType[errRestoreFailed](err); ok {
			a.cfg.Log.Error("a database cannot be restored", "sandbox_id", a.id, "error", err)
			a.cfg.Metrics.restore(err)
			a.note(func(r *restoring) { r.failed, r.trouble = lost.why, "" })
			return false
		}
		if err == nil {
			a.note(func(r *restoring) { r.trouble = "" })
			retry.reset()
			if done {
				a.cfg.Metrics.restore(nil)
				return true
			}
			if !pause(ctx, startPause/5) { // a guest may say the same for ever
				return false
			}
			continue
		}
		a.cfg.Log.Warn("the restore of a database does not go on, it is tried again", "sandbox_id", a.id, "error", err)
		a.note(func(r *restoring) { r.trouble = trouble(err) })
		if !retry.wait(ctx) {
			return false
		}
	}
}

func (a *agent) note(change func(*restoring)) {
	a.mu.Lock()
	change(&a.restoring)
	a.mu.Unlock()
	a.tell()
}

// restoreStep does what comes next.
func (a *agent) restoreStep(ctx context.Context, spec *hostapi.DatabaseSpec) (done bool, err error) {
	st, err := a.look(ctx)
	if err != nil {
		return false, err
	}
	r := spec.Restore
	if r.WithDisk {
		return a.adoptStep(ctx, spec, &st)
	}
	a.mu.Lock()
	bases := a.restoring.bases
	a.mu.Unlock()
	phase := ""
	if st.Restore != nil {
		phase = st.Restore.Phase
	}
	switch {
	case phase == pgapi.RestoreDone:
		return true, nil
	case phase == pgapi.RestoreUnpacked:
		_, err := within(ctx, restoreLimit, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, a.client.Restore(ctx, pgapi.Restore{TargetTime: r.TargetTime})
		})
		return false, err
	case phase == pgapi.RestoreRecovering:
		return false, a.feed(ctx)
	case phase == pgapi.RestoreFailed && bases > 0:
		return false, errRestoreFailed{st.Restore.Error}
	default: // none, cut off, or failed before this agent's time
		return false, a.putBase(ctx, r)
	}
}

// putBase puts the base backup in the place of the guest's data.
func (a *agent) putBase(ctx context.Context, r *hostapi.DatabaseRestore) error {
	base, err := within(ctx, listLimit, func(ctx context.Context) (hostapi.BaseBackup, error) { return a.db.source.Choose(ctx, r.TargetTime) })
	if err != nil {
		return lost(&bucketFault{err})
	}
	if err := a.fits(base); err != nil {
		return err
	}
	a.cfg.Log.Info("a database is restored", "sandbox_id", a.id, "archive", r.From.Name, "backup", base.ID, "bytes", base.SizeBytes)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	defer stall.Stop()
	tar, w := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := a.db.source.Backup(ctx, base.ID, progress{w, stall})
		stall.Reset(unpackLimit)
		_ = w.CloseWithError(err) // the guest sees a stream that was cut
		read <- err
	}()
	_, err = a.client.RestoreBase(ctx, tar)
	_ = tar.CloseWithError(errNoMore)
	readErr := <-read
	switch {
	case err == nil:
		a.note(func(r *restoring) { r.bases++ })
		return nil
	case errors.Is(readErr, pgarchive.ErrDamaged):
		return lost(readErr)
	case pgapi.HasCode(err, pgapi.CodeNoRoom):
		return a.noRoom(base)
	case pgapi.HasCode(err, pgapi.CodeDamaged), pgapi.HasCode(err, pgapi.CodeUnsafe):
		return errRestoreFailed{fmt.Sprintf("base backup %s of archive %s: %v", base.ID, r.From.Name, err)}
	}
	return fmt.Errorf("bring base backup %s: %w", base.ID, notBrought(readErr, errors.Join(context.Cause(ctx), err)))
}

// notBrought tells apart why a guest did not get a base backup: reading it failed, or the
// guest took no more of it. HTTP closes the pipe as soon as a guest refuses.
func notBrought(readErr, err error) error {
	if readErr == nil || errors.Is(readErr, errNoMore) || errors.Is(readErr, io.ErrClosedPipe) {
		return err
	}
	return &bucketFault{errors.Join(readErr, err)}
}

// fits fails if a base backup surely is too large for the disk. Whether one fits beside
// what else is there, the guest finds out.
func (a *agent) fits(base hostapi.BaseBackup) error {
	if base.DataBytes > int64(a.diskMB)<<20 {
		return a.noRoom(base)
	}
	return nil
}

func (a *agent) noRoom(base hostapi.BaseBackup) error {
	return errRestoreFailed{fmt.Sprintf("its %d MB of data do not fit the disk of its size, %d MB", base.DataBytes>>20, a.diskMB)}
}

// lost makes a failure final that trying again does not help.
func lost(err error) error {
	if errors.Is(err, pgarchive.ErrDamaged) || errors.Is(err, pgarchive.ErrNothing) || errors.Is(err, pgarchive.ErrInvalid) {
		return errRestoreFailed{err.Error()}
	}
	return err
}

// feed brings recovery what it asks for, until it asks no more.
func (a *agent) feed(ctx context.Context) error {
	files := newAhead(ctx, a.db.source, a.ahead)
	defer files.close()
	for {
		name, asked, err := a.nextFetch(ctx)
		switch {
		case pgapi.HasCode(err, pgapi.CodeNotReady):
			// It may have ended; the status tells.
			if !pause(ctx, startPause) {
				return context.Cause(ctx)
			}
			return nil
		case err != nil:
			return err
		case !asked:
			if !pause(ctx, startPause/5) { // it does not wait when recovery has ended
				return context.Cause(ctx)
			}
			return nil
		}
		if err := a.bring(ctx, files, name); err != nil {
			return err
		}
	}
}

func (a *agent) nextFetch(ctx context.Context) (name string, asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollWait/4+pollSlack)
	defer cancel()
	return a.client.NextFetch(ctx, pollWait/4)
}

// bring answers what recovery asked for. What cannot be read for now is an error: the
// guest waits.
func (a *agent) bring(ctx context.Context, files *ahead, name string) error {
	content, sum, err := files.get(ctx, name)
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	switch {
	case err == nil:
		err = a.client.Provide(ctx, name, content, sum)
	case errors.Is(err, pgarchive.ErrNotArchived):
		err = a.client.Missing(ctx, name)
	case errors.Is(err, pgarchive.ErrDamaged):
		err = a.client.FetchFailed(ctx, name, err.Error())
	default:
		return &bucketFault{err}
	}
	if pgapi.HasCode(err, pgapi.CodeNotOffered) {
		return nil // asked for no more
	}
	return err
}
