package usage

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// stored is what a workspace keeps: a snapshot, a volume or an archive.
type stored struct {
	product  string
	resource record.Resource
	mib      int64
	since    time.Time
}

// storage counts what workspaces keep, since it was counted last.
func (k *keeper) storage(ctx context.Context) {
	view := k.Store.View()
	seen := map[string]bool{}
	var ids []string
	see := func(id string) {
		if !seen[id] {
			seen[id], ids = true, append(ids, id)
		}
	}
	for _, s := range raftstore.All(view, record.Snapshots) {
		see(s.WorkspaceID)
	}
	for _, v := range raftstore.All(view, record.Volumes) {
		see(v.WorkspaceID)
	}
	for _, d := range raftstore.All(view, record.Databases) {
		see(d.WorkspaceID)
	}
	loops.InParts(ctx, k.Term, loopStorage, ids, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			k.ledger.storage(tx, id, tx.Now().UTC().Truncate(time.Millisecond))
		}
		return nil
	}, nil)
}

// storage counts what one workspace keeps, up to a time. It counts from where it ended
// before, so a time counts once, whoever leads; what was deleted meanwhile counts until
// it was counted last.
func (l *ledger) storage(tx *raftstore.Tx, workspaceID string, now time.Time) {
	items := storedBy(tx.Snapshot(), workspaceID)
	begin := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	last := record.MonthOf(begin.Add(-time.Hour))
	since := usageOf(tx, workspaceID, record.MonthOf(now)).StorageAt
	if since.IsZero() {
		if before := usageOf(tx, workspaceID, last).StorageAt; !before.IsZero() {
			l.store(tx, workspaceID, last, items, before, begin)
			since = begin
		}
	}
	if since.IsZero() { // nothing was counted before
		since = now.Add(-firstStorage)
		if since.Before(begin) {
			since = begin
		}
	}
	if now.After(since) {
		l.store(tx, workspaceID, record.MonthOf(now), items, since, now)
	}
}

// firstStorage is how far back the first count of a workspace goes, at most to when
// what it keeps was made.
const firstStorage = time.Hour

func (l *ledger) store(tx *raftstore.Tx, workspaceID, month string, items []stored, from, to time.Time) {
	rows := months{tx: tx, month: month}
	row, priced := rows.of(workspaceID, l)
	for _, i := range items {
		since := from
		if i.since.After(since) {
			since = i.since
		}
		l.prices.add(row, i.product, i.resource, i.mib*max(0, to.Sub(since).Milliseconds()), priced)
	}
	row.StorageAt = to
	rows.put()
}

func storedBy(r raftstore.Reader, workspaceID string) (out []stored) {
	for _, s := range raftstore.Find(r, record.Snapshots, "workspace", workspaceID) {
		if s.Status != record.ResourceReady {
			continue
		}
		product := record.ProductSandbox
		if s.Owner != nil {
			product = s.Owner.Type
		}
		out = append(out, stored{product, record.ResourceSnapshot, mib(s.MemoryBytes + s.DiskBytes), s.CreatedAt})
	}
	for _, v := range raftstore.Find(r, record.Volumes, "workspace", workspaceID) {
		if v.Status == record.ResourceReady {
			out = append(out, stored{record.ProductSandbox, record.ResourceVolume, int64(v.SizeMB), v.CreatedAt})
		}
	}
	for _, d := range raftstore.Find(r, record.Databases, "workspace", workspaceID) {
		for i := range d.Archives {
			if a := &d.Archives[i]; !a.Removing {
				out = append(out, stored{record.ProductDatabase, record.ResourceArchive, mib(min(a.SizeBytes, mostArchive)), a.CreatedAt})
			}
		}
	}
	return out
}

// mostArchive is 1 PiB, more than any archive has. Its size is a host's word, and a host
// could say any number.
const mostArchive = 1 << 50

// mib returns bytes in MiB, rounded up.
func mib(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }
