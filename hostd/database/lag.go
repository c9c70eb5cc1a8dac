package database

import (
	"slices"
	"time"
)

// lag knows how old the oldest write is that may not be archived.
//
// It sees positions now and then. A write is as old as the look before the one that
// saw it: it may have come right after that. Of each segment only the first write
// counts, for segments are archived whole.
type lag struct {
	at       lsn       // where the WAL ended at the last look
	moved    time.Time // the last look that saw it elsewhere than the one before
	looked   time.Time
	archived lsn // all before it is archived
	writes   []write
}

type write struct {
	to   lsn
	from time.Time // nothing of it was written before
}

// saw notes where the WAL ends. waiting is when the oldest whole file was written that
// waits to be archived, zero where none does, and quiet for how long PostgreSQL may
// leave a write in a segment that is not full, unless it is late.
func (l *lag) saw(at lsn, now, waiting time.Time, late bool, quiet time.Duration) {
	pending := !waiting.IsZero()
	from := l.looked
	if now.Sub(from) > silence {
		l.moved = now // it may have stood still meanwhile, and not have begun another segment in time
	}
	if from.IsZero() {
		from = now
		switch { // it may have been written before anybody looked
		case pending && waiting.Before(now):
			from = waiting.Add(-quiet)
		case at > l.archived:
			from = now.Add(-quiet)
		}
	}
	l.looked = now
	switch {
	case at != l.at:
		l.at, l.moved = at, now
		if at > l.archived && (len(l.writes) == 0 || l.writes[len(l.writes)-1].to.segment() != at.segment()) {
			l.writes = append(l.writes, write{at, from})
		}
	case !pending && !late && now.Sub(l.moved) > quiet:
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

// since is the moment before which everything that was written is archived.
func (l *lag) since(now time.Time) time.Time {
	if len(l.writes) == 0 {
		return now
	}
	return l.writes[0].from
}
