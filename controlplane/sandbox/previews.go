package sandbox

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The times that a preview token may last, in seconds.
const (
	DefaultPreviewSeconds = 3600
	MaxPreviewSeconds     = 7 * 24 * 3600
)

// PreviewTokens makes the tokens that show a private sandbox's ports.
type PreviewTokens interface {
	Issue(sandboxID string, port int, expires time.Time) (string, error)
}

// PreviewAccess is a token for a sandbox's previews.
type PreviewAccess struct {
	Token   string
	Expires time.Time
	URL     string // with the token; "{port}" stands in it unless a port was given
}

// pattern is a sandbox's preview URLs with "{port}" for the port.
func (p *Ports) pattern(id string) string { return strings.Replace(p.previewURL, "{id}", id, 1) }

// PreviewToken makes a token for one port of a sandbox, or for every port (0).
func (p *Ports) PreviewToken(ctx context.Context, c core.Caller, id string, port int, ttlSeconds int64) (PreviewAccess, error) {
	switch {
	case ttlSeconds < 0 || ttlSeconds > MaxPreviewSeconds:
		return PreviewAccess{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxPreviewSeconds)
	case port < 0 || port > 65535:
		return PreviewAccess{}, apierror.Invalid("invalid port", "port must be from 1 to 65535")
	case ttlSeconds == 0:
		ttlSeconds = DefaultPreviewSeconds
	}
	row, err := p.find(ctx, c, id)
	if err != nil {
		return PreviewAccess{}, err
	}
	out := PreviewAccess{Expires: p.core.Clock().Add(time.Duration(ttlSeconds) * time.Second).Truncate(time.Second)}
	if out.Token, err = p.tokens.Issue(row.ID, port, out.Expires); err != nil {
		return PreviewAccess{}, apierror.As(err)
	}
	if pattern := p.pattern(row.ID); pattern != "" {
		if port > 0 {
			pattern = strings.Replace(pattern, "{port}", strconv.Itoa(port), 1)
		}
		out.URL = pattern + "/?" + api.QueryPreviewToken + "=" + out.Token
	}
	return out, nil
}

// WakeForPreview makes sure that a sandbox runs, whoever's it is: a preview's
// caller is known by its host name and token, which the edge has checked.
func (p *Ports) WakeForPreview(ctx context.Context, id string) error {
	view, err := p.core.Current(ctx)
	if err != nil {
		return err
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok {
		return apierror.NotFound()
	}
	return p.wake(ctx, row)
}
