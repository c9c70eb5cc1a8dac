package database

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/telemetry"
)

const (
	loopState    = "databases"
	loopWakes    = "database wakes"
	loopOrphans  = "sandboxes of databases"
	loopPrune    = "database archives"
	loopPreviews = "databases of previews"
)

// keeper runs the loops of one leadership term that keep databases in order.
type keeper struct {
	*loops.Term
	flows *Flows
	cfg   Config
	heard *heard
	naps  *naps

	// Each map belongs to one goroutine, the pass of one loop.
	written map[string]time.Time // when a database's archive facts were last written
	asked   map[string]time.Time // when the bucket was last asked for a failed database's archive
	pruned  map[string]time.Time // when a database's archives were last pruned
}

// Loops returns the loops that keep databases in order: they put idle databases to sleep,
// restart failed ones, record what hosts report of archives, and remove what is too old.
func (s *Databases) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{
		Term: t, flows: s.flows, cfg: s.cfg, heard: s.heard,
		naps: newNaps(), written: map[string]time.Time{}, asked: map[string]time.Time{}, pruned: map[string]time.Time{},
	}
	return []loops.Loop{
		{Name: loopState, Wake: s.core.Hosts.Changed, Pass: k.look},
		{Name: loopWakes, Run: k.wakes},
		{Name: loopOrphans, Wake: func() <-chan struct{} { return s.core.Store.View().Changed(record.Databases.Name) }, Pass: k.orphans},
		{Name: loopPreviews, Wake: k.previewsChanged, Pass: k.previews},
		{Name: loopPrune, Every: min(pruneLook, s.cfg.PruneEvery), Pass: k.prune},
	}
}

// wakes begins the requested wakes, until the term ends.
func (k *keeper) wakes(ctx context.Context) {
	k.heard.lead()
	defer k.heard.resign()
	for n := 0; ; {
		for _, w := range k.heard.toBegin() {
			// A job ends a moment after its wake, so the next wake needs another id, or
			// Begin would take it for the same job.
			n++
			k.Begin(loops.Job{What: "wake", ID: w.id + "/" + strconv.Itoa(n)}, manyWakes, func() {
				k.heard.ended(w.id, k.flows.awaken(telemetry.Under(ctx, w.trace), w.id))
			})
		}
		select {
		case <-k.heard.asked:
		case <-ctx.Done():
			return
		}
	}
}

// manyWakes is more than there are databases, so it limits nothing: somebody waits for
// each wake, and a host itself limits how many boxes it boots at once.
const manyWakes = 1 << 30

// look checks every database once.
func (k *keeper) look(ctx context.Context) {
	sessions := k.flows.Hosts.Sessions()
	view := k.Store.View()
	now := k.Clock()
	k.listen(view, sessions)
	var changed []string
	for _, d := range raftstore.All(view, record.Databases) {
		if _, news := k.verdict(view, d); news {
			changed = append(changed, d.ID)
			continue
		}
		if k.archiveUnknown(d, now) {
			k.Begin(loops.Job{What: "database archive", ID: d.ID}, loops.AtOnce, func() { k.readArchive(ctx, d.ID) })
		}
		box, ok := raftstore.Get(view, record.Sandboxes, d.SandboxID)
		if !ok {
			continue
		}
		session, heard := sessions[box.HostID]
		if !heard || !session.Heartbeat.Ready {
			continue
		}
		switch {
		case stopDue(view, d, box):
			if k.naps.due(d.ID, now) {
				k.naps.pause(d.ID, now.Add(sleepPause))
				k.Begin(loops.Job{What: "database sleep", Host: box.HostID, ID: d.ID}, loops.AtOnce, func() {
					failed := k.stop(ctx, d.ID)
					k.naps.ended(d.ID, k.Clock(), sleepPause, failed)
				})
			}
		case k.restartDue(view, d, box, session, now):
			k.heard.want(ctx, d.ID)
		case k.wakeDue(view, d, box, now):
			k.naps.pause(d.ID, now.Add(sleepPause))
			k.heard.want(ctx, d.ID)
		case k.sleepDue(view, d, box, session, now):
			pause := min(sleepPause, k.cfg.Idle)
			k.naps.pause(d.ID, now.Add(pause))
			k.Begin(loops.Job{What: "database sleep", Host: box.HostID, ID: d.ID}, loops.AtOnce, func() {
				failed := k.sleep(ctx, d.ID)
				k.naps.ended(d.ID, k.Clock(), pause, failed)
			})
		}
	}
	k.conclude(ctx, changed)
	k.writeFacts(ctx, view, now)
}

