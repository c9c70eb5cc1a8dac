package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/pg/basebackup"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

const restoreFile = "restore.json"

// restore is one from the first byte of its base to the first of its database's own.
type restore struct {
	mu     sync.Mutex
	status pgapi.RestoreStatus
	fetch  *wal.Fetch // while it recovers

	cancel context.CancelCauseFunc // ends the recovery; nil without one
	done   chan struct{}           // closed when it has ended
}

func (r *restore) view() pgapi.RestoreStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status
	if r.fetch != nil {
		r.fetch.Progress(&status)
	}
	return status
}

// readRestore reads what a guestpg before this one was at.
func (a *Agent) readRestore() (*restore, error) {
	raw, err := os.ReadFile(filepath.Join(a.stateDir(), restoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &restore{}
	if err := json.Unmarshal(raw, &r.status); err != nil {
		return nil, fmt.Errorf("%s: %w", restoreFile, err)
	}
	if r.status.Phase == pgapi.RestoreUnpacking {
		r.status.Phase, r.status.Error = pgapi.RestoreFailed, "unpacking the base backup was cut off"
	}
	return r, nil
}

// note changes a restore's status, on disk first: after a crash, data that is not
// whole is never started.
func (a *Agent) note(r *restore, change func(*pgapi.RestoreStatus)) error {
	status := r.view()
	change(&status)
	raw, err := json.Marshal(status)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(a.stateDir(), restoreFile), raw, 0o600); err != nil {
		return err
	}
	r.mu.Lock()
	r.status = status
	r.mu.Unlock()
	return nil
}

// fetch is the account of the recovery that is under way, or nil.
func (a *Agent) fetch() *wal.Fetch {
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fetch
}

// endRestore gives the recovery up that is under way, if there is one.
func (a *Agent) endRestore(cause error) {
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	if cancel != nil {
		cancel(cause)
		<-done
	}
}

func (a *Agent) putRestoreBase(w http.ResponseWriter, r *http.Request) error {
	a.endRestore(errGivenUp)
	if err := a.lock(r.Context()); err != nil {
		return err
	}
	defer a.op.Unlock()
	restore := &restore{}
	if err := a.note(restore, func(s *pgapi.RestoreStatus) { s.Phase = pgapi.RestoreUnpacking }); err != nil {
		return err
	}
	a.mu.Lock()
	a.restore = restore
	a.mu.Unlock()
	base, err := a.unpack(r)
	if err == nil {
		err = a.note(restore, func(s *pgapi.RestoreStatus) { s.Phase = pgapi.RestoreUnpacked })
	}
	if err != nil {
		a.failed(restore, err)
		a.refuseUnread(w, r, err)
		return nil
	}
	answer(w, http.StatusOK, base)
	return nil
}

// hangUpLimit is how long a host may go on sending a body that was refused.
var hangUpLimit = timescale.Limit(10 * time.Second)

// refuseUnread is refuse where there may be more of the body than is worth reading. A
// connection that is closed with that unread is reset, and the host may lose the answer:
// so the host is the one to hang up.
func (a *Agent) refuseUnread(w http.ResponseWriter, r *http.Request, err error) {
	c := http.NewResponseController(w)
	_ = c.EnableFullDuplex() // else the server itself reads on before it answers
	_ = c.SetReadDeadline(time.Now().Add(hangUpLimit))
	a.refuse(w, r, err)
	_ = c.Flush()
	_, _ = io.Copy(io.Discard, r.Body)
}

// failed notes that a restore has failed. Who asks is told so even if the volume is too
// full to take a note of it; a guestpg after this one then finds the phase before.
func (a *Agent) failed(r *restore, err error) {
	change := func(s *pgapi.RestoreStatus) { s.Phase, s.Error = pgapi.RestoreFailed, err.Error() }
	if errNote := a.note(r, change); errNote != nil {
		a.cfg.Log.Error("failed restore not noted", "error", errNote)
		r.mu.Lock()
		defer r.mu.Unlock()
		change(&r.status)
	}
}

// lockLimit is how long a restore waits for a start or a change that is under way.
var lockLimit = timescale.Limit(30 * time.Second)

func (a *Agent) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockLimit)
	defer cancel()
	for !a.op.TryLock() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errBusy
		}
	}
	return nil
}

