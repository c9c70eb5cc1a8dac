package controlplane

import (
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// previewURL returns the pattern of preview URLs, or "" without previews.
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

func (s *Server) previews(ports *sandbox.Ports) *edge.Previews {
	return &edge.Previews{Suffix: s.cfg.PreviewSuffix, Awake: ports.WakeForPreview, Tokens: s.previewTokens()}
}
