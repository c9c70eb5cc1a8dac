package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	dueEvery = time.Second // how often it is looked whether a base backup is due
	// backupRateK bounds how fast a base backup is read, in KiB a second: the tenant
	// reads the same disk.
	backupRateK = 32 << 10
	// The pauses after a base backup that failed.
	firstBackupPause = 30 * time.Second
	lastBackupPause  = 30 * time.Minute
	// leastRate is how fast a base backup has to come, in bytes a second, and slack how
	// much larger than its guest's disk it may be: holes in files are none in it. Other
	// databases of the host wait for its end.
	leastRate = 2 << 20
	slack     = 1 << 30
)

// stallLimit is how long nothing may come of a base backup.
var stallLimit = timescale.Limit(2 * time.Minute)

var (
	errStalled  = errors.New("nothing came of it for too long")
	errTooSlow  = errors.New("it comes too slowly")
	errTooLarge = errors.New("it is larger than its guest's disk")
)

// backUp makes base backups when they are due, or asked for.
func (a *agent) backUp(ctx context.Context) {
	retry := newBackoff(firstBackupPause, lastBackupPause)
	tick := time.NewTicker(dueEvery)
	defer tick.Stop()
	asked := false // and not made yet
	var notBefore time.Time
	for {
		select {
		case <-a.asked:
			asked, notBefore = true, time.Time{}
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := a.cfg.Now()
		if a.db.facts.fenced() || now.Before(notBefore) || !asked && !a.due(now) || a.db.facts.refusesBackup() || !a.mayCopy() {
			continue
		}
		err := a.copyInTurn(ctx)
		a.mu.Lock()
		a.copying, a.copied = false, a.cfg.Now()
		a.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		a.cfg.Metrics.backup(err)
		if err != nil {
			notBefore = a.cfg.Now().Add(retry.next)
			retry.next = min(2*retry.next, retry.last)
			if !a.fenced(err) {
				a.db.facts.notBackedUp(err)
				a.cfg.Log.Error("a base backup failed, it is tried again", "sandbox_id", a.id, "error", err)
			}
			continue
		}
		retry.reset()
		asked, notBefore = false, time.Time{}
	}
}

// askBackup has a base backup made soon, unless one is under way.
func (a *agent) askBackup() {
	a.mu.Lock()
	copying := a.copying
	a.mu.Unlock()
	if copying {
		return
	}
	select {
	case a.asked <- struct{}{}:
	default:
	}
}

// due reports whether a base backup is wanted by now.
func (a *agent) due(now time.Time) bool {
	a.mu.Lock()
	first := time.Duration(a.spec.FirstBackupSeconds) * time.Second
	interval := time.Duration(a.spec.BackupIntervalSeconds) * time.Second
	a.mu.Unlock()
	f := a.db.facts
	f.mu.Lock()
	defer f.mu.Unlock()
	last, made := f.lastBackup()
	switch {
	case !f.known || f.served.IsZero():
		return false
	case !made:
		return now.Sub(f.served) >= first
	default:
		if f.damaged.After(last.FinishedAt) {
			return true // restores begin after the gap
		}
		// The WAL that a base backup itself causes ends in the segment of its stop.
		stop := parseLSN(last.StopLSN)
		wrote := f.lag.archived > 0 && f.lag.archived.segment() > stop.segment()
		return wrote && (f.much(last) || now.Sub(last.FinishedAt) >= interval)
	}
}

// mayCopy reports whether a base backup may begin: the database serves, and is not
// about to sleep.
func (a *agent) mayCopy() bool {
	ready := a.state().Ready
	a.mu.Lock()
	defer a.mu.Unlock()
	if !ready || a.sleeping {
		return false
	}
	a.copying = true
	return true
}

// copyInTurn makes a base backup once the host has time for it.
func (a *agent) copyInTurn(ctx context.Context) error {
	leave, err := a.backups.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	began := a.cfg.Now()
	base, err := a.copyBase(ctx, began, leave)
	if err != nil {
		return err
	}
	a.db.facts.backedUp(base)
	a.cfg.Log.Info("base backup of a database is stored", "sandbox_id", a.id, "backup", base.ID,
		"bytes", base.SizeBytes, "took_ms", a.cfg.Now().Sub(began).Milliseconds())
	return nil
}

// copyBase gives the turn away when it stalls: a file system that hangs does not let go
// of who waits for it.
func (a *agent) copyBase(ctx context.Context, began time.Time, leave func()) (hostapi.BaseBackup, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallLimit, func() { cancel(errStalled); leave() })
	defer stall.Stop()
	id := began.UTC().Format("20060102t150405z") + fmt.Sprintf("-%09d", began.Nanosecond())
	return a.db.archive.PutBackup(ctx, id, began, func(w io.Writer) (pgapi.BackupInfo, error) {
		c := &copied{w: progress{w, stall}, most: 2*int64(a.diskMB)<<20 + slack, began: time.Now()}
		info, err := a.client.Backup(ctx, pgapi.Backup{Label: id, MaxRateK: backupRateK}, c)
		if err != nil && !c.refused {
			err = &copyFault{err}
		}
		return info, err
	})
}

// copied is a base backup on its way, which ends where it is no honest one.
type copied struct {
	w     io.Writer
	most  int64 // bytes
	began time.Time

	bytes   int64
	storing time.Duration // of the time since then, the bucket's
	refused bool          // the bucket took no more
}

// Write implements io.Writer.
func (c *copied) Write(b []byte) (int, error) {
	now := time.Now()
	if c.bytes+int64(len(b)) > c.most {
		return 0, errTooLarge
	}
	if now.Sub(c.began)-c.storing > stallLimit+timescale.Limit(time.Duration(c.bytes/leastRate)*time.Second) {
		return 0, errTooSlow
	}
	n, err := c.w.Write(b)
	c.bytes += int64(n)
	c.storing += time.Since(now)
	c.refused = c.refused || err != nil
	return n, err
}

// progress is a writer that keeps a timer from firing.
type progress struct {
	io.Writer
	timer *time.Timer
}

func (p progress) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	p.timer.Reset(stallLimit)
	return n, err
}
