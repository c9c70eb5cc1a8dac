package placement

import (
	"cmp"
	"slices"
)

// Load is what is placed on a host that takes part in a rebalancing.
type Load struct {
	ID     string
	Size   int   // its memory in MB: a host with twice the memory gets twice as much
	DiskMB int64 // reserved by all that is placed there, running or not
	Boxes  int

	FreeMB     int
	FreeSlots  int
	OverheadMB int
	DiskFreeMB int64

	Pieces []Piece // what may be moved away
}

// Piece is a sandbox that may be moved.
type Piece struct {
	ID       string
	MemoryMB int
	DiskMB   int64 // that it reserves, its saved memory included
}

// Shift is a piece that goes to another host.
type Shift struct {
	ID, From, To string
	DiskMB       int64
}

// MaxShifts is the most that one rebalancing moves.
const MaxShifts = 1000

// Balance chooses what to move so that the hosts' shares of the disk that is reserved
// become alike. It moves what is on the fuller hosts to the emptier ones, the largest
// first, until no two that could give and take differ by percent of an even share or more,
// or most pieces are moved. It also returns the loads after that, ordered by id.
//
// A move leaves the host that gives no emptier than the one that takes. So no move, and no
// first part of the moves, makes the fullest host fuller or the emptiest emptier, and
// moving on comes to an end. No piece is moved twice at once: after all of it is done, a
// little more may be left to do.
func Balance(loads []Load, percent, most int) (shifts []Shift, after []Load) {
	s := balancing{percent: percent, moved: map[string]bool{}}
	for _, l := range loads {
		l.Pieces = slices.Clone(l.Pieces)
		slices.SortFunc(l.Pieces, func(a, b Piece) int {
			return cmp.Or(cmp.Compare(b.DiskMB, a.DiskMB), cmp.Compare(a.ID, b.ID))
		})
		s.loads = append(s.loads, &l)
	}
	for len(shifts) < most {
		shift, ok := s.next()
		if !ok {
			break
		}
		shifts = append(shifts, shift)
	}
	slices.SortFunc(s.loads, func(a, b *Load) int { return cmp.Compare(a.ID, b.ID) })
	for _, l := range s.loads {
		after = append(after, *l)
	}
	return shifts, after
}

// balancing is the state of Balance.
type balancing struct {
	loads   []*Load // the fullest first
	percent int
	moved   map[string]bool
}

// next makes one move.
func (s *balancing) next() (Shift, bool) {
	slices.SortFunc(s.loads, func(a, b *Load) int {
		return cmp.Or(compare(b, a), cmp.Compare(b.Boxes, a.Boxes), cmp.Compare(a.ID, b.ID))
	})
	even := evenShare(s.loads)
	for i, from := range s.loads {
		for j := len(s.loads) - 1; j > i; j-- {
			to := s.loads[j]
			if 100*(from.share()-to.share()) < float64(s.percent)*even || !from.above(to, 0) {
				break // those that are left are fuller yet
			}
			for _, p := range from.Pieces {
				if p.DiskMB > 0 && !s.moved[p.ID] && from.above(to, p.DiskMB) && to.takes(p) {
					return s.move(p, from, to), true
				}
			}
		}
	}
	return Shift{}, false
}

func (s *balancing) move(p Piece, from, to *Load) Shift {
	s.moved[p.ID] = true
	from.Pieces = slices.DeleteFunc(from.Pieces, func(q Piece) bool { return q.ID == p.ID })
	from.DiskMB -= p.DiskMB
	from.Boxes--
	to.DiskMB += p.DiskMB
	to.Boxes++
	to.DiskFreeMB -= p.DiskMB
	return Shift{ID: p.ID, From: from.ID, To: to.ID, DiskMB: p.DiskMB}
}

// share is the disk that is reserved for each MB of the host's memory.
func (l *Load) share() float64 { return float64(l.DiskMB) / float64(max(l.Size, 1)) }

// compare orders two hosts by their shares, exactly: disks and memories are below 2^31 MB.
func compare(a, b *Load) int {
	return cmp.Compare(a.DiskMB*int64(max(b.Size, 1)), b.DiskMB*int64(max(a.Size, 1)))
}

// above reports whether l is fuller than to, and no emptier once it has given it diskMB.
func (l *Load) above(to *Load, diskMB int64) bool {
	a, b := *l, *to
	a.DiskMB -= diskMB
	b.DiskMB += diskMB
	return compare(l, to) > 0 && compare(&a, &b) >= 0
}

// takes reports whether a host has room for a piece. Asleep it uses no memory and no slot
// there for long, but it arrives with both, and may wake.
func (l *Load) takes(p Piece) bool {
	return l.FreeSlots > 0 && l.FreeMB >= p.MemoryMB+l.OverheadMB && l.DiskFreeMB >= p.DiskMB
}

func evenShare(loads []*Load) float64 {
	var disk int64
	size := 0
	for _, l := range loads {
		disk, size = disk+l.DiskMB, size+max(l.Size, 1)
	}
	return float64(disk) / float64(max(size, 1))
}

// Shares returns how full hosts are, in percent of an even share.
func Shares(loads []Load) map[string]int {
	all := make([]*Load, len(loads))
	for i := range loads {
		all[i] = &loads[i]
	}
	even, out := evenShare(all), map[string]int{}
	for _, l := range all {
		out[l.ID] = 100
		if even > 0 {
			out[l.ID] = int(100*l.share()/even + 0.5)
		}
	}
	return out
}
