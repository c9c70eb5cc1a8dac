package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// load is a host with plenty of room, and pieces of these sizes.
func load(id string, size int, disks ...int64) Load {
	l := Load{ID: id, Size: size, FreeMB: 1 << 20, FreeSlots: 100, DiskFreeMB: 1 << 30}
	for i, d := range disks {
		l.Pieces = append(l.Pieces, Piece{ID: fmt.Sprintf("%s-%d", id, i), MemoryMB: 512, DiskMB: d})
		l.DiskMB += d
		l.Boxes++
	}
	return l
}

func TestBalance(t *testing.T) {
	ten := slices.Repeat([]int64{10}, 10)
	full := func(l Load) Load { l.FreeMB = 100; return l }
	fixed := func(l Load) Load { l.Pieces = nil; return l }
	for name, c := range map[string]struct {
		loads []Load
		most  int
		want  map[string]int64 // the disk that is reserved after it
		moves int
	}{
		"nothing":                             {nil, 100, map[string]int64{}, 0},
		"one host":                            {[]Load{load("a", 1, ten...)}, 100, map[string]int64{"a": 100}, 0},
		"hosts without anything":              {[]Load{load("a", 1), load("b", 1)}, 100, map[string]int64{"a": 0, "b": 0}, 0},
		"a new host gets its share":           {[]Load{load("a", 1, ten...), load("b", 1)}, 100, map[string]int64{"a": 50, "b": 50}, 5},
		"each gives to it":                    {[]Load{load("a", 1, ten[:6]...), load("b", 1, ten[:6]...), load("c", 1)}, 100, map[string]int64{"a": 40, "b": 40, "c": 40}, 4},
		"a larger host gets more":             {[]Load{load("a", 1, ten...), load("b", 4)}, 100, map[string]int64{"a": 20, "b": 80}, 8},
		"the difference is small":             {[]Load{load("a", 1, ten...), load("b", 1, ten[:9]...)}, 100, map[string]int64{"a": 100, "b": 90}, 0},
		"what is too large stays":             {[]Load{load("a", 1, 90), load("b", 1)}, 100, map[string]int64{"a": 90, "b": 0}, 0},
		"the largest goes first":              {[]Load{load("a", 1, 10, 40, 50), load("b", 1)}, 1, map[string]int64{"a": 50, "b": 50}, 1},
		"no more than so many":                {[]Load{load("a", 1, ten...), load("b", 1)}, 2, map[string]int64{"a": 80, "b": 20}, 2},
		"one without room takes nothing":      {[]Load{load("a", 1, ten...), full(load("b", 1))}, 100, map[string]int64{"a": 100, "b": 0}, 0},
		"what runs stays":                     {[]Load{fixed(load("a", 1, ten...)), load("b", 1)}, 100, map[string]int64{"a": 100, "b": 0}, 0},
		"the next gives if the fullest can't": {[]Load{fixed(load("a", 1, 100)), load("b", 1, ten[:8]...), load("c", 1)}, 100, map[string]int64{"a": 100, "b": 40, "c": 40}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			moves, after := Balance(c.loads, 20, c.most)
			got := map[string]int64{}
			for _, l := range after {
				got[l.ID] = l.DiskMB
			}
			if len(moves) != c.moves || cmp.Diff(c.want, got) != "" {
				t.Errorf("%d moves %v, and then %v; want %d and %v", len(moves), moves, got, c.moves, c.want)
			}
		})
	}
}

func TestShares(t *testing.T) {
	got := Shares([]Load{load("a", 1, 30), load("b", 2), load("c", 1, 10)})
	if diff := cmp.Diff(map[string]int{"a": 300, "b": 0, "c": 100}, got); diff != "" {
		t.Error(diff)
	}
	if got := Shares([]Load{load("a", 1)}); got["a"] != 100 {
		t.Errorf("an empty host has %d", got["a"])
	}
}

