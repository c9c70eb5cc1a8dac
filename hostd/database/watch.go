package database

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	lookPause  = 3 * time.Second        // between two looks at a database that serves
	startPause = 500 * time.Millisecond // and at one that is on its way to it
)

// silence is how long a guest may not answer before that is said.
var silence = timescale.Limit(15 * time.Second)

// look is what a guest answered last.
type look struct {
	status   pgapi.Status
	at       time.Time // zero: it has not answered
	answered time.Time // or when the agent began
	err      string    // why it does not
}

// summary is what is worth a heartbeat of its own.
type summary struct {
	ready, failing bool
	phase, err     string
}

// watch looks at the guest now and then.
func (a *agent) watch(ctx context.Context) {
	for {
		d := startPause
		if st, err := a.look(ctx); err == nil && st.Ready {
			d = lookPause
		}
		if !pause(ctx, d) {
			return
		}
	}
}

// look asks the guest how it is.
func (a *agent) look(ctx context.Context) (pgapi.Status, error) {
	asked := a.cfg.Now()
	st, err := within(ctx, statusLimit, a.client.Status)
	if ctx.Err() != nil {
		return st, context.Cause(ctx)
	}
	now := a.cfg.Now()
	bound(&st)
	a.mu.Lock()
	if err != nil && a.seen.err == "" {
		a.cfg.Log.Info("the guest of a database does not answer", "sandbox_id", a.id, "error", err)
	}
	if err == nil {
		a.seen = look{status: st, at: now, answered: now}
		a.learn(&st, asked, now)
	} else {
		a.seen.err = err.Error()
	}
	a.mu.Unlock()
	a.tell()
	return st, err
}

// maxText and maxWord bound what a guest may say in a heartbeat, in bytes. Its host
// must be heard whatever it says.
const (
	maxText = 1 << 10
	maxWord = 128
)

// bound shortens what a guest says. A time somewhat before the year 0 could not be told.
func bound(st *pgapi.Status) {
	st.LogTail = nil
	if at := &st.Archive.OldestPending; !at.IsZero() {
		*at = later(*at, time.Unix(0, 0))
	}
	shorten(maxText, &st.Error, &st.Archive.Error, &st.Volume.Reason)
	shorten(maxWord, &st.State, &st.Volume.Writes, &st.Archive.LastArchived)
	if r := st.Restore; r != nil {
		shorten(maxText, &r.Error)
		shorten(maxWord, &r.Phase, &r.Waiting, &r.LastWAL, &r.ReachedLSN, &r.As)
	}
	boundTenant(st.Tenant)
}

func boundTenant(t *pgapi.Tenant) {
	if t != nil {
		shorten(maxWord, &t.Database, &t.Username)
	}
}

func shorten(most int, texts ...*string) {
	for _, s := range texts {
		*s = strings.ToValidUTF8((*s)[:min(len(*s), most)], "")
	}
}

// learn takes what a status says of the WAL, as it was at a moment between asked and now.
// The caller holds a.mu.
func (a *agent) learn(st *pgapi.Status, asked, now time.Time) {
	if !a.restoring.done(a.spec, st) || st.Server == nil {
		return
	}
	f := a.db.facts
	f.mu.Lock()
	defer f.mu.Unlock()
	if st.Ready && f.served.IsZero() {
		f.served = now
	}
	f.lag.stored(endOf(st.Archive.LastArchived)) // by an earlier daemon
	if at := parseLSN(st.Server.WriteLSN); at > 0 {
		late := st.Server.SwitchesInTime != nil && !*st.Server.SwitchesInTime
		f.lag.saw(at, asked, now, st.Archive.OldestPending, late, time.Duration(a.spec.ArchiveIntervalSeconds)*time.Second)
	}
}

// tell has a heartbeat sent soon where something changed that others wait for.
func (a *agent) tell() {
	st := a.state()
	s := summary{ready: st.Ready, failing: !st.Archive.FailingSince.IsZero(), err: st.Error}
	if st.Restore != nil {
		s.phase = st.Restore.Phase
	}
	a.mu.Lock()
	changed := s != a.told
	a.told = s
	a.mu.Unlock()
	if changed {
		a.cfg.Boxes.Notify()
	}
}

// state is what the host tells of the database. The errors in it may have a guest's
// words, too.
func (a *agent) state() hostapi.DatabaseState {
	out := a.known()
	shorten(maxText, &out.Error, &out.Archive.Error, &out.Archive.BackupError)
	if out.Restore != nil {
		shorten(maxText, &out.Restore.Error)
	}
	return out
}

func (a *agent) known() hostapi.DatabaseState {
	tunnels, ended := a.cfg.Boxes.Tunnels(a.id)
	now := a.cfg.Now()
	archive := a.db.facts.state()
	a.mu.Lock()
	defer a.mu.Unlock()
	g := &a.seen.status
	out := hostapi.DatabaseState{
		State: g.State, Ready: g.Ready && a.isTuned(), Error: g.Error, Clients: tunnels, Volume: g.Volume, Tenant: g.Tenant, Archive: archive,
		Restore: a.restoring.state(a.spec, g),
	}
	restored := a.restoring.done(a.spec, g)
	if !restored {
		// The template's database serves until its data is replaced.
		out.Ready, out.Tenant = false, nil
		if !a.seen.at.IsZero() {
			out.State = pgapi.StateRecovering
		}
		if why := a.restoring.failed; why != "" {
			out.State, out.Error = pgapi.StateFailed, why
		}
	}
	out.Archive.PendingBytes = g.Archive.PendingBytes
	if since := g.Archive.FailingSince; !since.IsZero() && (out.Archive.FailingSince.IsZero() || since.Before(out.Archive.FailingSince)) {
		out.Archive.FailingSince = since
	}
	if out.Archive.Error == "" && g.Archive.Error != "" {
		out.Archive.Error = hostapi.ArchiveCauseWaiting
	}
	if a.db.facts.fenced() {
		out.Error = hostapi.ArchiveCauseFenced
	}
	if last := later(a.seen.answered, a.began); a.seen.err != "" && now.Sub(last) > silence {
		out.Ready, out.Error = false, hostapi.CauseMute // why, its host logs
		return out
	}
	if s := g.Server; s != nil {
		out.Clients = max(tunnels, s.Clients+s.BrokerSessionsBusy)
		if out.Ready && tunnels == 0 && !a.copying && s.Idle() {
			out.IdleSince = a.idleSince(s, ended, now)
		}
	}
	return out
}

// idleSince is when somebody last used an idle database, or a base backup of it ended. It
// was not idle before it ran.
func (a *agent) idleSince(s *pgapi.ServerStatus, tunnel, now time.Time) time.Time {
	at := later(later(s.LastActivityAt, tunnel), later(a.copied, a.began))
	if at.After(now) { // the guest's clock is ahead
		at = now
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// restored reports whether the database has its own data.
func (a *agent) restored() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.restoring.done(a.spec, &a.seen.status)
}
