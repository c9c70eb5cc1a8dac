package core

import (
	"testing"
	"time"
)

// A share of the audit log lasts an hour, and leaves room for what is done rarely.
func TestAnActorsShareOfTheLog(t *testing.T) {
	var s shares
	now := time.Unix(1e9, 0)
	take := func(who, kind string, n int) (got [3]int) {
		for range n {
			got[s.take(now, who, kind)]++
		}
		return got
	}
	for _, c := range []struct {
		who, kind string
		n         int
		want      [3]int // whole, that there is more, not at all
	}{
		{"eve", "rotate", 200, [3]int{toldOfAll, 1, 200 - toldOfAll - 1}},
		{"eve", "delete", 20, [3]int{toldOfKind, 0, 20 - toldOfKind}},
		{"eve", "create", 1, [3]int{1, 0, 0}},
		{"ann", "rotate", 1, [3]int{1, 0, 0}},
	} {
		if got := take(c.who, c.kind, c.n); got != c.want {
			t.Errorf("%s of %s: %v, want %v", c.kind, c.who, got, c.want)
		}
	}
	now = now.Add(time.Hour)
	if got := take("eve", "rotate", 1); got != [3]int{1, 0, 0} {
		t.Errorf("an hour later: %v", got)
	}
	now = now.Add(-2 * time.Hour) // the clock was set back
	if got := take("eve", "rotate", toldOfAll+1); got != [3]int{toldOfAll, 1, 0} {
		t.Errorf("an hour of another clock: %v", got)
	}
}
