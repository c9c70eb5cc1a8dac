package database

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// seen is an agent whose guest has answered, without a guest.
func seen(now time.Time, b *boxes, st pgapi.Status) *agent {
	a := &agent{
		cfg: &Config{Boxes: b, Now: func() time.Time { return now }}, id: idA, began: now.Add(-time.Hour),
		db: &database{facts: newFacts(nil, func() time.Time { return now })}, spec: &hostapi.DatabaseSpec{}, tuned: make(chan struct{}),
		seen: look{status: st, at: now, answered: now},
	}
	close(a.tuned)
	return a
}

func TestWhenADatabaseIsIdle(t *testing.T) {
	now := time.Unix(100000, 0)
	ago := func(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }
	serving := pgapi.Status{State: pgapi.StateReady, Ready: true}
	for what, c := range map[string]struct {
		server  pgapi.ServerStatus
		box     fakeBox
		change  func(*agent)
		want    time.Time
		clients int
	}{
		"since its last session":       {server: pgapi.ServerStatus{LastActivityAt: ago(5)}, want: ago(5)},
		"since its last tunnel":        {server: pgapi.ServerStatus{LastActivityAt: ago(5)}, box: fakeBox{ended: ago(3)}, want: ago(3)},
		"not before it ran":            {server: pgapi.ServerStatus{LastActivityAt: ago(600)}, want: ago(60)},
		"not in the future":            {server: pgapi.ServerStatus{LastActivityAt: ago(-5)}, want: now},
		"a session":                    {server: pgapi.ServerStatus{Clients: 2}, clients: 2},
		"a tunnel, and no session yet": {box: fakeBox{tunnels: 3}, clients: 3},
		"tunnels with their sessions":  {server: pgapi.ServerStatus{Clients: 3}, box: fakeBox{tunnels: 3}, clients: 3},
		"the broker at work":           {server: pgapi.ServerStatus{BrokerSessionsBusy: 1}, clients: 1},
		"autovacuum":                   {server: pgapi.ServerStatus{AutovacuumWorkers: 1}},
		"a base backup":                {server: pgapi.ServerStatus{BaseBackups: 1}},
		"one that waits for its turn":  {change: func(a *agent) { a.copying = true }},
		"since its last base backup":   {change: func(a *agent) { a.copied = ago(4) }, want: ago(4)},
		"settings on their way":        {change: func(a *agent) { a.tuned = make(chan struct{}) }},
		"its data on its way":          {change: func(a *agent) { a.spec.Restore = &hostapi.DatabaseRestore{} }},
	} {
		c.box.DatabaseBox = box.DatabaseBox{ID: idA}
		st := serving
		st.Server = &c.server
		a := seen(now, &boxes{list: map[string]*fakeBox{idA: &c.box}}, st)
		if c.change != nil {
			c.change(a)
		}
		if got := a.state(); !got.IdleSince.Equal(c.want) || got.Clients != c.clients {
			t.Errorf("%s: idle since %s with %d clients, want %s with %d", what, got.IdleSince, got.Clients, c.want, c.clients)
		}
	}
}

func TestAGuestThatFallsSilentIsNotReady(t *testing.T) {
	now := time.Unix(100000, 0)
	a := seen(now, &boxes{}, pgapi.Status{State: pgapi.StateReady, Ready: true, Server: &pgapi.ServerStatus{}})
	a.seen.err = errors.New("dial 10.213.0.9:7000: connection refused").Error()
	if st := a.state(); !st.Ready {
		t.Errorf("after one question in vain: %+v", st)
	}
	a.seen.answered, a.began = now.Add(-silence-time.Second), now.Add(-time.Hour)
	if st := a.state(); st.Ready || st.Error != hostapi.CauseMute || !st.IdleSince.IsZero() {
		t.Errorf("after a while: %+v", st)
	}
}

