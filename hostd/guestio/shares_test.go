package guestio

import "testing"

// The end of an answer takes nothing, so it is never refused: what came before it is whole.
func TestNothingMoreIsNeverRefused(t *testing.T) {
	s := newShares(4)
	for _, c := range []struct {
		workspace string
		n         int64
		want      bool
	}{{"one", 2, true}, {"two", 1, true}, {"one", 1, false}, {"one", 0, true}} {
		if got := s.take(c.workspace, c.n); got != c.want {
			t.Errorf("%d more for %s: %t", c.n, c.workspace, got)
		}
	}
}
