package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/peer"
)

// replicaStatus is the status that replicas tell each other. During an upgrade the
// replicas have two versions, so fields are added but never renamed.
type replicaStatus struct {
	NodeID       string        `json:"NodeID"`
	LeaderID     string        `json:"LeaderID"`
	LastContact  time.Duration `json:"LastContact"` // in nanoseconds; -1 if never
	AppliedIndex uint64        `json:"AppliedIndex"`
}

func newReplicaStatus(st api.RaftStatus) replicaStatus {
	out := replicaStatus{NodeID: st.NodeID, LeaderID: st.LeaderID, LastContact: -1, AppliedIndex: st.AppliedIndex}
	if st.LastContactMS >= 0 {
		out.LastContact = time.Duration(st.LastContactMS) * time.Millisecond
	}
	return out
}

func (st replicaStatus) status() api.RaftStatus {
	out := api.RaftStatus{NodeID: st.NodeID, LeaderID: st.LeaderID, LastContactMS: -1, AppliedIndex: st.AppliedIndex}
	if st.LastContact >= 0 {
		out.LastContactMS = st.LastContact.Milliseconds()
	}
	return out
}

// statusHandler returns this replica's status to another replica.
func statusHandler(replicas *cluster.Cluster) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(newReplicaStatus(replicas.LocalStatus())) // the caller may be gone
	})
}

// maxStatus limits the size of another replica's status, in bytes.
const maxStatus = 1 << 20

// errRemoved is a replica's answer to one that was removed.
var errRemoved = errors.New("this replica was removed from the cluster")

// askPeer asks another replica for its status.
func (s *Server) askPeer(ctx context.Context, address string) (api.RaftStatus, error) {
	var out api.RaftStatus
	var st replicaStatus
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+peer.PathStatus, http.NoBody)
	if err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	resp, err := s.peers.RoundTrip(req)
	if err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return out, fmt.Errorf("ask replica at %s: %w", address, errRemoved)
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("ask replica at %s: status %d", address, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(&st); err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	return st.status(), nil
}