// A guest has a say in heartbeats, and must not keep its host from being heard.
func TestWhatAGuestSaysIsBounded(t *testing.T) {
	long := strings.Repeat("ü", 1<<20)
	st := pgapi.Status{
		State: long, Error: long, LogTail: []string{long}, Archive: pgapi.ArchiveStatus{Error: long, LastArchived: long},
		Volume: pgapi.VolumeStatus{Writes: long, Reason: long}, Tenant: &pgapi.Tenant{Database: long, Username: long},
		Restore: &pgapi.RestoreStatus{Phase: long, Error: long, Waiting: long, LastWAL: long, ReachedLSN: long},
	}
	bound(&st)
	a := seen(time.Now(), &boxes{}, st)
	a.spec.Restore = &hostapi.DatabaseRestore{}
	state := a.state()
	all := state.State + state.Error + state.Volume.Reason + state.Volume.Writes + state.Archive.Error + state.Restore.Phase + state.Restore.Error + state.Restore.LastWAL
	if len(all) > 8<<10 || len(st.LogTail) > 0 {
		t.Errorf("%d bytes of text", len(all))
	}
	// Errors may be in a guest's words, too.
	a.seen.err, a.seen.answered, a.began = long, time.Time{}, time.Time{}
	a.restoring.trouble = long
	a.db.facts.failed(errors.New(long))
	state = a.state()
	if n := len(state.Error + state.Archive.Error + state.Restore.Error); n > 4<<10 {
		t.Errorf("%d bytes of errors", n)
	}
}

// A heartbeat with a time that JSON does not have cannot be sent: its host would count as lost.
func TestAGuestsTimesAreOnesThatAHeartbeatCanHave(t *testing.T) {
	now := time.Unix(100000, 0)
	for _, said := range []string{"0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"} {
		var at time.Time
		must(t, at.UnmarshalJSON([]byte(`"`+said+`"`)))
		a := seen(now, &boxes{}, pgapi.Status{})
		a.spec.ArchiveIntervalSeconds, a.spec.Restore = 60, &hostapi.DatabaseRestore{}
		st := pgapi.Status{
			Ready: true, Server: &pgapi.ServerStatus{WriteLSN: "0/5000100", LastActivityAt: at},
			Archive: pgapi.ArchiveStatus{OldestPending: at, LastArchivedAt: at, FailingSince: at},
			Restore: &pgapi.RestoreStatus{Phase: pgapi.RestoreDone, TargetTime: &at, LastCommitAt: at},
		}
		bound(&st)
		a.seen.status = st
		a.learn(&st, now, now)
		if _, err := json.Marshal(a.state()); err != nil {
			t.Errorf("%s: %v", said, err)
		}
	}
}