// listen takes in what heartbeats report of databases.
func (k *keeper) listen(view *raftstore.Snapshot, sessions map[string]hosts.Session) {
	booting := map[string]string{}
	for hostID, session := range sessions {
		for _, b := range session.Heartbeat.Boxes {
			if b.Database == nil && b.Status != hostapi.StatusStarting {
				continue
			}
			for _, d := range raftstore.Find(view, record.Databases, "sandbox", b.ID) {
				box, ok := raftstore.Get(view, record.Sandboxes, b.ID)
				switch {
				case !ok || box.HostID != hostID || box.Generation != b.Generation:
				case b.Status == hostapi.StatusStarting:
					booting[d.ID] = b.Error
				default:
					k.heard.tell(d.ID, fact{box: b.ID, seq: b.Seq, state: *b.Database, at: session.LastSeen})
				}
			}
		}
	}
	k.heard.booting(booting)
	known := func(id string) bool { _, ok := raftstore.Get(view, record.Databases, id); return ok }
	k.heard.forget(known, func(id string) bool { _, ok := raftstore.Get(view, record.Sandboxes, id); return ok })
	k.naps.keep(known)
	for _, of := range []map[string]time.Time{k.written, k.asked} {
		maps.DeleteFunc(of, func(id string, _ time.Time) bool { return !known(id) })
	}
}

// verdict returns the row that a database should have. news is false if the row may stay
// as it is.
func (k *keeper) verdict(r raftstore.Reader, d *record.Database) (out *record.Database, news bool) {
	become := func(status record.DatabaseStatus, why string) (*record.Database, bool) {
		c := d.Clone()
		c.Status, c.Error = status, why
		return c, true
	}
	live, under := flow.Live(r, Subject(d.ID))
	box, there := raftstore.Get(r, record.Sandboxes, d.SandboxID)
	switch d.Status {
	case record.DatabaseProvisioning, record.DatabaseRestoring:
		if !under { // none of our transactions leaves such a row, but a restored old backup might
			return become(record.DatabaseFailed, "what made it was interrupted")
		}
	case record.DatabaseDeleting:
		return d, !under
	case record.DatabaseReady:
		switch {
		case under && live.Kind != KindRotate:
		case !there, box.Status == record.SandboxDeleting:
			return become(record.DatabaseFailed, errBoxGone)
		case box.Status != record.SandboxFailed:
			if boot, ok := k.heard.boot(d.ID); ok && k.Clock().Sub(boot.since) >= k.cfg.BootPatience {
				return become(record.DatabaseFailed, booting(boot))
			}
		case !hostUp(r, box.HostID):
			return become(record.DatabaseFailed, boxFault(box.Error))
		case k.restarts(box).failures >= maxRestarts:
			return become(record.DatabaseFailed, boxFault(box.Error)+"; it could not be started again: "+k.restarts(box).last)
		}
	case record.DatabaseFailed:
		up := there && (box.Status == record.SandboxRunning || box.Status == record.SandboxHibernated || box.Status == record.SandboxPaused)
		if !under && up && d.Credentials != nil && k.serves(d, box) {
			return become(record.DatabaseReady, "")
		}
	}
	return d, false
}

// serves reports whether the database's host has been heard and is not booting it.
func (k *keeper) serves(d *record.Database, box *record.Sandbox) bool {
	_, heard := k.flows.Hosts.Session(box.HostID)
	_, booting := k.heard.boot(d.ID)
	return heard && !booting
}

