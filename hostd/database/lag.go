package database

import (
	"slices"
	"time"
)

// lag knows how old the oldest write is that may not be archived.
//
// It sees positions now and then. A write is as old as the look before the one that
// saw it: it may have come right after that. Of each segment only the first write
// counts, for segments are archived whole. What came after the last look is not known.
type lag struct {
	at       lsn       // where the WAL ended at the last look
	moved    time.Time // the last look that saw it elsewhere than the one before; zero: this run has yet to be looked at
	looked   time.Time // when the last look began, maybe at an earlier run; zero: there was none
	floor    time.Time // for a first look: nothing that is not archived was written before; zero: not known
	archived lsn       // all before it is archived
	writes   []write
}

type write struct {
	to   lsn
	from time.Time // nothing of it was written before; zero: not known
}

// begin notes that the database runs anew, since then; zero: since before the daemon came.
// settled: all that it wrote before is archived. quiet is for how long PostgreSQL may leave
// a write in a segment that is not full, while its machine runs.
func (l *lag) begin(since, now time.Time, settled bool, quiet time.Duration) {
	l.moved, l.floor = time.Time{}, time.Time{}
	switch {
	case since.IsZero():
		l.floor = now.Add(-quiet)
	case settled && since.After(l.looked): // and not after a pause of this run
		l.looked, l.writes = since, nil
	}
}

// saw notes where the WAL ended at a moment between asked and now. waiting is when the
// oldest whole file was written that waits to be archived, zero where none does, and
// quiet as for begin, unless PostgreSQL is late.
func (l *lag) saw(at lsn, asked, now, waiting time.Time, late bool, quiet time.Duration) {
	pending := !waiting.IsZero()
	from := l.looked
	if l.moved.IsZero() || asked.Sub(from) > silence {
		l.moved = now // it may have stood still meanwhile, and not have begun another segment in time
	}
	if from.IsZero() {
		from = l.floor
		if before := waiting.Add(-quiet); pending && before.Before(from) {
			from = before
		}
	}
	l.looked = asked
	switch {
	case at != l.at:
		l.at, l.moved = at, now
		if at > l.archived && (len(l.writes) == 0 || l.writes[len(l.writes)-1].to.segment() != at.segment()) {
			l.writes = append(l.writes, write{at, from})
		}
	case !pending && !late && asked.Sub(l.moved) > quiet:
		// PostgreSQL would have begun another segment for anything that matters: what is
		// left are notes for standbys.
		l.writes = nil
	}
}

// stored notes that all before a position is archived.
func (l *lag) stored(to lsn) {
	if to <= l.archived {
		return
	}
	l.archived = to
	l.writes = slices.DeleteFunc(l.writes, func(w write) bool { return w.to <= to })
}

// since is a moment before which everything that was written is archived; zero: none is
// known.
func (l *lag) since() time.Time {
	if len(l.writes) == 0 {
		return l.looked
	}
	return l.writes[0].from
}
