package database

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/timescale"
)

// facts is what is known of a database's archive. It outlives sleeps.
type facts struct {
	archive *pgarchive.Archive
	now     func() time.Time

	mu      sync.Mutex
	info    hostapi.ArchiveInfo // as listed last
	known   bool                // it was listed
	stale   bool                // something was stored since
	lag     lag
	quota   size
	put     size          // since the listing began
	served  time.Time     // when the database first served
	fencing bool          // another incarnation has taken over
	damage  error         // what is missing of the archive, or is not what was stored
	damaged time.Time     // when that was found first
	failing time.Time     // since when nothing can be stored
	failure string        // hostapi.ArchiveCause…
	unsaved time.Time     // since when base backups fail
	fault   string        // hostapi.ArchiveCause…, of the last of them
	want    chan struct{} // capacity 1: the archive is to be listed

	made hostapi.BaseBackup // the last that was made here: a listing may be older
}

func newFacts(archive *pgarchive.Archive, now func() time.Time) *facts {
	return &facts{archive: archive, now: now, want: make(chan struct{}, 1)}
}

// listEvery is how old a listing gets while something is stored.
const listEvery = 5 * time.Minute

var listLimit = timescale.Limit(2 * time.Minute)

// begin notes that the database runs anew: see lag.
func (f *facts) begin(quota size, since time.Time, settled bool, quiet time.Duration) {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quota = quota
	f.lag.begin(since, now, settled, quiet)
}

// keep lists the archive at first, when it is asked to, and now and then.
func (f *facts) keep(ctx context.Context, cfg *Config) {
	retry := newBackoff(time.Second, time.Minute)
	for {
		found, err := f.list(ctx)
		if found != nil {
			cfg.Log.Error("a database's archive is damaged", "error", found)
		}
		if err != nil {
			if ctx.Err() == nil {
				cfg.Log.Warn("a database's archive cannot be listed", "error", err)
			}
			if !retry.wait(ctx) {
				return
			}
			continue
		}
		retry.reset()
		cfg.Boxes.Notify()
		if !f.await(ctx) {
			return
		}
	}
}

// await returns when the archive is to be listed again; false: ctx ended.
func (f *facts) await(ctx context.Context) bool {
	tick := time.NewTicker(listEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.want:
			return true
		case <-tick.C:
			f.mu.Lock()
			stale := f.stale
			f.mu.Unlock()
			if stale {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// list looks at the archive, and returns damage that is new.
func (f *facts) list(ctx context.Context) (found, err error) {
	f.mu.Lock()
	before := f.put
	f.stale = false
	f.mu.Unlock()
	info, err := within(ctx, listLimit, f.archive.Info)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case errors.Is(err, pgarchive.ErrDamaged): // info tells of what is left
		if f.damage == nil || err.Error() != f.damage.Error() {
			f.damage, f.damaged, found = err, f.now(), err
		}
	case err != nil:
		f.stale = true
		return nil, err
	default:
		f.damage, f.damaged = nil, time.Time{}
	}
	f.info, f.known = info, true
	f.put.bytes, f.put.objects = f.put.bytes-before.bytes, f.put.objects-before.objects
	f.fencing = f.fencing || info.Fenced
	f.lag.stored(parseLSN(info.LastLSN))
	return found, nil
}

// backedUp notes a base backup that was made, which a listing has yet to show.
func (f *facts) backedUp(b hostapi.BaseBackup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made = b
	f.unsaved, f.fault = time.Time{}, ""
	f.relist()
}

// notBackedUp notes a base backup that failed.
func (f *facts) notBackedUp(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unsaved.IsZero() {
		f.unsaved = f.now()
	}
	f.fault = cause(err)
}

// lastBackup is the base backup that finished last.
func (f *facts) lastBackup() (b hostapi.BaseBackup, ok bool) {
	if n := len(f.info.BaseBackups); n > 0 {
		b = f.info.BaseBackups[n-1]
	}
	if f.made.FinishedAt.After(b.FinishedAt) {
		b = f.made
	}
	return b, !b.FinishedAt.IsZero()
}

// relist has the archive listed soon.
func (f *facts) relist() {
	select {
	case f.want <- struct{}{}:
	default:
	}
}

// beyond reports whether the archive has reached a quota. It is listed again now and
// then, for others prune it.
func (f *facts) beyond(quota size) bool {
	full := !f.put.plus(size{f.info.SizeBytes, f.info.Objects}).within(quota)
	f.stale = f.stale || full
	return full
}

// refusesBackup reports whether the archive has no room for a base backup. Where nothing
// could ever be pruned without one, there is some beyond the quota.
func (f *facts) refusesBackup() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.needsBackup() {
		return f.beyond(f.quota.exceeded())
	}
	return f.beyond(f.quota)
}

// refusesWAL reports whether the archive has no room for WAL. There is some beyond the
// quota for what makes the last base backup whole.
func (f *facts) refusesWAL() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.lastBackup(); ok && f.lag.archived < parseLSN(last.StopLSN) {
		return f.beyond(f.quota.exceeded())
	}
	return f.beyond(f.quota)
}

