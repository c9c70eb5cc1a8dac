package controlplane

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// previewURL is the pattern of preview URLs.
func (c *Config) previewURL() string {
	switch {
	case c.PreviewURL != "":
		return strings.TrimSuffix(c.PreviewURL, "/")
	case c.PreviewSuffix != "":
		return "https://{port}-{id}." + c.PreviewSuffix
	}
	return ""
}

func (s *Server) previewTokens() authn.PreviewTokens {
	return authn.PreviewTokens{Sealer: s.sealer, Clock: time.Now}
}

// withPreviews answers for preview host names, and leaves all others to next.
func (s *Server) withPreviews(next http.Handler, sandboxes *service.Sandboxes) http.Handler {
	if s.cfg.PreviewSuffix == "" {
		return next
	}
	callers := &hostCallers{dial: s.dialHost, clients: map[string]*hostapi.Client{}}
	cfg := edge.Config{
		Suffix: s.cfg.PreviewSuffix,
		Find: func(id string) (*record.Sandbox, string, bool) {
			view := s.store.View()
			sandbox, ok := raftstore.Get(view, record.Sandboxes, id)
			if !ok {
				return nil, "", false
			}
			agent, ok := raftstore.Get(view, record.Agents, sandbox.AgentID)
			if !ok {
				return sandbox, "", true
			}
			return sandbox, agent.Address, true
		},
		Host: callers.client, Leading: s.store.IsLeader, Awake: sandboxes.RouseForPreview, Tokens: s.previewTokens(), Log: s.log,
	}
	var here *edge.Edge
	cfg.Forward = s.forwarder(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { here.ServeHTTP(w, r) }))
	here = edge.New(cfg)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if edge.Belongs(r.Host, s.cfg.PreviewSuffix) {
			here.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostCallers are the clients of this replica's edge, which every replica has
// and not the leader alone.
type hostCallers struct {
	dial func(agentID, address string) *hostapi.Client

	mu      sync.Mutex
	clients map[string]*hostapi.Client // by agent and address
}

// maxCallers bounds the clients of hosts that have moved or gone.
const maxCallers = 1024

func (h *hostCallers) client(agentID, address string) *hostapi.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := agentID + " " + address
	c, ok := h.clients[key]
	if !ok {
		if len(h.clients) >= maxCallers {
			clear(h.clients)
		}
		c = h.dial(agentID, address)
		h.clients[key] = c
	}
	return c
}