// restarts returns how the restarts of a box went, on the daemon that its host runs now.
func (k *keeper) restarts(box *record.Sandbox) restart {
	session, _ := k.flows.Hosts.Session(box.HostID)
	return k.heard.restart(box.ID, session.Heartbeat.BootID)
}

// conclude commits the verdicts on databases.
func (k *keeper) conclude(ctx context.Context, ids []string) {
	var told []*record.Database
	loops.InParts(ctx, k.Term, loopState, ids, func(tx *raftstore.Tx, part []string) error {
		told = told[:0]
		for _, id := range part {
			d, ok := raftstore.Get(tx, record.Databases, id)
			if !ok {
				continue
			}
			now, news := k.verdict(tx, d)
			switch {
			case !news:
			case d.Status == record.DatabaseDeleting:
				if _, err := beginDelete(tx, flow.NewID(), d, ""); err != nil {
					return err
				}
			default:
				raftstore.Put(tx, record.Databases, now)
				told = append(told, now)
			}
		}
		return nil
	}, func() {
		for _, d := range told {
			k.Logger.WarnContext(ctx, "database changed", "database_id", d.ID, "status", d.Status, "why", d.Error)
		}
	})
}

// restartDue reports whether a database's failed box is to be booted from its disk now.
// Its host must be up, no flow other than a rotation may work on the database, and its
// workspace must not be paused.
func (k *keeper) restartDue(r raftstore.Reader, d *record.Database, box *record.Sandbox, session hosts.Session, now time.Time) bool {
	if d.Status != record.DatabaseReady && d.Status != record.DatabaseFailed || d.Credentials == nil {
		return false
	}
	if box.Status != record.SandboxFailed || !hostUp(r, box.HostID) || paused(r, d.WorkspaceID) {
		return false
	}
	if live, under := flow.Live(r, Subject(d.ID)); under && live.Kind != KindRotate {
		return false
	}
	if !now.After(k.heard.restart(box.ID, session.Heartbeat.BootID).next) {
		return false
	}
	for _, b := range session.Heartbeat.Boxes {
		if b.ID == box.ID && b.Generation == box.Generation {
			return b.Status == hostapi.StatusFailed // the sandbox's own loop handles any other status
		}
	}
	// The host has no such box, or has not reported it yet; the sandbox's own loop asks
	// it. A missing box is gone for good, and only its archive is left.
	return box.Error != "" && k.Sure(record.Sandboxes.Name, &box.Meta, session.LastSeen)
}

// writeFacts keeps the archives' facts in the rows up to date: at once when a database
// becomes restorable, and otherwise every FactsEvery.
func (k *keeper) writeFacts(ctx context.Context, view *raftstore.Snapshot, now time.Time) {
	var news []string
	for _, d := range raftstore.All(view, record.Databases) {
		before := d.Archive()
		if before == nil {
			continue
		}
		after, ok := k.factsOf(view, d)
		switch {
		case !ok:
		case before.FirstRestorable.IsZero() != after.FirstRestorable.IsZero(),
			now.Sub(k.written[d.ID]) >= k.cfg.FactsEvery:
			k.written[d.ID] = now
			news = append(news, d.ID)
		}
	}
	loops.InParts(ctx, k.Term, loopState, news, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			d, ok := raftstore.Get(tx, record.Databases, id)
			if !ok {
				continue
			}
			if after, ok := k.factsOf(tx, d); ok {
				c := d.Clone()
				*c.Archive() = after
				raftstore.Put(tx, record.Databases, c)
			}
		}
		return nil
	}, nil)
}

// askPause is the time between two reads of the bucket for one database.
const askPause = 15 * time.Second