// needsBackup reports whether the WAL could be pruned behind another base backup that
// cannot be behind the last: that is far away, or something is missing since.
func (f *facts) needsBackup() bool {
	last, ok := f.lastBackup()
	return !ok || f.damaged.After(last.FinishedAt) || f.much(last)
}

// much reports whether the WAL since a base backup is a large part of the quota.
func (f *facts) much(since hostapi.BaseBackup) bool {
	stop := parseLSN(since.StopLSN)
	if f.lag.archived <= stop {
		return false
	}
	part := f.quota.part()
	wal := int64(f.lag.archived - stop)
	return part.bytes > 0 && wal >= part.bytes || part.objects > 0 && wal/pgapi.SegmentBytes >= int64(part.objects)
}

// stored notes that a WAL file is in the bucket, and how much was put there for it.
func (f *facts) stored(name string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes > 0 {
		f.put = f.put.plus(size{bytes, 1})
	}
	f.stale, f.failing, f.failure = true, time.Time{}, ""
	if _, ok := f.lastBackup(); ok && f.info.FirstRestorable.IsZero() {
		f.relist() // this may be what the first one lacked
	}
	if to := endOf(name); to > 0 {
		f.lag.stored(to)
	}
}

// failed notes that nothing can be stored, and reports whether that, or its cause, is
// new.
func (f *facts) failed(err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing.IsZero() {
		f.failing = f.now()
	}
	was := f.failure
	f.failure = cause(err)
	return f.failure != was
}

// fence notes that another incarnation has taken over, and reports whether that is
// new.
func (f *facts) fence() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.fencing
	f.fencing = true
	return first
}

func (f *facts) fenced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fencing
}

// state is what a host tells of the archive.
func (f *facts) state() hostapi.ArchiveState {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := hostapi.ArchiveState{
		BaseBackups: len(f.info.BaseBackups), FirstRestorable: f.info.FirstRestorable, LastRestorable: f.info.LastRestorable,
		SizeBytes: f.info.SizeBytes, FailingSince: f.failing, Error: f.failure, BackupsFailingSince: f.unsaved, BackupError: f.fault,
	}
	if n := len(f.info.BaseBackups); n > 0 {
		s.LastBackupAt = f.info.BaseBackups[n-1].FinishedAt
	}
	whole := !f.damaged.After(s.LastBackupAt) // else what comes is not restorable until the next
	switch {
	case f.fencing:
		s.Error = hostapi.ArchiveCauseFenced
	case s.Error == "" && f.damage != nil:
		s.Error = cause(f.damage)
	}
	if f.lag.looked.IsZero() && len(f.lag.writes) == 0 {
		return s // the database has not been seen to serve
	}
	if f.lag.archived > 0 {
		s.LastLSN = f.lag.archived.String()
	}
	s.LastAt = f.lag.since()
	if s.LastRestorable.After(s.FirstRestorable) { // else it is when a base backup was stored, some time after it ended
		s.LastAt = later(s.LastAt, s.LastRestorable)
	}
	if s.LastAt.IsZero() {
		return s
	}
	s.LagSeconds = max(0, now.Sub(s.LastAt).Seconds())
	if whole && !s.FirstRestorable.IsZero() && s.LastAt.After(s.LastRestorable) {
		s.LastRestorable = s.LastAt
	}
	return s
}
