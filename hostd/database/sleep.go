package database

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/timescale"
)

// switchLimit bounds a checkpoint and the archiving of what is left before a sleep.
var switchLimit = timescale.Limit(time.Minute)

// prepareSleep has all WAL of an idle database archived. Nobody can connect meanwhile,
// and no base backup begins until stayAwake.
func (a *agent) prepareSleep(ctx context.Context, idle time.Duration) error {
	a.mu.Lock()
	a.sleeping = true
	a.mu.Unlock()
	return a.quiesce(ctx, idle)
}

func (a *agent) stayAwake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sleeping = false
}

func (a *agent) quiesce(ctx context.Context, idle time.Duration) error {
	if !a.restored() {
		return errRestoring
	}
	if a.db.facts.fenced() {
		return hosterr.ErrArchiveFenced
	}
	if err := a.behind(); err != nil {
		return err
	}
	if err := a.beIdle(ctx, idle); err != nil {
		return err
	}
	if err := a.archiveAll(ctx); err != nil {
		return err
	}
	return a.beIdle(ctx, idle)
}

// behind is why what would be left to archive before a sleep would not be in time. Each
// try would shut the ports for as long as it waits, and its checkpoint would add a
// segment to what waits on the disk.
func (a *agent) behind() error {
	failing := a.state().Archive.FailingSince
	a.mu.Lock()
	oldest := a.seen.status.Archive.OldestPending
	a.mu.Unlock()
	var why error
	switch {
	case !failing.IsZero():
		why = fmt.Errorf("nothing can be archived since %s", failing.UTC().Format(time.RFC3339))
	case a.db.facts.refusesWAL():
		why = errFull
	case !oldest.IsZero() && a.cfg.Now().Sub(oldest) > switchLimit:
		why = fmt.Errorf("archiving is behind, by what was written at %s", oldest.UTC().Format(time.RFC3339))
	default:
		return nil
	}
	return &reason{hosterr.ErrDatabaseBusy, why}
}

// archiveAll returns once all that was written before is in the bucket.
func (a *agent) archiveAll(ctx context.Context) error {
	if a.db.facts.fenced() {
		return hosterr.ErrArchiveFenced
	}
	ctx, cancel := context.WithTimeout(ctx, switchLimit+pollSlack)
	defer cancel()
	switched, err := a.client.Switch(ctx, switchLimit)
	if err != nil {
		return guestError(err)
	}
	if n := len(switched.Pending); n > 0 {
		return &reason{hosterr.ErrDatabaseBusy, fmt.Errorf("%d files are not archived yet, the first is %.64s", n, switched.Pending[0])}
	}
	return nil
}

// beIdle looks whether nobody has used the database for a while.
func (a *agent) beIdle(ctx context.Context, idle time.Duration) error {
	if _, err := a.look(ctx); err != nil {
		return guestError(err)
	}
	st := a.state()
	if !st.Ready {
		return &reason{hosterr.ErrDatabaseUnready, errors.New("PostgreSQL does not take clients: " + st.Error)}
	}
	if since := a.cfg.Now().Sub(st.IdleSince); st.IdleSince.IsZero() {
		return &reason{hosterr.ErrDatabaseBusy, fmt.Errorf("%d clients, or it is at work", st.Clients)}
	} else if since < idle {
		return &reason{hosterr.ErrDatabaseBusy, fmt.Errorf("it was used %s ago", since.Round(time.Second))}
	}
	return nil
}
