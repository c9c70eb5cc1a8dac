package database

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// pruneLook is how often the loop looks for databases that are due for pruning.
const pruneLook = 10 * time.Minute

// manyArchives is how many archives make a database due at every look.
const manyArchives = 8

// maxArchives is how many archives a running database may have before a failover is
// refused. Each restore adds one, which cannot go while something in it can still be
// restored.
const maxArchives = 32

// pruneTimeout bounds the pruning of one database.
var pruneTimeout = timescale.Limit(5 * time.Minute)

// prune removes from archives what is older than the retention. It takes one database at
// a time, because nobody waits for it, and a host lists each archive completely.
func (k *keeper) prune(ctx context.Context) {
	for _, d := range raftstore.All(k.Store.View(), record.Databases) {
		now := k.Clock()
		if !k.pruneDue(d, now) {
			continue
		}
		view := k.Store.View() // the earlier databases took time
		if ctx.Err() != nil || loops.Kept(view) > 0 {
			return // keep what a restored backup does not know of
		}
		d, ok := prunable(view, d.ID)
		if !ok {
			continue
		}
		if k.pruneOne(ctx, d, now.Add(-k.cfg.Retention)) {
			k.pruned[d.ID] = now
		} else {
			delete(k.pruned, d.ID)
		}
	}
	view := k.Store.View()
	for id := range k.pruned {
		if _, ok := raftstore.Get(view, record.Databases, id); !ok {
			delete(k.pruned, id)
		}
	}
}

// pruneDue reports whether a database's last pruning was too long ago, or its archive
// needs room. An archive at its quota takes no WAL, which then fills the database's disk.
func (k *keeper) pruneDue(d *record.Database, now time.Time) bool {
	last, ok := k.pruned[d.ID]
	if !ok || now.Sub(last) >= k.cfg.PruneEvery || len(d.Archives) >= manyArchives {
		return true
	}
	f, heard := k.heard.fact(d.ID, d.SandboxID)
	return heard && f.state.Archive.Error == hostapi.ArchiveCauseFull
}

// prunable returns a database that has archives, none of which is being restored from.
func prunable(r raftstore.Reader, id string) (*record.Database, bool) {
	d, ok := raftstore.Get(r, record.Databases, id)
	if !ok || d.Status == record.DatabaseDeleting || len(d.Archives) == 0 || clonedBy(r, d) != nil {
		return nil, false
	}
	_, live := flow.Live(r, Subject(id))
	return d, !live
}

// pruneOne prunes the archives of a database. It removes an earlier incarnation's archive
// completely if that never had a base backup, or if it ends before the retention and a
// later incarnation covers the whole retention. It reports whether everything went well;
// if not, the next look tries again.
func (k *keeper) pruneOne(ctx context.Context, d *record.Database, before time.Time) (all bool) {
	all = true
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	edge := before.Add(-k.cfg.RestoreDeadline) // hosts also keep what a running restore may have begun with
	old := map[string]bool{}
	sizes := map[string]int64{} // of archives of which no host tells any more
	covered := false            // a later incarnation covers the whole retention
	for i := len(d.Archives) - 1; i >= 0; i-- {
		a := &d.Archives[i]
		if a.Removing {
			old[a.Name] = true
			continue
		}
		info, err := k.pruneArchive(ctx, a, before)
		if err != nil {
			k.notPruned(ctx, d, a, err)
			all = false
			continue
		}
		if a.SizeBytes != info.SizeBytes && untold(k.Store.View(), d, a) {
			sizes[a.Name] = info.SizeBytes
		}
		empty := a.FirstRestorable.IsZero() && info.FirstRestorable.IsZero()
		if !a.ClosedAt.IsZero() && (empty || covered && info.LastRestorable.Before(edge)) {
			old[a.Name] = true
		}
		covered = covered || !info.FirstRestorable.IsZero() && !info.FirstRestorable.After(edge)
	}
	if len(sizes) > 0 {
		all = k.writeSizes(ctx, d.ID, sizes) && all
	}
	if len(old) > 0 {
		all = k.removeOld(ctx, d, old) && all
	}
	return all
}

// untold reports whether no host tells of an archive: it is an earlier one, or that of a
// database that does not run.
func untold(r raftstore.Reader, d *record.Database, a *record.DatabaseArchive) bool {
	box, ok := raftstore.Get(r, record.Sandboxes, d.SandboxID)
	return !a.ClosedAt.IsZero() || !ok || box.Status != record.SandboxRunning
}

// writeSizes writes the sizes of archives, by name, to a database's row.
func (k *keeper) writeSizes(ctx context.Context, id string, sizes map[string]int64) bool {
	return k.Update(ctx, loopPrune, func(tx *raftstore.Tx) error {
		d, ok := raftstore.Get(tx, record.Databases, id)
		if !ok {
			return nil
		}
		c := d.Clone()
		for i := range c.Archives {
			if size, ok := sizes[c.Archives[i].Name]; ok && untold(tx, d, &c.Archives[i]) {
				c.Archives[i].SizeBytes = size
			}
		}
		raftstore.Put(tx, record.Databases, c)
		return nil
	})
}

// removeOld removes whole archives. It first marks them in the row, and from then on
// nothing is restored from them. It does nothing if a restore may have begun meanwhile.
// It reports whether the archives are gone.
func (k *keeper) removeOld(ctx context.Context, d *record.Database, old map[string]bool) bool {
	marked := false
	wrote := k.Update(ctx, loopPrune, func(tx *raftstore.Tx) error {
		now, ok := prunable(tx, d.ID)
		if marked = ok; !ok {
			return nil
		}
		c := now.Clone()
		for i := range c.Archives {
			c.Archives[i].Removing = c.Archives[i].Removing || old[c.Archives[i].Name]
		}
		raftstore.Put(tx, record.Databases, c)
		return nil
	})
	if !wrote || !marked {
		return false
	}
	gone := map[string]bool{}
	for i := range d.Archives {
		a := &d.Archives[i]
		if !old[a.Name] {
			continue
		}
		if err := k.flows.deleteArchive(ctx, a); err != nil {
			k.notPruned(ctx, d, a, err)
			continue
		}
		gone[a.Name] = true
	}
	wrote = k.Update(ctx, loopPrune, func(tx *raftstore.Tx) error {
		now, ok := raftstore.Get(tx, record.Databases, d.ID)
		if !ok || len(gone) == 0 {
			return nil
		}
		c := now.Clone()
		c.Archives = slices.DeleteFunc(c.Archives, func(a record.DatabaseArchive) bool { return gone[a.Name] })
		raftstore.Put(tx, record.Databases, c)
		return nil
	})
	return wrote && len(gone) == len(old)
}

func (k *keeper) notPruned(ctx context.Context, d *record.Database, a *record.DatabaseArchive, err error) {
	k.Logger.WarnContext(ctx, "archive was not pruned", "database_id", d.ID, "archive", a.Name, "error", err)
}

func (k *keeper) pruneArchive(ctx context.Context, a *record.DatabaseArchive, before time.Time) (hostapi.ArchiveInfo, error) {
	named, err := k.flows.archive(a)
	if err != nil {
		return hostapi.ArchiveInfo{}, err
	}
	var out hostapi.ArchiveInfo
	err = k.flows.anyHost(ctx, func(ctx context.Context, c *hosts.Client) error {
		var err error
		out, err = c.PruneArchive(ctx, hostapi.ArchivePrune{Archive: named, Before: before})
		return err
	})
	if hostapi.HasCode(err, hostapi.CodeNoArchive) {
		return out, nil
	}
	return out, err
}
