package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/peer"
)

// statusHandler tells another replica how this one is.
func statusHandler(replicas *cluster.Cluster) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(replicas.LocalStatus()) // the caller may have given up
	})
}

// maxStatus bounds what is read of another replica's status.
const maxStatus = 1 << 20

// askPeer asks another replica for its status.
func (s *Server) askPeer(ctx context.Context, address string) (api.RaftStatus, error) {
	var out api.RaftStatus
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+peer.PathStatus, http.NoBody)
	if err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	resp, err := s.peers.RoundTrip(req)
	if err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("ask replica at %s: status %d", address, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(&out); err != nil {
		return out, fmt.Errorf("ask replica at %s: %w", address, err)
	}
	return out, nil
}
