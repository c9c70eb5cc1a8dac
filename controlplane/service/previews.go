package service

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
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

// QueryPreviewToken is the query parameter in which a link carries its token.
const QueryPreviewToken = "berth_token"

// PreviewToken makes a token for one port of a sandbox, or for every port (0).
func (s *Sandboxes) PreviewToken(ctx context.Context, c Caller, id string, port int, ttlSeconds int64) (PreviewAccess, error) {
	switch {
	case ttlSeconds < 0 || ttlSeconds > MaxPreviewSeconds:
		return PreviewAccess{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxPreviewSeconds)
	case port < 0 || port > 65535:
		return PreviewAccess{}, apierror.Invalid("invalid port", "port must be from 1 to 65535")
	case ttlSeconds == 0:
		ttlSeconds = DefaultPreviewSeconds
	}
	row, err := s.find(ctx, c, id)
	if err != nil {
		return PreviewAccess{}, err
	}
	out := PreviewAccess{Expires: s.cfg.Clock().Add(time.Duration(ttlSeconds) * time.Second).Truncate(time.Second)}
	if out.Token, err = s.cfg.PreviewTokens.Issue(row.ID, port, out.Expires); err != nil {
		return PreviewAccess{}, apierror.As(err)
	}
	if pattern := s.previewURL(row.ID); pattern != "" {
		if port > 0 {
			pattern = strings.Replace(pattern, "{port}", strconv.Itoa(port), 1)
		}
		out.URL = pattern + "/?" + QueryPreviewToken + "=" + out.Token
	}
	return out, nil
}

// RouseForPreview makes sure that a sandbox runs, whoever's it is: a preview's
// caller is known by its host name and token, which the edge has checked.
func (s *Sandboxes) RouseForPreview(ctx context.Context, id string) error {
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return storeError(err)
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok {
		return apierror.NotFound()
	}
	return s.rouse(ctx, row)
}
