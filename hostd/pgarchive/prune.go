package pgarchive

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// orphanAge is how old what belongs to no base backup becomes: the newest part of one
// that is being made is never as old.
const orphanAge = 24 * time.Hour

// Prune removes what no restore to a moment at or after before needs: it keeps the
// newest base backup that was finished by then, all later ones, and all WAL from their
// start. Whatever Prune is cut off at, those moments stay restorable. It removes
// nothing while a manifest cannot be read that is newer than that base backup, for what
// it needs is not known. An older one is of no use, and goes.
func (a *Archive) Prune(ctx context.Context, before time.Time) (hostapi.ArchiveInfo, error) {
	info, err := a.prune(ctx, before)
	if err != nil {
		err = fmt.Errorf("prune archive %s: %w", a.name, err)
	}
	return info, err
}

func (a *Archive) prune(ctx context.Context, before time.Time) (hostapi.ArchiveInfo, error) {
	l, err := a.look(ctx)
	if err != nil {
		return hostapi.ArchiveInfo{}, err
	}
	if drop, from, ok := l.superfluous(before); ok {
		if err := a.remove(ctx, l, drop, from, before); err != nil {
			return hostapi.ArchiveInfo{}, err
		}
		if l, err = a.look(ctx); err != nil {
			return hostapi.ArchiveInfo{}, err
		}
	}
	return a.info(ctx, l)
}

// remove takes manifests first, then their parts, then WAL from its begin.
func (a *Archive) remove(ctx context.Context, l *listing, drop []string, from uint64, before time.Time) error {
	b := a.store.bucket
	old := a.store.now().Add(-orphanAge)
	var manifests, parts, wal []string
	known := map[string]bool{}
	for _, m := range l.backups {
		known[m.ID] = true
	}
	for id := range l.damaged {
		known[id] = true
	}
	for _, id := range drop {
		manifests = append(manifests, a.prefix()+backupsDir+id)
		parts = append(parts, id)
	}
	for id, written := range l.parts {
		if !known[id] && written.Before(old) {
			parts = append(parts, id)
		}
	}
	for _, w := range l.wal {
		if w.Kind != pgapi.WALHistory && w.Segment < from {
			wal = append(wal, a.prefix()+walDir+w.name)
		}
	}
	for _, o := range l.aside {
		if o.Written.Before(before) {
			wal = append(wal, o.Key)
		}
	}
	if err := bucket.RemoveEach(ctx, b, manifests); err != nil {
		return err
	}
	if err := b.Sync(a.prefix() + backupsDir); err != nil {
		return err
	}
	for _, id := range parts {
		if err := b.RemoveAll(ctx, a.prefix()+partsDir+id+"/"); err != nil {
			return err
		}
	}
	if err := bucket.RemoveEach(ctx, b, wal); err != nil {
		return err
	}
	return b.Sweep(ctx, a.prefix(), old)
}

// superfluous are the base backups that no restore to a moment from before on needs,
// and the first segment that one does. Of those that were finished by then, the one
// that begins last does for all: where the WAL of another does not lead to it, that
// ends before it. It is not ok while a manifest cannot be read that may be needed: one
// that was written after that of the base backup which is kept.
func (l *listing) superfluous(before time.Time) (drop []string, from uint64, ok bool) {
	var keep *manifest
	for _, m := range l.backups {
		if _, ok := l.runOf(m); ok && !m.FinishedAt.After(before) && (keep == nil || m.start >= keep.start) {
			keep = m
		}
	}
	for id := range l.damaged {
		if keep == nil || !l.written[id].Before(l.written[keep.ID]) {
			return nil, 0, false
		}
		drop = append(drop, id)
	}
	if keep == nil {
		return nil, 0, true
	}
	from = keep.start
	for _, m := range l.backups {
		_, ok := l.runOf(m)
		if m != keep && !m.FinishedAt.After(before) && (ok || m.start < keep.start) {
			drop = append(drop, m.ID)
		} else {
			from = min(from, m.start)
		}
	}
	return drop, from, true
}
