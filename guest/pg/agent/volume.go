package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Reserve says when writes are limited and stopped, in bytes that are free. The zero
// value: by the volume's size.
type Reserve struct {
	Limit, Stop int64
	Ballast     int64
}

// of completes a reserve for a volume.
func (r Reserve) of(total int64) Reserve {
	if r.Limit == 0 {
		r.Limit = min(total/10, 2<<30)
	}
	if r.Stop == 0 {
		r.Stop = min(total/20, 1<<30)
	}
	if r.Ballast == 0 {
		// What PostgreSQL needs to come back after a full disk: WAL segments for the
		// end of its recovery, and its configuration.
		r.Ballast = min(total/50, 64<<20)
	}
	return r
}

// room is what is on a volume.
type room struct {
	total, free  int64
	wal          int64 // bytes of pg_wal
	reclaimable  int64 // bytes of WAL that is archived, which the next checkpoint frees
	pending      int64 // bytes of WAL that waits for the archive
	serverFailed bool
}

// decide says what writes may do. What was stopped for want of room is opened again
// only when there is clearly more: each change cuts sessions.
func decide(writes string, r Reserve, is room) (next, reason string) {
	free := is.free + is.reclaimable
	limit, stop := r.Limit, r.Stop
	if writes != pgapi.WritesOpen {
		limit += r.Limit / 4
	}
	if writes == pgapi.WritesStopped {
		stop += r.Stop / 2
	} else {
		// Before a stop only what is free counts: a checkpoint takes its time.
		free = is.free
	}
	switch {
	case free < stop:
		next = pgapi.WritesStopped
	case free < limit:
		next = pgapi.WritesLimited
	default:
		return pgapi.WritesOpen, ""
	}
	cause := "the data fills it"
	if is.pending > r.Stop/4 {
		cause = fmt.Sprintf("%d MB of WAL wait for the archive", is.pending>>20)
	}
	return next, fmt.Sprintf("%d of %d MB of the volume are free: %s", is.free>>20, is.total>>20, cause)
}

const guardInterval = time.Second

// guard watches the room on the volume until ctx ends.
func (a *Agent) guard(ctx context.Context) error {
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for {
		if err := a.look(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Log.Error("volume not watched", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *Agent) look(ctx context.Context) error {
	if !a.op.TryLock() {
		return nil // the server changes anyway
	}
	defer a.op.Unlock()
	if a.restoring() {
		return nil
	}
	is, err := a.measure()
	if err != nil {
		return err
	}
	reserve := a.cfg.Reserve.of(is.total)
	a.mu.Lock()
	writes := a.writes
	a.mu.Unlock()
	next, reason := decide(writes, reserve, is)
	next = a.restrained(next)
	if is.serverFailed && is.free < reserve.Ballast {
		// It ended for want of room, and comes back only with some.
		next, reason = pgapi.WritesStopped, "the volume is full"
		if err := os.Remove(a.ballast()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if is.free > reserve.Limit+reserve.Ballast {
		if err := a.makeBallast(reserve.Ballast); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.writes, a.reason = next, reason
	a.mu.Unlock()
	if next == writes {
		return a.reclaim(ctx, next, is)
	}
	a.cfg.Log.Warn("writes change", "from", writes, "to", next, "reason", reason)
	return a.change(ctx, writes, next)
}

// restrained is how much of what the room demands may be done now. Data that was restored
// needs its credentials before its writes are stopped: a standby takes none, and a database
// that is restored because it is full would never be one again.
func (a *Agent) restrained(writes string) string {
	if writes == pgapi.WritesStopped && a.unclaimed() {
		return pgapi.WritesLimited
	}
	return writes
}

// change has the server follow. Limited and open differ by a setting, stopped by the
// mode of the whole server.
func (a *Agent) change(ctx context.Context, from, to string) error {
	v, _ := a.server.View()
	mode := a.mode()
	switch {
	case v.State == pgapi.StateStopped:
		return nil
	case v.State == pgapi.StateFailed:
		a.server.Start(mode, false)
		return nil
	case from != pgapi.WritesStopped && to != pgapi.WritesStopped:
		_, err := a.server.Reload(v.Settings, mode)
		return err
	}
	a.broker.Reset()
	if err := a.server.Restart(ctx, mode); err != nil || from != pgapi.WritesStopped {
		return err
	}
	return a.freeWAL(ctx) // what was archived meanwhile counted as room
}

// reclaimAt is how much archived WAL is worth a checkpoint: a few segments are there
// always.
const reclaimAt = 4 * pgapi.SegmentBytes

// reclaimPause is between two such checkpoints.
const reclaimPause = 5 * time.Second

// reclaim frees WAL that was archived late, while writes are limited for want of room:
// the next checkpoint by itself may be long in coming. The caller holds op.
func (a *Agent) reclaim(ctx context.Context, writes string, is room) error {
	if writes != pgapi.WritesLimited || is.reclaimable < reclaimAt || time.Since(a.reclaimed) < reclaimPause {
		return nil
	}
	return a.freeWAL(ctx)
}

// freeWAL makes a checkpoint, which removes WAL that is archived.
func (a *Agent) freeWAL(ctx context.Context) error {
	a.reclaimed = time.Now()
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return fmt.Errorf("free archived WAL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err = conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("free archived WAL: %w", err)
	}
	return nil
}

func (a *Agent) ballast() string { return filepath.Join(a.cfg.Postgres.Dir, "ballast") }

func (a *Agent) makeBallast(size int64) error {
	if st, err := os.Stat(a.ballast()); err == nil && st.Size() == size {
		return nil
	}
	f, err := os.OpenFile(a.ballast(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
}

func (a *Agent) measure() (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(a.cfg.Postgres.Dir, &st); err != nil {
		return room{}, err
	}
	v, _ := a.server.View()
	is := room{total: int64(st.Blocks) * st.Bsize, free: int64(st.Bavail) * st.Bsize, serverFailed: v.State == pgapi.StateFailed}
	entries, err := os.ReadDir(filepath.Join(a.cfg.Postgres.Data(), "pg_wal"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return is, err
	}
	for _, e := range entries {
		if w, err := pgapi.ParseWALName(e.Name()); err == nil && w.Kind == pgapi.WALSegment {
			is.wal += pgapi.SegmentBytes
		}
	}
	status, err := os.ReadDir(filepath.Join(a.cfg.Postgres.Data(), "pg_wal", "archive_status"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return is, err
	}
	for _, e := range status {
		name, done := strings.CutSuffix(e.Name(), ".done")
		if w, err := pgapi.ParseWALName(strings.TrimSuffix(name, ".ready")); err != nil || w.Kind != pgapi.WALSegment {
			continue
		}
		if done {
			is.reclaimable += pgapi.SegmentBytes
		} else {
			is.pending += pgapi.SegmentBytes
		}
	}
	return is, nil
}

func (a *Agent) volume() pgapi.VolumeStatus {
	is, _ := a.measure() // guard tells of errors
	a.mu.Lock()
	defer a.mu.Unlock()
	return pgapi.VolumeStatus{TotalBytes: is.total, FreeBytes: is.free, WALBytes: is.wal, Writes: a.writes, Reason: a.reason}
}

// syncAll makes all of a file system durable.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
