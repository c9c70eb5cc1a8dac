package controlplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-cloud/berth/raftstore"
)

// maxBehind is how many committed entries a replica that is ready may have yet to apply:
// less than a second's work. One that starts has all since its last snapshot.
const maxBehind = 2048

// ready returns what keeps this replica from serving, for /readyz. Everybody reads its
// text.
func (s *Server) ready() error {
	if s.stopping.Load() {
		return errors.New("stopping: this replica stops")
	}
	if s.store.Err() != nil {
		return errors.New("store: the control store has failed") // the log says why
	}
	if s.removed.Load() {
		return errors.New("member: this replica was removed from the cluster")
	}
	return readiness(s.me.id, s.store.Status())
}

// readiness is ready as far as Raft's status tells. A leader that has lost the majority
// steps down within its lease and then knows none.
func readiness(id string, st raftstore.Status) error {
	switch {
	case !slices.ContainsFunc(st.Peers, func(p raftstore.Peer) bool { return p.ID == id }):
		return errors.New("member: this replica is in no cluster")
	case st.LeaderID == "":
		return errors.New("leader: none is known")
	case st.State != "leader" && st.LastContact.IsZero():
		return errors.New("leader: it was not heard since this replica started")
	case st.CommitIndex > st.AppliedIndex+maxBehind:
		return fmt.Errorf("state: %d committed entries are not applied yet", st.CommitIndex-st.AppliedIndex)
	}
	return nil
}
