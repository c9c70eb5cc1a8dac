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

// Validity of preview tokens, in seconds.
const (
	DefaultPreviewSeconds = 3600
	MaxPreviewSeconds     = 7 * 24 * 3600
)

// PreviewTokens creates the tokens for private previews.
type PreviewTokens interface {
	Issue(sandboxID string, port int, expires time.Time) (string, error)
}

// pattern returns the pattern of a sandbox's preview URLs, with "{port}" in it.
func (p *Ports) pattern(id string) string { return strings.Replace(p.previewURL, "{id}", id, 1) }

// PreviewToken creates a token for one port of a sandbox, or for every port.
func (p *Ports) PreviewToken(ctx context.Context, c core.Caller, id string, in api.CreatePreviewToken) (api.PreviewAccess, error) {
	switch {

	case in.TTLSeconds != nil && (*in.TTLSeconds < 1 || *in.TTLSeconds > MaxPreviewSeconds):
		return api.PreviewAccess{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxPreviewSeconds)
	case in.Port != nil && (*in.Port < 1 || *in.Port > 65535): // a port 0 would become a token for every port
		return api.PreviewAccess{}, apierror.Invalid("invalid port", "port must be from 1 to 65535")
	}
	row, err := p.own(ctx, c, id)
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

// WakeForPreview ensures that a sandbox of any workspace runs. The edge has checked
// the preview's host name and token.
func (p *Ports) WakeForPreview(ctx context.Context, id string) error {
	view, err := p.core.Current(ctx)
	if err != nil {
		return err
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok {
		return apierror.NotFound()
	}
	_, err = p.wake(ctx, row)
	return err
}
