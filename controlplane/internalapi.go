package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/peer"
)

// statusHandler tells another replica how this one is.
func statusHandler(replicas *cluster.Cluster) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(peerStatusOf(replicas.LocalStatus())) // the caller may have given up
	})
}

// peerStatus is what a replica tells another of itself. During an upgrade they are of
// two versions: fields may be added, and none may be renamed.
type peerStatus struct {
	NodeID       string
	LeaderID     string
	AppliedIndex uint64
	LastContact  time.Duration // since the leader was heard; 0 on the leader, negative: never
}

func peerStatusOf(s api.RaftStatus) peerStatus {
	return peerStatus{
		NodeID: s.NodeID, LeaderID: s.LeaderID, AppliedIndex: s.AppliedIndex, LastContact: time.Duration(s.LastContactMS) * time.Millisecond,
	}
}

// readStatus reads what a replica tells of itself.
func readStatus(r io.Reader) (api.RaftStatus, error) {
	var in peerStatus
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return api.RaftStatus{}, fmt.Errorf("decode status: %w", err)
	}
	out := api.RaftStatus{NodeID: in.NodeID, LeaderID: in.LeaderID, AppliedIndex: in.AppliedIndex, LastContactMS: -1}
	if in.LastContact >= 0 {
		out.LastContactMS = in.LastContact.Milliseconds()
	}
	return out, nil
}

// maxStatus bounds what is read of another replica's status.
const maxStatus = 1 << 20

// askPeer asks another replica for its status.
func (s *Server) askPeer(ctx context.Context, address string) (api.RaftStatus, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+peer.PathStatus, http.NoBody)
	if err != nil {
		return api.RaftStatus{}, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	resp, err := s.peers.RoundTrip(req)
	if err != nil {
		return api.RaftStatus{}, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return api.RaftStatus{}, fmt.Errorf("ask replica at %s: status %d", address, resp.StatusCode)
	}
	out, err := readStatus(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return api.RaftStatus{}, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	return out, nil
}
