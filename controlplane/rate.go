package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// granted is the leader's answer to a replica that takes tokens.
type granted struct {
	Tokens int `json:"tokens"`
}

// maxTake limits how many tokens a replica takes at once.
const maxTake = 100

// limiter returns the limiter of the public API, and what other replicas take their
// tokens from; nil if the settings have a limiter of their own.
func (s *Server) limiter() (httpapi.Limiter, http.Handler) {
	if s.cfg.Limiter != nil {
		return s.cfg.Limiter, nil
	}
	own := authn.NewLimiter(time.Now, s.rateOf)
	return authn.NewShared(own, s.store.IsLeader, s.takeTokens, time.Now), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		n, err := strconv.Atoi(q.Get("n"))
		switch {
		case r.Method != http.MethodPost, err != nil, n < 1, n > maxTake, q.Get("workspace") == "":
			w.WriteHeader(http.StatusBadRequest)
		case !s.store.IsLeader():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(granted{own.Take(q.Get("workspace"), n)}) // the caller may be gone
		}
	})
}

// rateOf returns how many requests a workspace may make, or a person: as many as the
// person's current workspace. Who is a member of none may make as many as the specification
// says.
func (s *Server) rateOf(id string) limits.Rate {
	view := s.store.View()
	w, ok := raftstore.Get(view, record.Workspaces, id)
	if !ok {
		if u, person := raftstore.Get(view, record.Users, id); person {
			w, ok = raftstore.Get(view, record.Workspaces, u.CurrentWorkspaceID)
		}
	}
	if !ok {
		return limits.DefaultRate
	}
	return s.tiers.Rate(w)
}

// takeTokens takes tokens of a workspace from the leader.
func (s *Server) takeTokens(ctx context.Context, workspaceID string, n int) (int, error) {
	id, address := s.store.Leader()
	if address == "" || id == s.me.id {
		return 0, errors.New("take tokens: no other replica leads")
	}
	q := url.Values{"workspace": {workspaceID}, "n": {strconv.Itoa(n)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+peer.PathRate+"?"+q.Encode(), http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("take tokens: %w", err)
	}
	resp, err := s.peers.RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("take tokens: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("take tokens: status %d", resp.StatusCode)
	}
	var out granted
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(&out); err != nil {
		return 0, fmt.Errorf("take tokens: %w", err)
	}
	return min(max(out.Tokens, 0), n), nil
}
