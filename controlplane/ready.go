package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/timescale"
)

// maxBehind is how many committed entries a replica that is ready may have yet to apply:
// less than a second's work. One that starts has all since its last snapshot.
const maxBehind = 2048

// A replica that starts asks every recordsPoll whether it has the others' records, and
// goes on with those of its last snapshot after recordsWait without a leader.
const recordsPoll = 5 * time.Millisecond

var recordsWait = timescale.Limit(5 * time.Second)

// awaitRecords returns, and closes s.begun, once this replica has what was committed
// before it started.
func (s *Server) awaitRecords(ctx context.Context) {
	defer close(s.begun)
	ctx, cancel := context.WithTimeout(ctx, recordsWait)
	defer cancel()
	tick := time.NewTicker(recordsPoll)
	defer tick.Stop()
	for !hasRecords(s.store.Status()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// hasRecords reports whether a replica has what is committed, as far as its leader has told
// since it started: until then the commit index is 0.
func hasRecords(st raftstore.Status) bool {
	return st.LeaderID != "" && st.CommitIndex > 0 && st.AppliedIndex >= st.CommitIndex
}

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
