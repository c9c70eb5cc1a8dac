package hostd

import (
	"testing"

	"github.com/berth-cloud/berth/hostd/ledger"
)

// A box that never ran must not take a volume with it that another one has: a
// third could then have it too.
func TestAVolumeIsOfTheBoxThatRuns(t *testing.T) {
	for _, state := range []ledger.State{ledger.Creating, ledger.Deleting} {
		for _, id := range []string{"a", "c"} {
			boxes := []ledger.Record{
				{ID: "b", State: ledger.Running, Volumes: []ledger.Volume{{ID: "v"}}},
				{ID: id, State: state, Volumes: []ledger.Volume{{ID: "v"}, {ID: "other"}}},
			}
			if got := attached(boxes); got["v"] != "b" || got["other"] != id {
				t.Errorf("beside a box that is %s: %v", state, got)
			}
		}
	}
}
