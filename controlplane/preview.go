package controlplane

import (
	"fmt"
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

func (c *Config) checkPreviews() error {
	switch {
	case strings.Trim(c.PreviewSuffix, ".") != c.PreviewSuffix:
		return fmt.Errorf("BERTH_PREVIEW_SUFFIX is %q, want a host name without a dot at either end", c.PreviewSuffix)
	case c.PreviewURL != "" && (!strings.Contains(c.PreviewURL, "{port}") || !strings.Contains(c.PreviewURL, "{id}")):
		return fmt.Errorf("BERTH_PREVIEW_URL is %q, want a pattern with {port} and {id}", c.PreviewURL)
	}
	return nil
}

func (s *Server) previewTokens() authn.PreviewTokens {
	return authn.PreviewTokens{Sealer: s.sealer, Clock: time.Now}
}

func (s *Server) previews(ports *sandbox.Ports) *edge.Previews {
	return &edge.Previews{Suffix: s.cfg.PreviewSuffix, Awake: ports.WakeForPreview, Tokens: s.previewTokens()}
}
