package sandbox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func sessionsOf(n, boxes int) map[string]hosts.Session {
	out := map[string]hosts.Session{}
	for i := range n {
		out[fmt.Sprintf("h%04d", i)] = hosts.Session{BoxesVersion: 1, Heartbeat: hostapi.Heartbeat{Boxes: make([]hostapi.BoxState, boxes)}}
	}
	return out
}

// pass looks at the hosts that are due, and finds what each has.
func pass(l *looks, sessions map[string]hosts.Session, found map[string]look) []string {
	ids := l.next(sessions)
	for _, id := range ids {
		f := found[id]
		f.version = sessions[id].BoxesVersion
		l.found(id, f)
	}
	return ids
}

func TestEveryHostOfALargeFleetIsLookedAtInTurn(t *testing.T) {
	var l looks
	sessions := sessionsOf(1000, 100)
	if got := len(pass(&l, sessions, nil)); got != 1000 {
		t.Fatalf("%d hosts at the first pass, want all", got)
	}
	seen := map[string]bool{}
	passes := 0
	for ; len(seen) < 1000 && passes < 200; passes++ {
		ids := pass(&l, sessions, nil)
		if len(ids) > 20 {
			t.Fatalf("%d hosts in a pass", len(ids))
		}
		for _, id := range ids {
			if seen[id] && len(seen) < 1000 {
				t.Fatalf("%s was looked at again before others were", id)
			}
			seen[id] = true
		}
	}
	if len(seen) < 1000 || passes > 60 {
		t.Fatalf("%d hosts in %d passes", len(seen), passes)
	}
}

func TestASmallFleetIsLookedAtWholeEachTime(t *testing.T) {
	var l looks
	sessions := sessionsOf(10, 100)
	for range 3 {
		if got := len(pass(&l, sessions, nil)); got != 10 {
			t.Fatalf("%d hosts, want 10", got)
		}
	}
}

func TestWhatHasChangedOrDoesNotAgreeIsLookedAtFirst(t *testing.T) {
	var l looks
	sessions := sessionsOf(1000, 100)
	stray := orphan{hostID: "h0007", id: "x"}
	found := map[string]look{"h0007": {orphans: []orphan{stray}}, "h0008": {unsettled: true}}
	pass(&l, sessions, found)
	changed := sessions["h0900"]
	changed.BoxesVersion = 2
	sessions["h0900"] = changed
	ids := pass(&l, sessions, found)
	for _, want := range []string{"h0007", "h0008", "h0900"} {
		if !slices.Contains(ids, want) {
			t.Errorf("%s is not among %v", want, ids)
		}
	}
	if !l.orphans()[stray] {
		t.Error("the box without a row is forgotten")
	}
	delete(sessions, "h0007")
	pass(&l, sessions, nil)
	if len(l.orphans()) > 0 {
		t.Error("a box of a host that is gone is remembered")
	}
}
