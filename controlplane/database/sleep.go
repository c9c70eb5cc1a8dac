package database

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// sleepDue reports whether a database has been idle for long enough, and can archive what
// it has written before it sleeps.
func (k *keeper) sleepDue(r raftstore.Reader, d *record.Database, box *record.Sandbox, session hosts.Session, now time.Time) bool {
	if d.Status != record.DatabaseReady || d.AlwaysOn || box.Status != record.SandboxRunning || !k.naps.due(d.ID, now) {
		return false
	}
	if _, under := flow.Live(r, Subject(d.ID)); under {
		return false
	}
	f, ok := k.heard.fact(d.ID, box.ID)
	if !ok || f.at.Before(session.LastSeen) || !f.state.Archive.FailingSince.IsZero() {
		return false
	}
	return !f.state.IdleSince.IsZero() && now.Sub(f.state.IdleSince) >= k.cfg.Idle
}

// wakeDue reports whether a database does not run that always does: its workspace was
// paused, it could not be woken after a move to another host, or its host paused it to save
// its memory and could not resume it.
func (k *keeper) wakeDue(r raftstore.Reader, d *record.Database, box *record.Sandbox, now time.Time) bool {
	stands := box.Status == record.SandboxHibernated || box.Status == record.SandboxPaused
	if d.Status != record.DatabaseReady || !d.AlwaysOn || !stands || arriving(r, box) {
		return false
	}
	_, under := flow.Live(r, Subject(d.ID))
	return !under && !paused(r, d.WorkspaceID) && mayBeUp(k.flows.Core, r, d) == nil && k.naps.due(d.ID, now)
}

// sleepPause is the time from the end of one attempt to put a database to sleep to the
// next. An attempt may take minutes, and the database's ports are closed meanwhile.
const sleepPause = 15 * time.Second

// lastSleepPause is the longest pause between attempts that fail. The pauses double up to
// it: each attempt switches the WAL, so it adds a segment to the archive of a database that
// writes nothing.
const lastSleepPause = 10 * time.Minute

// naps records when databases may next be put to sleep. It has a lock because attempts
// end in the background, outside of the loop's passes.
type naps struct {
	mu       sync.Mutex
	until    map[string]time.Time // by database id
	failures map[string]int       // by database id: attempts in a row that failed
}

func newNaps() *naps { return &naps{until: map[string]time.Time{}, failures: map[string]int{}} }

func (n *naps) due(id string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !now.Before(n.until[id])
}

func (n *naps) pause(id string, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.until[id] = until
}

// ended notes how an attempt ended, and when.
func (n *naps) ended(id string, at time.Time, pause time.Duration, failed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if failed {
		pause = min(pause<<min(n.failures[id], 20), lastSleepPause)
		n.failures[id]++
	} else {
		delete(n.failures, id)
	}
	n.until[id] = at.Add(pause)
}

// keep forgets databases that are gone.
func (n *naps) keep(known func(id string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.until, func(id string, _ time.Time) bool { return !known(id) })
	maps.DeleteFunc(n.failures, func(id string, _ int) bool { return !known(id) })
}

// sleepTimeout bounds one attempt, in which the rest of the WAL is archived first.
var sleepTimeout = timescale.Limit(2 * time.Minute)

// sleep hibernates a database if it is still idle, which its host decides. It reports
// whether the host failed to.
func (k *keeper) sleep(ctx context.Context, id string) (failed bool) {
	view, err := k.Store.VerifiedView(ctx)
	if err != nil {
		return false
	}
	d, ok := raftstore.Get(view, record.Databases, id)
	if !ok || d.Status != record.DatabaseReady || d.AlwaysOn {
		return false
	}
	if _, under := flow.Live(view, Subject(id)); under {
		return false
	}
	box, ok := raftstore.Get(view, record.Sandboxes, d.SandboxID)
	if !ok || box.Status != record.SandboxRunning {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, sleepTimeout)
	defer cancel()
	attrs := []any{"database_id", id, "sandbox_id", hostapi.ShortID(box.ID), "agent_id", box.HostID}
	var asleep hostapi.Box
	err = k.flows.Hosts.Call(ctx, box.HostID, func(ctx context.Context, c *hosts.Client) error {
		var err error
		asleep, err = c.SleepDatabase(ctx, box.ID, hostapi.DatabaseSleep{IdleSeconds: seconds(k.cfg.Idle)})
		return err
	})
	if err == nil {
		_, err = k.flows.sandboxes.Note(ctx, box, asleep)
	}
	switch {
	case err == nil:
		k.Logger.InfoContext(ctx, "idle database sleeps", attrs...)
	case hostapi.HasCode(err, hostapi.CodeDatabaseBusy), hostapi.HasCode(err, hostapi.CodeNotRunning), errors.Is(ctx.Err(), context.Canceled):
	default:
		k.Logger.WarnContext(ctx, "idle database could not be put to sleep", append(attrs, "error", err)...)
		return true
	}
	return false
}
