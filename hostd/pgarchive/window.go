package pgarchive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// listing is what an archive has, by one look.
type listing struct {
	runs    []run                // of segments without a gap, ascending
	backups []*manifest          // that can be read, the first to finish first
	damaged map[string]error     // those that cannot, by their ids
	written map[string]time.Time // manifests, by the bucket's clock
	parts   map[string]time.Time
	wal     []walObject
	aside   []bucket.Object
	size    int64
	objects int
	fenced  bool
}

// run is segments without a gap. An archive has those of one timeline; were there
// more, any of them would do for a number.
type run struct{ first, last walObject }

// walObject is a WAL file of an archive.
type walObject struct {
	name string
	pgapi.WALName
}

// look lists the archive, and again while a segment that the list lacks is there: a
// list shows objects that come meanwhile in any order.
func (a *Archive) look(ctx context.Context) (*listing, error) {
	for tries := 5; ; tries-- {
		l, err := a.list(ctx)
		if err != nil || tries == 0 {
			return l, err
		}
		stale, err := a.stale(ctx, l)
		if err != nil || !stale {
			return l, err
		}
	}
}

func (a *Archive) stale(ctx context.Context, l *listing) (bool, error) {
	for i := range len(l.runs) - 1 {
		object := walDir + pgapi.SegmentName(l.runs[i+1].first.Timeline, l.runs[i].last.Segment+1)
		there, err := a.there(ctx, object)
		if err != nil || there {
			return there, err
		}
	}
	return false, nil
}

// list reads manifests after it has seen the WAL. Prune removes a manifest before it
// removes WAL, so what is listed has the WAL that it had.
func (a *Archive) list(ctx context.Context) (*listing, error) {
	l := &listing{damaged: map[string]error{}, written: map[string]time.Time{}, parts: map[string]time.Time{}}
	var ids []string
	err := a.store.bucket.Walk(ctx, a.prefix(), func(o bucket.Object) error {
		l.size += o.Size
		l.objects++
		dir, name := "", strings.TrimPrefix(o.Key, a.prefix())
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			dir, name = name[:i+1], name[i+1:]
		}
		switch {
		case dir == walDir:
			if w, err := pgapi.ParseWALName(name); err == nil {
				l.wal = append(l.wal, walObject{name, w})
			}
		case dir == backupsDir:
			ids = append(ids, name)
			l.written[name] = o.Written
		case dir == asideDir:
			l.aside = append(l.aside, o)
		case strings.HasPrefix(dir, partsDir):
			id := strings.TrimSuffix(strings.TrimPrefix(dir, partsDir), "/")
			if o.Written.After(l.parts[id]) {
				l.parts[id] = o.Written
			}
		case dir == "" && name == fenceName:
			l.fenced = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		m, err := a.manifest(ctx, id)
		switch {
		case err == nil:
			l.backups = append(l.backups, m)
		case errors.Is(err, ErrDamaged):
			l.damaged[id] = err
		case !errors.Is(err, ErrNothing): // removed meanwhile
			return nil, err
		}
	}
	slices.SortFunc(l.backups, func(x, y *manifest) int {
		return cmp.Or(x.FinishedAt.Compare(y.FinishedAt), strings.Compare(x.ID, y.ID))
	})
	slices.SortFunc(l.wal, func(x, y walObject) int {
		return cmp.Or(cmp.Compare(x.Segment, y.Segment), strings.Compare(x.name, y.name))
	})
	for _, w := range l.wal {
		if w.Kind != pgapi.WALSegment {
			continue
		}
		if n := len(l.runs); n > 0 && w.Segment <= l.runs[n-1].last.Segment+1 {
			l.runs[n-1].last = w
		} else {
			l.runs = append(l.runs, run{w, w})
		}
	}
	return l, nil
}

// unreadable is what is wrong with the manifests that cannot be read.
func (l *listing) unreadable() error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(l.damaged)) {
		errs = append(errs, l.damaged[id])
	}
	return errors.Join(errs...)
}

// runOf is the run that a base backup begins in, if that has all that makes the
// backup consistent.
func (l *listing) runOf(m *manifest) (run, bool) {
	for _, r := range l.runs {
		if r.first.Segment <= m.start && m.start <= r.last.Segment {
			return r, m.stop <= r.last.Segment
		}
	}
	return run{}, false
}

// end is the latest segment, if there is one.
func (l *listing) end() (uint64, bool) {
	if len(l.runs) == 0 {
		return 0, false
	}
	return l.runs[len(l.runs)-1].last.Segment, true
}

// gap names the first segment that is missing from one on, if something comes after.
func (a *Archive) gap(l *listing, from uint64) error {
	for _, r := range l.runs {
		if r.last.Segment < from {
			continue
		}
		if r.first.Segment <= from {
			from = r.last.Segment + 1
			continue
		}
		return &DamagedError{Object: a.prefix() + walDir + pgapi.SegmentName(r.first.Timeline, from), Cause: errMissing}
	}
	return nil
}

// flushTime is by how much a commit may be older than the last write to the segment
// before its own: the end of one and the begin of the next leave memory by one flush.
const flushTime = 2 * time.Second

