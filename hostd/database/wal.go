package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// pollWait is how long one question for work waits at the guest.
const pollWait = 20 * time.Second

// storeLimit bounds the way of one WAL file into the bucket, and handLimit the guest's
// part of it: others wait for the turn.
var (
	storeLimit = timescale.Limit(2 * time.Minute)
	handLimit  = timescale.Limit(20 * time.Second)
)

var errSlowGuest = errors.New("the guest hands it over too slowly")

// archiveWAL carries WAL into the bucket, one file after the other, until ctx ends or
// the archive is fenced.
func (a *agent) archiveWAL(ctx context.Context) {
	retry := newBackoff(200*time.Millisecond, 15*time.Second)
	for ctx.Err() == nil && !a.db.facts.fenced() {
		file, there, err := a.nextWAL(ctx)
		if err == nil && there {
			if err = a.storeWAL(ctx, file); err != nil && ctx.Err() == nil {
				a.notStored(file.Name, err)
			}
		}
		if err == nil {
			retry.reset()
		} else if !retry.wait(ctx) {
			return
		}
	}
}

func (a *agent) nextWAL(ctx context.Context) (file pgapi.WALFile, there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollWait+pollSlack)
	defer cancel()
	return a.client.NextWAL(ctx, pollWait)
}

// storeWAL makes a file durable in the bucket, and then says so to the guest.
func (a *agent) storeWAL(ctx context.Context, file pgapi.WALFile) error {
	if a.db.facts.refusesWAL() {
		return errFull
	}
	leave, err := a.wal.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	rctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	guest := &fromGuest{left: handLimit, cut: func() { cut(errSlowGuest) }}
	content, err := guest.open(func() (io.ReadCloser, error) { return a.client.WAL(rctx, file.Name) })
	if pgapi.HasCode(err, pgapi.CodeNotOffered) {
		return nil // PostgreSQL was started again; it offers it once more
	}
	if err != nil {
		return fmt.Errorf("read it in the guest: %w", &guestFault{errors.Join(context.Cause(rctx), err)})
	}
	defer content.Close()
	stored, err := a.db.archive.PutWAL(ctx, file, guest)
	if err != nil {
		return err
	}
	a.db.facts.stored(file.Name, stored.Bytes)
	a.cfg.Metrics.stored(file.Size)
	if stored.Mended != nil {
		a.mended(file.Name, stored.Mended)
	}
	leave() // nothing of it is in memory now, and the guest may take long to answer
	if err := a.client.WALStored(ctx, file); err != nil && !pgapi.HasCode(err, pgapi.CodeNotOffered) {
		return fmt.Errorf("tell the guest that it is stored: %w", &guestFault{err})
	}
	return nil
}

// mended notes that an object of the archive was damaged, and is whole again.
func (a *agent) mended(name string, damage error) {
	a.cfg.Log.Error("WAL of a database was damaged in its archive and is written anew, what was there is kept aside", "sandbox_id", a.id, "file", name, "error", damage)
	a.cfg.Metrics.mended()
	a.db.facts.relist()
}

func (a *agent) notStored(name string, err error) {
	a.cfg.Metrics.walFailed()
	if a.fenced(err) {
		return
	}
	if a.db.facts.failed(err) {
		a.cfg.Log.Error("WAL of a database is not archived, it is tried again", "sandbox_id", a.id, "file", name, "error", err)
		a.tell()
	}
}