func genLoads(t *rapid.T, roomy bool) []Load {
	var out []Load
	for i := range rapid.IntRange(0, 7).Draw(t, "hosts") {
		l := load(fmt.Sprintf("h%d", i), rapid.IntRange(1, 4).Draw(t, "size")<<10,
			rapid.SliceOfN(rapid.Int64Range(0, 20_000), 0, 12).Draw(t, "pieces")...)
		l.DiskMB += rapid.Int64Range(0, 40_000).Draw(t, "fixed")
		if !roomy {
			l.FreeMB = rapid.SampledFrom([]int{0, 512, 1 << 20}).Draw(t, "free")
			l.FreeSlots = rapid.IntRange(0, 2).Draw(t, "slots")
			l.DiskFreeMB = rapid.Int64Range(0, 60_000).Draw(t, "disk")
		}
		out = append(out, l)
	}
	return out
}

// ends are the shares of the emptiest and the fullest host.
func ends(loads []Load) (low, high *Load) {
	for i := range loads {
		if low == nil || compare(&loads[i], low) < 0 {
			low = &loads[i]
		}
		if high == nil || compare(&loads[i], high) > 0 {
			high = &loads[i]
		}
	}
	return low, high
}

// apply carries out moves as hosts do: what has arrived may be moved on.
func apply(t *rapid.T, loads []Load, moves []Shift) []Load {
	out := slices.Clone(loads)
	at := func(id string) *Load {
		return &out[slices.IndexFunc(out, func(l Load) bool { return l.ID == id })]
	}
	for i := range out {
		out[i].Pieces = slices.Clone(out[i].Pieces)
	}
	for _, m := range moves {
		from, to := at(m.From), at(m.To)
		i := slices.IndexFunc(from.Pieces, func(p Piece) bool { return p.ID == m.ID })
		if i < 0 || from.Pieces[i].DiskMB != m.DiskMB {
			t.Fatalf("%+v is not on %s", m, m.From)
		}
		p := from.Pieces[i]
		if !to.takes(p) {
			t.Fatalf("%+v: %+v has no room for it", m, to)
		}
		from.Pieces = slices.Delete(from.Pieces, i, i+1)
		to.Pieces = append(to.Pieces, p)
		from.DiskMB, to.DiskMB = from.DiskMB-p.DiskMB, to.DiskMB+p.DiskMB
		from.Boxes, to.Boxes = from.Boxes-1, to.Boxes+1
		from.DiskFreeMB, to.DiskFreeMB = from.DiskFreeMB+p.DiskMB, to.DiskFreeMB-p.DiskMB
	}
	return out
}

func TestBalanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loads := genLoads(t, rapid.Bool().Draw(t, "roomy"))
		percent, most := rapid.IntRange(5, 100).Draw(t, "percent"), rapid.IntRange(0, 60).Draw(t, "most")
		moves, after := Balance(loads, percent, most)
		if len(moves) > most {
			t.Fatalf("%d moves, more than %d", len(moves), most)
		}
		seen := map[string]bool{}
		for i, m := range moves {
			if seen[m.ID] || m.From == m.To || m.DiskMB <= 0 {
				t.Fatalf("%+v, again or in vain", m)
			}
			seen[m.ID] = true
			// The spread never grows, whatever part of the moves is made.
			low, high := ends(apply(t, loads, moves[:i]))
			nowLow, nowHigh := ends(apply(t, loads, moves[:i+1]))
			if compare(nowLow, low) < 0 || compare(nowHigh, high) > 0 {
				t.Fatalf("%+v: from %+v … %+v to %+v … %+v", m, low, high, nowLow, nowHigh)
			}
		}
		moved := apply(t, loads, moves)
		for _, l := range after {
			i := slices.IndexFunc(moved, func(m Load) bool { return m.ID == l.ID })
			if moved[i].DiskMB != l.DiskMB || moved[i].Boxes != l.Boxes {
				t.Fatalf("foretold %+v, became %+v", l, moved[i])
			}
		}
		// The order in which hosts are listed makes no difference.
		again, _ := Balance(rapid.Permutation(loads).Draw(t, "order"), percent, most)
		if diff := cmp.Diff(moves, again); diff != "" {
			t.Fatal(diff)
		}
		// Moving on comes to an end soon, after which there is nothing to do.
		for round := 0; ; round++ {
			moves, _ := Balance(moved, percent, MaxShifts)
			if len(moves) == 0 {
				break
			}
			if round > 20 {
				t.Fatal("it goes on and on")
			}
			moved = apply(t, moved, moves)
		}
	})
}