// restorableTo is up to when all commits are in the segments up to one.
func (a *Archive) restorableTo(ctx context.Context, w walObject) (time.Time, error) {
	h, err := a.walHeader(ctx, walDir+w.name)
	if errors.Is(err, bucket.ErrNotFound) {
		err = &DamagedError{Object: a.prefix() + walDir + w.name, Cause: errMissing}
	}
	if err != nil {
		return time.Time{}, err
	}
	at := h.ArchivedAt // a clock that is ahead does not change what came by then
	if !h.WrittenAt.IsZero() && h.WrittenAt.Before(at) {
		at = h.WrittenAt
	}
	return at.Add(-flushTime), nil
}

// Info tells what there is. Together with ErrDamaged it tells of what is left.
//
// Restorable is each moment from FirstRestorable to LastRestorable. All commits up to
// the latter are archived; it is never before FirstRestorable, from where on a restore
// without a target is possible. Neither is after a gap in the WAL, unless a later base
// backup is; then Earlier has the moments before the gap to which Choose finds one.
func (a *Archive) Info(ctx context.Context) (hostapi.ArchiveInfo, error) {
	l, err := a.look(ctx)
	var info hostapi.ArchiveInfo
	if err == nil {
		info, err = a.info(ctx, l)
	}
	if err != nil {
		err = fmt.Errorf("archive %s: %w", a.name, err)
	}
	return info, err
}

func (a *Archive) info(ctx context.Context, l *listing) (hostapi.ArchiveInfo, error) {
	info := hostapi.ArchiveInfo{BaseBackups: []hostapi.BaseBackup{}, SizeBytes: l.size, Objects: l.objects, Fenced: l.fenced}
	if len(l.runs) > 0 {
		info.LastLSN = lsnAfter(l.runs[0].last.Segment)
	}
	start := uint64(math.MaxUint64)
	for _, m := range l.backups {
		info.BaseBackups = append(info.BaseBackups, m.base())
		start = min(start, m.start)
	}
	var window run
	found := false
	for _, m := range l.backups {
		r, ok := l.runOf(m)
		if ok && (!found || r.first.Segment > window.first.Segment) { // the first one to be finished in the latest run
			window, found = r, true
			info.FirstRestorable = m.FinishedAt
		}
	}
	missing := a.gap(l, start)
	if !found {
		return info, errors.Join(l.unreadable(), missing)
	}
	if last := a.gap(l, window.first.Segment); last != nil {
		missing = last // nothing behind it can be restored
	}
	damaged := errors.Join(l.unreadable(), missing)
	earlier, err := a.earlier(ctx, l, window)
	if err != nil {
		return info, err
	}
	info.Earlier = earlier
	info.LastLSN = lsnAfter(window.last.Segment)
	_, err = a.choose(ctx, l, nil)
	info.EndLost = errors.Is(err, ErrDamaged)
	to, err := a.restorableTo(ctx, window.last)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return info, err
	}
	info.LastRestorable = to
	if to.Before(info.FirstRestorable) {
		info.LastRestorable = info.FirstRestorable
	}
	return info, errors.Join(damaged, err)
}

// earlier returns what can be restored from the runs before a window's.
func (a *Archive) earlier(ctx context.Context, l *listing, window run) (out []hostapi.Window, err error) {
	for _, r := range l.runs {
		if r.first.Segment >= window.first.Segment {
			break
		}
		i := slices.IndexFunc(l.backups, func(m *manifest) bool {
			of, ok := l.runOf(m)
			return ok && of == r
		})
		if i < 0 {
			continue
		}
		switch last, err := a.restorableTo(ctx, r.last); {
		case errors.Is(err, ErrDamaged):
		case err != nil:
			return nil, err
		case !last.Before(l.backups[i].FinishedAt):
			out = append(out, hostapi.Window{First: l.backups[i].FinishedAt, Last: last})
		}
	}
	return out, nil
}

// Choose returns the base backup that a restore begins with: to a moment, or to the
// end of the archive. It is the newest that was finished by then, and from which the
// WAL leads there, or to the end where that is before. ErrNothing: there is none yet;
// ErrDamaged: there would be one.
func (a *Archive) Choose(ctx context.Context, target *time.Time) (hostapi.BaseBackup, error) {
	l, err := a.look(ctx)
	var m *manifest
	if err == nil {
		m, err = a.choose(ctx, l, target)
	}
	if err != nil {
		return hostapi.BaseBackup{}, fmt.Errorf("choose a base backup of archive %s: %w", a.name, err)
	}
	return m.base(), nil
}

func (a *Archive) choose(ctx context.Context, l *listing, target *time.Time) (*manifest, error) {
	var gap error
	end, _ := l.end()
	for _, m := range slices.Backward(l.backups) {
		if target != nil && m.FinishedAt.After(*target) {
			continue
		}
		r, ok := l.runOf(m)
		if ok && r.last.Segment < end { // it does not lead to the end
			ok = false
			if target != nil {
				to, err := a.restorableTo(ctx, r.last)
				if err != nil {
					return nil, err
				}
				ok = !target.After(to)
			}
		}
		if ok {
			return m, nil
		}
		if gap == nil {
			gap = a.gap(l, m.start)
		}
	}
	if err := errors.Join(gap, l.unreadable()); err != nil {
		return nil, err
	}
	if target != nil {
		return nil, fmt.Errorf("%w: to %s", ErrNothing, target.UTC().Format(time.RFC3339Nano))
	}
	return nil, ErrNothing
}

// lsnAfter is the position right after a segment.
func lsnAfter(segment uint64) string {
	lsn := (segment + 1) * pgapi.SegmentBytes
	return fmt.Sprintf("%X/%X", lsn>>32, uint32(lsn))
}
