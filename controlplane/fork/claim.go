package fork

import (
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Claim is on the captures of forks that are under way, and on what is stored of a
// fork-tree of which a sandbox is left.
var Claim = snapshot.Claim{
	Capture: underWay,
	Stored: func(r raftstore.Reader) func(id string) bool {
		return func(id string) bool {
			return underWay(r, id) || len(raftstore.Find(r, record.Sandboxes, "fork_tree", id)) > 0
		}
	},
}

func underWay(r raftstore.Reader, group string) bool {
	_, live := flow.Live(r, Subject(group))
	return live
}
