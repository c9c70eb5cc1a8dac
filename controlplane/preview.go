package controlplane

import (
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/sandbox"
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
func (s *Server) withPreviews(next http.Handler, ports *sandbox.Ports) http.Handler {
	if s.cfg.PreviewSuffix == "" {
		return next
	}
	cfg := edge.Config{
		Suffix: s.cfg.PreviewSuffix,
		Find: func(id string) (*record.Sandbox, string, bool) {
			view := s.store.View()
			row, ok := raftstore.Get(view, record.Sandboxes, id)
			if !ok {
				return nil, "", false
			}
			agent, ok := raftstore.Get(view, record.Hosts, row.HostID)
			if !ok {
				return row, "", true
			}
			return row, agent.Address, true
		},
		Host: s.clients.At, Leading: s.store.IsLeader, Awake: ports.WakeForPreview, Tokens: s.previewTokens(), Log: s.log,
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
