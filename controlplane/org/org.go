// Package org is who uses the service: users, the workspaces (organizations) that
// they are members of, and the API keys of those.
package org

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Orgs are the use cases of /v1/me. Every one needs a JWT.
type Orgs struct{ core *core.Core }

// New makes the use cases.
func New(c *core.Core) *Orgs { return &Orgs{core: c} }

// UserID is the id of the user whom an issuer knows by a subject.
func UserID(issuer, subject string) string { return "usr-" + derived("user", issuer, subject) }

// derived is the same text for the same parts, and says nothing of them.
func derived(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return core.LowerBase32(sum[:])[:24]
}

// SignIn finds the user of a JWT, and makes one with a workspace of its own at
// the first login. The ids follow from issuer and subject, so two first logins
// at once make one user.
func (s *Orgs) SignIn(ctx context.Context, issuer, subject, email string) (userID, workspaceID string, err error) {
	id := UserID(issuer, subject)
	if u, ok := raftstore.Get(s.core.Store.View(), record.Users, id); ok && (email == "" || u.Email == email) {
		return u.ID, u.CurrentWorkspaceID, nil
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, id)
		if ok {
			workspaceID = u.CurrentWorkspaceID
			if email != "" && u.Email != email {
				c := u.Clone()
				c.Email = email
				raftstore.Put(tx, record.Users, c)
			}
			return nil
		}
		workspaceID = "ws-" + derived("workspace", issuer, subject)
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: workspaceID}, Name: workspaceName(email)})
		raftstore.Put(tx, record.Users, &record.User{
			Meta: record.Meta{ID: id}, Issuer: issuer, Subject: subject, Email: email,
			WorkspaceIDs: []string{workspaceID}, CurrentWorkspaceID: workspaceID,
		})
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return id, workspaceID, nil
}

func workspaceName(email string) string {
	if name, _, ok := strings.Cut(email, "@"); ok && name != "" {
		return name
	}
	return "personal"
}

// Me returns the signed-in user.
func (s *Orgs) Me(ctx context.Context, c core.Caller) (api.Me, error) {
	if err := c.RequireJWT(); err != nil {
		return api.Me{}, err
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Me{}, err
	}
	return show(view, c)
}

// show is the signed-in user as they see themselves.
func show(r raftstore.Reader, c core.Caller) (api.Me, error) {
	u, ok := raftstore.Get(r, record.Users, c.UserID)
	if !ok {
		return api.Me{}, apierror.NotFound()
	}
	out := api.Me{ID: u.ID, Email: u.Email, Orgs: []api.Org{}}
	for _, id := range u.WorkspaceIDs {
		if w, ok := raftstore.Get(r, record.Workspaces, id); ok {
			org := api.Org{ID: w.ID, Name: w.Name, Suspended: w.Suspended, CreatedAt: api.Time{Time: w.CreatedAt}}
			if w.ID == u.CurrentWorkspaceID {
				out.CurrentOrg = &org
			}
			out.Orgs = append(out.Orgs, org)
		}
	}
	return out, nil
}

// SetCurrentOrg makes one of the user's workspaces the one that later JWT
// requests act in. A workspace that is not theirs is not found.
func (s *Orgs) SetCurrentOrg(ctx context.Context, c core.Caller, in api.SetCurrentOrg) (api.Me, error) {
	if err := c.RequireJWT(); err != nil {
		return api.Me{}, err
	}
	if in.OrgID == "" {
		return api.Me{}, &apierror.Error{Code: apierror.EInvalid, Message: "org_id is required"}
	}
	var out api.Me
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, c.UserID)
		if !ok || !slices.Contains(u.WorkspaceIDs, in.OrgID) {
			return apierror.NotFound()
		}
		if u.CurrentWorkspaceID != in.OrgID {
			n := u.Clone()
			n.CurrentWorkspaceID = in.OrgID
			raftstore.Put(tx, record.Users, n)
		}
		var err error
		out, err = show(tx, c)
		return err
	})
	return out, err
}

// CreateToken makes an API key of the current workspace; its Key is shown only
// here, and to whom repeats the request with its idempotency key.
func (s *Orgs) CreateToken(ctx context.Context, c core.Caller, in api.CreateToken, i core.Idempotency) (api.NewToken, error) {
	if err := c.RequireJWT(); err != nil {
		return api.NewToken{}, err
	}
	// A key that may do more than was asked for is worse than none.
	if len(in.Scopes) > 0 {
		return api.NewToken{}, apierror.Invalid("invalid scopes", "keys have no scopes yet: a key may do all that its organization may")
	}
	if !utf8.ValidString(in.Name) || utf8.RuneCountInString(in.Name) > maxTokenName || strings.ContainsFunc(in.Name, unicode.IsControl) {
		return api.NewToken{}, apierror.Invalid("invalid name", "a token's name has at most %d printable characters", maxTokenName)
	}
	if at := in.ExpiresAt; at != nil && at.UTC().Year() > 9999 { // no record can have it
		return api.NewToken{}, apierror.Invalid("invalid expires_at", "expires_at must be before the year 10000")
	}
	// Other members of the workspace do not get this one's secret.
	return core.Once(ctx, s.core, c, "POST /v1/me/tokens "+c.UserID, i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.NewToken, error) {
			return s.sameToken(view, c, key)
		},
		func(keyID string) (api.NewToken, error) { return s.createToken(ctx, c, in, i, keyID) })
}