// All databases of a host wait for one base backup, so no guest may go on with it for
// as long as it likes.
func TestABaseBackupEnds(t *testing.T) {
	piece := make([]byte, 1<<20)
	c := &copied{w: io.Discard, most: 2 << 20, began: time.Now()}
	for i, want := range []error{nil, nil, errTooLarge} {
		if _, err := c.Write(piece); !errors.Is(err, want) {
			t.Errorf("MiB %d of at most 2: %v, want %v", i+1, err, want)
		}
	}
	hour := 3600 * int64(leastRate)
	for what, c := range map[string]*copied{
		"an hour of the least rate, after an hour": {began: time.Now().Add(-time.Hour), bytes: hour},
		"less, where the bucket is slow":           {began: time.Now().Add(-2 * time.Hour), bytes: hour, storing: time.Hour},
	} {
		c.w, c.most = io.Discard, 2*hour
		if _, err := c.Write(piece); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	drop := &copied{w: io.Discard, most: hour, began: time.Now().Add(-stallLimit - time.Second), bytes: 100}
	if _, err := drop.Write(piece[:1]); !errors.Is(err, errTooSlow) {
		t.Errorf("a byte now and then: %v, want errTooSlow", err)
	}
}

// A daemon that comes while WAL waits for the bucket has not seen when that was
// written, and must not take it for new: a clone at a moment of the outage would lack
// what was committed by then.
func TestWhatWaitedBeforeTheDaemonCameIsNotArchived(t *testing.T) {
	now := time.Unix(100000, 0)
	outage := now.Add(-time.Hour)
	a := seen(now, &boxes{list: map[string]*fakeBox{}}, pgapi.Status{})
	a.spec.ArchiveIntervalSeconds = 60
	a.db.facts.info = hostapi.ArchiveInfo{FirstRestorable: now.Add(-24 * time.Hour), LastRestorable: outage.Add(-time.Minute)}
	st := pgapi.Status{
		Ready: true, Server: &pgapi.ServerStatus{WriteLSN: "0/5000100"},
		Archive: pgapi.ArchiveStatus{LastArchived: "000000010000000000000002", Pending: 2, OldestPending: outage},
	}
	a.learn(&st, now, now)
	got := a.db.facts.state()
	if got.LastRestorable.After(outage) || got.LastAt.After(outage) || got.LagSeconds < 3600 {
		t.Errorf("it has %+v, and nothing was archived since %s", got, outage)
	}
	a.learn(&pgapi.Status{Ready: true, Server: st.Server, Archive: pgapi.ArchiveStatus{LastArchived: "000000010000000000000005"}}, now, now)
	if got := a.db.facts.state(); !got.LastRestorable.Equal(now) || got.LagSeconds != 0 {
		t.Errorf("all is archived: %+v", got)
	}
}

// Behind a gap nothing can be restored until there is another base backup, however
// well the archive keeps up, and each new gap asks for one.
func TestNothingBehindAGapIsRestorable(t *testing.T) {
	h := newHost(t)
	a, err := h.store.Open(archive(one))
	must(t, err)
	content := make([]byte, pgapi.SegmentBytes)
	sum := sha256.Sum256(content)
	put := func(segments ...uint64) {
		for _, n := range segments {
			file := pgapi.WALFile{Name: pgapi.SegmentName(1, n), Size: pgapi.SegmentBytes, SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()}
			must(t, second(a.PutWAL(t.Context(), file, bytes.NewReader(content))))
		}
	}
	put(3, 4, 5)
	_, err = a.PutBackup(t.Context(), "b1", time.Now(), func(w io.Writer) (pgapi.BackupInfo, error) {
		_, err := w.Write([]byte("tar"))
		return pgapi.BackupInfo{StartLSN: (3 * lsn(pgapi.SegmentBytes)).String(), StopLSN: (4 * lsn(pgapi.SegmentBytes)).String(), Timeline: 1}, err
	})
	must(t, err)
	put(7)
	now := time.Now()
	f := newFacts(a, func() time.Time { now = now.Add(time.Second); return now })
	must(t, second(f.list(t.Context())))
	found := f.damaged
	f.lag.stored(8 * pgapi.SegmentBytes)
	f.lag.saw(8*pgapi.SegmentBytes, now, now, time.Time{}, false, time.Minute)
	if got := f.state(); got.Error == "" || !got.LastRestorable.Equal(f.info.LastRestorable) {
		t.Errorf("%+v of %+v", got, f.info)
	}
	must(t, second(f.list(t.Context())))
	if !f.damaged.Equal(found) {
		t.Error("the same gap is found twice")
	}
	_, err = a.PutBackup(t.Context(), "b2", time.Now(), func(w io.Writer) (pgapi.BackupInfo, error) {
		_, err := w.Write([]byte("tar"))
		return pgapi.BackupInfo{StartLSN: (7 * lsn(pgapi.SegmentBytes)).String(), StopLSN: (8 * lsn(pgapi.SegmentBytes)).String(), Timeline: 1}, err
	})
	must(t, err)
	put(9)
	must(t, second(f.list(t.Context())))
	if !f.damaged.After(found) {
		t.Error("another gap is not found")
	}
}

// Credentials that were given up before PostgreSQL was tuned are not set later: others may
// have been set meanwhile.
func TestCredentialsThatWereGivenUpAreNotSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(chan struct{})
		b := &boxes{list: map[string]*fakeBox{idA: {DatabaseBox: box.DatabaseBox{ID: idA, Spec: &hostapi.DatabaseSpec{}, Run: run}}}}
		a := seen(time.Now(), b, pgapi.Status{})
		a.run, a.tuned, a.done = run, make(chan struct{}), make(chan struct{})
		asked := 0
		a.client = pgapi.NewClient(func(context.Context) (net.Conn, error) {
			asked++
			return nil, errNoGuest
		})
		d := &Databases{cfg: *a.cfg, dbs: map[string]*database{idA: {agent: a}}}
		ctx, giveUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- second(d.SetCredentials(ctx, idA, app)) }()
		synctest.Wait()
		giveUp()
		synctest.Wait()
		close(a.tuned)
		if err := <-ended; !errors.Is(err, hosterr.ErrDatabaseUnready) || asked > 0 {
			t.Errorf("%v, and the guest was asked %d times", err, asked)
		}
	})
}