// unpack puts a base backup in the place of the data.
func (a *Agent) unpack(r *http.Request) (pgapi.RestoreBase, error) {
	c := a.cfg.Postgres
	a.broker.Reset()
	a.archive.Hold(true)
	if err := a.server.Stop(r.Context(), true); err != nil {
		return pgapi.RestoreBase{}, err
	}
	if err := os.RemoveAll(c.Data()); err != nil {
		return pgapi.RestoreBase{}, err
	}
	if err := c.MakeDir(c.Data()); err != nil {
		return pgapi.RestoreBase{}, err
	}
	uid, gid := os.Getuid(), os.Getgid()
	if cred, err := c.Credential(); err != nil {
		return pgapi.RestoreBase{}, err
	} else if cred != nil {
		uid, gid = int(cred.Uid), int(cred.Gid)
	}
	base, err := basebackup.Unpack(r.Context(), r.Body, c.Data(), uid, gid)
	if err == nil {
		err = syncAll(c.Dir)
	}
	if err != nil {
		// An incomplete base backup is useless, and may fill the volume.
		err = errors.Join(err, os.RemoveAll(c.Data()), c.MakeDir(c.Data()))
	}
	return base, err
}

func (a *Agent) postRestore(w http.ResponseWriter, req *http.Request) error {
	var want pgapi.Restore
	if err := decode(w, req, &want); err != nil {
		return err
	}
	if err := a.lock(req.Context()); err != nil {
		return err
	}
	defer a.op.Unlock()
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	if r == nil || r.view().Phase != pgapi.RestoreUnpacked {
		return errNoBase
	}
	if err := a.note(r, func(s *pgapi.RestoreStatus) {
		s.Phase, s.TargetTime = pgapi.RestoreRecovering, want.TargetTime
	}); err != nil {
		return err
	}
	a.recover(r)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// recover begins a recovery. The caller holds op until it has begun.
func (a *Agent) recover(r *restore) {
	ctx, cancel := context.WithCancelCause(context.Background()) // endRestore ends it
	done := make(chan struct{})
	r.mu.Lock()
	r.cancel, r.done = cancel, done
	r.mu.Unlock()
	go func() {
		defer close(done)
		defer cancel(nil)
		err := a.recoverWhole(ctx, r)
		if err == nil {
			a.cfg.Log.Info("restore done", "wal_files", r.view().WALFiles)
			return
		}
		a.cfg.Log.Error("restore failed", "error", err)
		// A server in the middle of a recovery must not be taken for the database.
		if errStop := a.server.Stop(context.WithoutCancel(ctx), true); errStop != nil {
			a.cfg.Log.Error("PostgreSQL not stopped", "error", errStop)
		}
		if errors.Is(err, errEnds) {
			return // the next guestpg goes on
		}
		a.failed(r, err)
	}()
}

// Causes of the end of a recovery that is under way.
var (
	errEnds    = errors.New("guestpg ends")
	errGivenUp = errors.New("the host gave the restore up")
)

// recoverWhole replays the archive and opens the database.
func (a *Agent) recoverWhole(ctx context.Context, r *restore) error {
	a.archive.Hold(true)
	target := ""
	if t := r.view().TargetTime; t != nil {
		target = t.UTC().Format("2006-01-02 15:04:05.999999+00")
	}
	fetch := wal.NewFetch()
	err := a.replay(ctx, r, target, fetch)
	if errors.Is(err, errBeforeTarget) {
		// PostgreSQL refuses a target that it does not come to. All commits that the
		// archive had are before it, so all of those are wanted, and none that came since.
		if err := a.note(r, func(s *pgapi.RestoreStatus) { s.EndOfArchive = true }); err != nil {
			return err
		}
		err = a.replay(ctx, r, "", fetch.Again())
	}
	if err != nil {
		return err
	}
	if err := a.noteReached(ctx, r); err != nil {
		return err
	}
	if err := a.flush(ctx); err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("what was recovered is not written before the restart", "error", err)
	}
	a.mu.Lock()
	if a.writes == pgapi.WritesStopped { // as the data of before was; see restrained
		a.writes = pgapi.WritesLimited
	}
	a.mu.Unlock()
	if err := a.server.Restart(ctx, a.mode()); err != nil {
		return err
	}
	if err := a.note(r, func(s *pgapi.RestoreStatus) { s.Phase, s.Waiting, s.Unclaimed = pgapi.RestoreDone, "", true }); err != nil {
		return err
	}
	r.mu.Lock()
	r.fetch = nil
	r.mu.Unlock()
	a.archive.Hold(false)
	return nil
}