func (s *Orgs) createToken(ctx context.Context, c core.Caller, in api.CreateToken, i core.Idempotency, keyID string) (api.NewToken, error) {
	// Only of a new one: a request that is repeated may come after its token's end.
	if at := in.ExpiresAt; at != nil && !at.After(s.core.Clock()) {
		return api.NewToken{}, apierror.Invalid("invalid expires_at", "expires_at must be in the future")
	}
	for attempt := 1; ; attempt++ {
		key, prefix := newAPIKey()
		row := &record.APIKey{
			Meta: record.Meta{ID: "key-" + core.RandomText(20)}, WorkspaceID: c.WorkspaceID, Name: in.Name,
			Prefix: prefix, SHA256: APIKeyDigest(key), CreatedBy: c.UserID,
		}
		if in.ExpiresAt != nil {
			row.ExpiresAt = in.ExpiresAt.UTC()
		}
		var sealed json.RawMessage
		if keyID != "" {
			var err error
			if sealed, err = s.sealToken(row.ID, key); err != nil {
				return api.NewToken{}, apierror.As(err)
			}
		}
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			if _, ok := raftstore.Get(tx, record.Workspaces, c.WorkspaceID); !ok {
				return apierror.NotFound()
			}
			if err := i.ClaimWith(tx, keyID, row.ID, sealed); err != nil {
				return err
			}
			raftstore.Put(tx, record.APIKeys, row)
			return nil
		})
		if errors.Is(err, raftstore.ErrConflict) && attempt < tokenAttempts {
			continue
		}
		if err != nil {
			return api.NewToken{}, err
		}
		return api.NewToken{Token: token(row), Key: key}, nil
	}
}

// sameToken is what the first request with the same idempotency key made.
func (s *Orgs) sameToken(view *raftstore.Snapshot, c core.Caller, key *record.IdempotencyKey) (api.NewToken, error) {
	row, ok := raftstore.Get(view, record.APIKeys, key.ResourceID)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return api.NewToken{}, core.ErrKeyGone("token")
	}
	opened, err := s.openToken(row.ID, key.Result)
	if err != nil {
		return api.NewToken{}, apierror.As(err)
	}
	return api.NewToken{Token: token(row), Key: opened}, nil
}

func tokenContext(id string) []byte { return []byte("api-key/" + id) }

func (s *Orgs) sealToken(id, key string) (json.RawMessage, error) {
	sealed, err := s.core.Sealer.Seal([]byte(key), tokenContext(id))
	if err != nil {
		return nil, fmt.Errorf("seal API key: %w", err)
	}
	return json.Marshal(sealed)
}

func (s *Orgs) openToken(id string, result json.RawMessage) (string, error) {
	var sealed []byte
	if err := json.Unmarshal(result, &sealed); err != nil {
		return "", fmt.Errorf("decode sealed API key: %w", err)
	}
	key, err := s.core.Sealer.Open(sealed, tokenContext(id))
	if err != nil {
		return "", fmt.Errorf("open API key: %w", err)
	}
	return string(key), nil
}

// token converts a row; the key itself is not in it.
func token(k *record.APIKey) api.Token {
	return api.Token{Prefix: k.Prefix, Name: k.Name, CreatedAt: api.Time{Time: k.CreatedAt}, ExpiresAt: api.NewTime(k.ExpiresAt)}
}

// ListTokens lists the current workspace's API keys, newest first.
func (s *Orgs) ListTokens(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Token, next string, err error) {
	if err := c.RequireJWT(); err != nil {
		return nil, "", err
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.APIKeys, "workspace", c.WorkspaceID), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, token), next, nil
}

// RevokeToken deletes the API key with this prefix.
func (s *Orgs) RevokeToken(ctx context.Context, c core.Caller, prefix string) error {
	if err := c.RequireJWT(); err != nil {
		return err
	}
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		for _, k := range raftstore.Find(tx, record.APIKeys, "prefix", prefix) {
			if k.WorkspaceID == c.WorkspaceID {
				raftstore.Delete(tx, record.APIKeys, k.ID)
				return nil
			}
		}
		return apierror.NotFound()
	})
}