// archiveUnknown reports whether the bucket is to be asked for a failed database's
// archive because nothing is known of it: the host was lost before it reported the first
// base backup.
func (k *keeper) archiveUnknown(d *record.Database, now time.Time) bool {
	if d.Status != record.DatabaseFailed || d.Credentials == nil || now.Sub(k.asked[d.ID]) < askPause {
		return false
	}
	if _, known := restorable(d); known || d.Archive() == nil {
		return false
	}
	k.asked[d.ID] = now
	return true
}

// readArchive writes what the bucket has of a database's archive to the row.
func (k *keeper) readArchive(ctx context.Context, id string) {
	d, ok := raftstore.Get(k.Store.View(), record.Databases, id)
	if !ok || d.Archive() == nil {
		return
	}
	info, err := k.flows.info(ctx, d.Archive(), k.cfg.BucketTimeout)
	if err != nil || info.FirstRestorable.IsZero() {
		return // the next pass asks again
	}
	k.Update(ctx, loopState, func(tx *raftstore.Tx) error {
		now, ok := raftstore.Get(tx, record.Databases, id)
		if !ok || now.Archive() == nil || now.Archive().Name != d.Archive().Name {
			return nil
		}
		c := now.Clone()
		a := c.Archive()
		a.FirstRestorable, a.LastRestorable, a.LastLSN, a.SizeBytes = info.FirstRestorable.UTC(), info.LastRestorable.UTC(), info.LastLSN, info.SizeBytes
		raftstore.Put(tx, record.Databases, c)
		return nil
	})
}

// factsOf returns a database's current archive as its host last reported it. The result
// is false if that is not news.
func (k *keeper) factsOf(r raftstore.Reader, d *record.Database) (record.DatabaseArchive, bool) {
	before := d.Archive()
	f, ok := k.heard.fact(d.ID, d.SandboxID)
	if before == nil || !ok || !before.ClosedAt.IsZero() || f.state.Archive.FirstRestorable.IsZero() {
		return record.DatabaseArchive{}, false
	}
	after, a := *before, f.state.Archive
	if !possible(a.FirstRestorable) || !possible(a.LastRestorable) {
		return record.DatabaseArchive{}, false
	}
	after.FirstRestorable, after.LastRestorable, after.LastLSN, after.SizeBytes = a.FirstRestorable.UTC(), a.LastRestorable.UTC(), a.LastLSN, a.SizeBytes
	if after.LastLSN == before.LastLSN && untold(r, d, before) {
		after.SizeBytes = before.SizeBytes // it was pruned since, perhaps
	}
	same := after.FirstRestorable.Equal(before.FirstRestorable) && after.LastRestorable.Equal(before.LastRestorable) && after.LastLSN == before.LastLSN && after.SizeBytes == before.SizeBytes
	return after, !same
}

// possible reports whether a record can have a time that a host has told (RFC 3339 has years
// of four digits). Facts of many databases are written together: one impossible time would
// keep out all.
func possible(at time.Time) bool {
	y := at.UTC().Year()
	return y >= 0 && y <= 9999
}

// orphans deletes sandboxes whose database is gone or has another sandbox.
func (k *keeper) orphans(ctx context.Context) {
	orphan := func(r raftstore.Reader, s *record.Sandbox) bool {
		if s.Owner == nil || s.Owner.Type != sandbox.OwnerDatabase || s.Status == record.SandboxDeleting {
			return false
		}
		d, ok := raftstore.Get(r, record.Databases, s.Owner.ID)
		return !ok || d.SandboxID != s.ID
	}
	view := k.Store.View()
	for _, s := range raftstore.Find(view, record.Sandboxes, "owner", sandbox.OwnerDatabase) {
		if !orphan(view, s) || loops.Kept(view) > 0 {
			continue
		}
		k.Logger.WarnContext(ctx, "sandbox of no database is deleted", "sandbox_id", hostapi.ShortID(s.ID), "database_id", s.Owner.ID)
		k.Update(ctx, loopOrphans, func(tx *raftstore.Tx) error {
			s, ok := raftstore.Get(tx, record.Sandboxes, s.ID)
			if !ok || !orphan(tx, s) {
				return nil
			}
			_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, "")
			return err
		})
	}
}
