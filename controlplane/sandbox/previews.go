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

// pattern is a sandbox's preview URLs with "{port}" for the port.
func (p *Ports) pattern(id string) string { return strings.Replace(p.previewURL, "{id}", id, 1) }

// PreviewToken makes a token for one port of a sandbox, or for every port.
func (p *Ports) PreviewToken(ctx context.Context, c core.Caller, id string, in api.CreatePreviewToken) (api.PreviewAccess, error) {
	switch {
	case in.Port != nil && *in.Port == 0: // it must not become a token for every port
		return api.PreviewAccess{}, errPreviewPort
	case in.TTLSeconds != nil && (*in.TTLSeconds < 1 || *in.TTLSeconds > MaxPreviewSeconds):
		return api.PreviewAccess{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxPreviewSeconds)
	case in.Port != nil && (*in.Port < 1 || *in.Port > 65535):
		return api.PreviewAccess{}, errPreviewPort
	}
	row, err := p.find(ctx, c, id)
	if err != nil {
		return api.PreviewAccess{}, err
	}
	ttl, port := int64(DefaultPreviewSeconds), core.OrZero(in.Port)
	if in.TTLSeconds != nil {
		ttl = *in.TTLSeconds
	}
	expires := p.core.Clock().Add(time.Duration(ttl) * time.Second).Truncate(time.Second)
	token, err := p.tokens.Issue(row.ID, port, expires)
	if err != nil {
		return api.PreviewAccess{}, apierror.As(err)
	}
	out := api.PreviewAccess{Token: token, ExpiresAt: api.Time{Time: expires}}
	if pattern := p.pattern(row.ID); pattern != "" {
		if port > 0 {
			pattern = strings.Replace(pattern, "{port}", strconv.Itoa(port), 1)
		}
		out.URL = pattern + "/?" + api.QueryPreviewToken + "=" + token
	}
	return out, nil
}

var errPreviewPort = apierror.Invalid("invalid port", "port must be from 1 to 65535")

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