// flush writes what recovery has left in memory. A stop would have to, and after a minute it
// cuts PostgreSQL off, which then recovers once more.
func (a *Agent) flush(ctx context.Context) error {
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return checkpoint(ctx, conn)
}

// unclaimed says whether the data was restored, or adopted, and has the credentials of
// before.
func (a *Agent) unclaimed() bool {
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	return r != nil && r.view().Unclaimed
}

// claim notes that credentials were set.
func (a *Agent) claim(ctx context.Context) error {
	if !a.unclaimed() {
		return nil
	}
	if err := a.lock(ctx); err != nil { // against the note of another restore
		return err
	}
	defer a.op.Unlock()
	if !a.unclaimed() {
		return nil
	}
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	return a.note(r, func(s *pgapi.RestoreStatus) { s.Unclaimed = false })
}

// errBeforeTarget means that the archive ended, as it should, before the target.
var errBeforeTarget = errors.New("the archive ends before the target")

// replay runs one recovery to its end: the server has then begun a new timeline.
func (a *Agent) replay(ctx context.Context, r *restore, target string, fetch *wal.Fetch) error {
	defer fetch.End()
	r.mu.Lock()
	r.fetch = fetch
	r.mu.Unlock()
	a.server.Start(postgres.Mode{Closed: true, Recovery: &postgres.Recovery{TargetTime: target}}, true)
	for {
		v, changed := a.server.View()
		switch v.State {
		case pgapi.StateReady:
			if target != "" {
				return nil // it would have failed short of it
			}
			return fetch.Ended()
		case pgapi.StateFailed, pgapi.StateStopped:
			return a.replayFailed(fetch, v, target)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// targetMissed is what PostgreSQL 16 logs when WAL ends before the target.
const targetMissed = "recovery ended before configured recovery target was reached"

func (a *Agent) replayFailed(fetch *wal.Fetch, v postgres.View, target string) error {
	if err := fetch.Err(); err != nil {
		return err
	}
	log := strings.Join(v.LogTail, "\n")
	if strings.Contains(log, targetMissed) && target != "" {
		if err := fetch.Ended(); err != nil {
			return err
		}
		return errBeforeTarget
	}
	return fmt.Errorf("recovery failed: %w: %s", v.Err, fatal(v.LogTail))
}

// fatal finds why a server ended.
func fatal(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		for _, level := range []string{"PANIC:  ", "FATAL:  "} {
			if _, text, ok := strings.Cut(lines[i], level); ok && !strings.HasPrefix(text, "the database system is") {
				return text
			}
		}
	}
	return "its log does not say why"
}

// noteReached notes how far the recovery came.
func (a *Agent) noteReached(ctx context.Context, r *restore) error {
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var lsn *string
	var at *time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn()::text, pg_last_xact_replay_timestamp()").Scan(&lsn, &at); err != nil {
		return err
	}
	return a.note(r, func(s *pgapi.RestoreStatus) {
		if lsn != nil {
			s.ReachedLSN = *lsn
		}
		if at != nil {
			s.LastCommitAt = at.UTC()
		}
	})
}
