package flow

import (
	"strconv"
	"testing"
)

// A leader may see any number of workspaces and hosts.
func TestLimitsThatNobodyHoldsAreForgotten(t *testing.T) {
	e := &Engine{limits: map[limitKey]chan struct{}{}}
	key := limitKey{kind: "k", host: "held"}
	held := e.turnsIn(key)
	held <- struct{}{}
	for i := range 2 * manyLimits {
		e.turnsIn(limitKey{kind: "k", host: "h", workspace: strconv.Itoa(i)})
		if n := len(e.limits); n > manyLimits {
			t.Fatalf("%d limits are kept after %d others, want at most %d", n, i+1, manyLimits)
		}
	}
	if e.turnsIn(key) != held {
		t.Error("a limit that is held was forgotten")
	}
}
