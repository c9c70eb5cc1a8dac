package usage

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// partBoxes is how many boxes of a batch one transaction writes down: each may be of
	// another workspace, whose row has one or two kilobytes.
	partBoxes = 100
	// slack is how far ahead of the leader's clock a batch may end.
	slack = 30 * time.Second
	// mostAgain bounds what a batch may account for when it is not known what is accounted
	// for already.
	mostAgain = time.Hour
)

// ledger writes down what hosts tell.
type ledger struct {
	prices *Prices
	tiers  *limits.Tiers
}

// take writes down a part of a batch, and reports whether that was the last one. What is
// written down already is not written again, whoever tells it and how often.
//
// A host is believed in how long a box ran, and no further. The box must be one that was
// placed there; its size is its row's; and nothing lasts longer than the time for which
// the host has not accounted before, nor than the box has been there.
func (l *ledger) take(tx *raftstore.Tx, hostID string, b hostapi.UsageBatch) (done bool) {
	cur := &record.MeterCursor{Meta: record.Meta{ID: hostID}}
	if row, ok := raftstore.Get(tx, record.MeterCursors, hostID); ok {
		c := *row
		cur = &c
	}
	if b.Epoch == cur.Epoch && b.Sequence <= cur.Sequence {
		return true
	}
	if cur.PartEpoch != b.Epoch || cur.PartSequence != b.Sequence {
		cur.PartEpoch, cur.PartSequence, cur.Part = b.Epoch, b.Sequence, 0
	}
	if cur.To.After(tx.Now().Add(slack)) {
		// A leader's clock was ahead: no host can move a cursor there. Nothing would count
		// until that time has come. By its number, a batch still counts once.
		cur.To = tx.Now().Add(-mostAgain)
	}
	from, to := span(b, cur.To, tx.Now())
	first := min(cur.Part, len(b.Boxes))
	last := min(first+partBoxes, len(b.Boxes))
	rows := months{tx: tx, month: record.MonthOf(from)}
	for i, u := range b.Boxes[first:last] {
		if n := first + i; n > 0 && u.ID <= b.Boxes[n-1].ID {
			continue // each once
		}
		l.box(tx, &rows, hostID, u, from, to)
	}
	rows.put()
	cur.Part = last
	if done = last == len(b.Boxes); done {
		cur.Epoch, cur.Sequence, cur.PartEpoch, cur.PartSequence, cur.Part = b.Epoch, b.Sequence, "", 0, 0
		if to.After(cur.To) {
			cur.To = to
		}
	}
	raftstore.Put(tx, record.MeterCursors, cur)
	return done
}

// span is the time that a batch may account for: as long as it says, but not beyond now
// and not before what is accounted for.
func span(b hostapi.UsageBatch, accounted, now time.Time) (from, to time.Time) {
	length := max(0, b.To.Sub(b.From))
	to = b.To.UTC()
	if latest := now.Add(slack); to.After(latest) {
		to = latest
	}
	from = to.Add(-length)
	if from.Before(accounted) {
		from = accounted
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// box adds what one box used.
func (l *ledger) box(tx *raftstore.Tx, rows *months, hostID string, u hostapi.BoxUsage, from, to time.Time) {
	b, ok := placed(tx.Snapshot(), hostID, u.ID)
	if !ok {
		return
	}
	if from.Before(b.Began) {
		from = b.Began
	}
	// A host that was silent may have run it on after its owner deleted it.
	if end := b.UpdatedAt.Add(slack); !b.UpdatedAt.IsZero() && to.After(end) {
		to = end
	}
	room := to.Sub(from).Milliseconds()
	ms := func(claimed int64) int64 { return max(0, min(claimed, room)) }
	row, priced := rows.of(b.WorkspaceID, l)
	add := func(r record.Resource, amount int64) { l.prices.add(row, b.Product, r, amount, priced) }
	add(record.ResourceVCPU, ms(u.RunMS)*int64(b.CPU))
	add(record.ResourceMemory, ms(u.MemoryMS)*int64(b.MemoryMB))
	add(record.ResourceDisk, ms(u.DiskMS)*int64(b.DiskMB))
	add(record.ResourceCPU, max(0, min(u.CPUMS, room*int64(b.CPU)+room/2))) // half a CPU is the engine's
}

// placed finds for whom a box on a host is counted.
func placed(r raftstore.Reader, hostID, id string) (record.EndedBox, bool) {
	// A box that has moved is counted on its host, and on the former host for the use that
	// the former host has not reported yet.
	e, ended := endedOn(r, hostID, id)
	if s, ok := raftstore.Get(r, record.Sandboxes, id); ok && (s.HostID == hostID || !ended) {
		return record.EndedBox{
			WorkspaceID: s.WorkspaceID, Product: s.Product(), CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB, Began: s.CreatedAt,
		}, s.HostID == hostID
	}
	return e, ended
}

func endedOn(r raftstore.Reader, hostID, id string) (record.EndedBox, bool) {
	e, ok := raftstore.Get(r, record.EndedBoxes, record.EndedBoxID(id, hostID))
	if !ok { // of an earlier version
		e, ok = raftstore.Get(r, record.EndedBoxes, id)
	}
	if !ok || e.HostID != hostID {
		return record.EndedBox{}, false
	}
	return *e, true
}

// months are the rows of one month that a transaction changes.
type months struct {
	tx    *raftstore.Tx
	month string
	rows  map[string]*record.Usage // by workspace
	paid  map[string]bool          // whether its use has a price
}

func (m *months) of(workspaceID string, l *ledger) (row *record.Usage, priced bool) {
	if row, ok := m.rows[workspaceID]; ok {
		return row, m.paid[workspaceID]
	}
	if m.rows == nil {
		m.rows, m.paid = map[string]*record.Usage{}, map[string]bool{}
	}
	row = usageOf(m.tx, workspaceID, m.month)
	w, ok := raftstore.Get(m.tx.Snapshot(), record.Workspaces, workspaceID)
	m.rows[workspaceID], m.paid[workspaceID] = row, l.prices != nil && (l.prices.Own || ok && l.tiers.Sold(w))
	return row, m.paid[workspaceID]
}

func (m *months) put() {
	for _, row := range m.rows {
		raftstore.Put(m.tx, record.Usages, row)
	}
}

// usageOf returns the row of a month, for the caller to change and put.
func usageOf(r raftstore.Reader, workspaceID, month string) *record.Usage {
	id := record.UsageID(workspaceID, month)
	if row, ok := raftstore.Get(r, record.Usages, id); ok {
		return row.Clone()
	}
	return &record.Usage{Meta: record.Meta{ID: id}, WorkspaceID: workspaceID, Month: month}
}
