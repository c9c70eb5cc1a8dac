package database

import (
	"fmt"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// lsn is a position in a database's WAL, in bytes from its beginning.
type lsn uint64

// parseLSN is pgapi.ParseLSN. What is no position is 0.
func parseLSN(s string) lsn {
	l, _ := pgapi.ParseLSN(s)
	return lsn(l)
}

func (l lsn) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// segment is the number of the segment that ends at l, or has the byte before it.
func (l lsn) segment() uint64 { return uint64(l-1) / pgapi.SegmentBytes }

// endOf is where a WAL file ends; 0 for one that is no segment.
func endOf(name string) lsn {
	w, err := pgapi.ParseWALName(name)
	if err != nil || w.Kind != pgapi.WALSegment {
		return 0
	}
	return lsn(w.Segment+1) * pgapi.SegmentBytes
}
