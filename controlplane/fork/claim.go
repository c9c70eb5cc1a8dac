package fork

import (
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Claim claims the captures of running forks and of those whose upload is repeated,
// and the stored captures of fork-trees of which a sandbox still exists.
var Claim = snapshot.Claim{
	Capture: running,
	Stored: func(r raftstore.Reader) func(id string) bool {
		return func(id string) bool {
			return running(r, id) || len(raftstore.Find(r, record.Sandboxes, "fork_tree", id)) > 0
		}
	},
}

func running(r raftstore.Reader, group string) bool {
	if _, live := flow.Live(r, Subject(group)); live {
		return true
	}
	_, live := flow.Live(r, storeSubject(group))
	return live
}
