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
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/core"

	"github.com/berth-cloud/berth/controlplane/apierror"
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
func (s *Orgs) Me(ctx context.Context, c core.Caller) (Profile, error) {
	if err := c.RequireJWT(); err != nil {
		return Profile{}, err
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return Profile{}, err
	}
	return profile(view, c)
}

func profile(r raftstore.Reader, c core.Caller) (Profile, error) {
	u, ok := raftstore.Get(r, record.Users, c.UserID)
	if !ok {
		return Profile{}, apierror.NotFound()
	}
	out := Profile{UserID: u.ID, Email: u.Email, CurrentWorkspaceID: u.CurrentWorkspaceID}
	for _, id := range u.WorkspaceIDs {
		if w, ok := raftstore.Get(r, record.Workspaces, id); ok {
			out.Workspaces = append(out.Workspaces, Workspace{ID: w.ID, Name: w.Name, Suspended: w.Suspended, CreatedAt: w.CreatedAt})
		}
	}
	return out, nil
}

// SetCurrentOrg makes one of the user's workspaces the one that later JWT
// requests act in. A workspace that is not theirs is not found.
func (s *Orgs) SetCurrentOrg(ctx context.Context, c core.Caller, workspaceID string) (Profile, error) {
	if err := c.RequireJWT(); err != nil {
		return Profile{}, err
	}
	var out Profile
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, c.UserID)
		if !ok || !slices.Contains(u.WorkspaceIDs, workspaceID) {
			return apierror.NotFound()
		}
		if u.CurrentWorkspaceID != workspaceID {
			n := u.Clone()
			n.CurrentWorkspaceID = workspaceID
			raftstore.Put(tx, record.Users, n)
		}
		var err error
		out, err = profile(tx, c)
		return err
	})
	return out, err
}

// CreateToken says what API key to make.
type CreateToken struct {
	Name        string    // for people
	ExpiresAt   time.Time // zero: never
	Idempotency core.Idempotency
}

// CreateToken makes an API key of the current workspace; its Key is shown only
// here, and to whom repeats the request with its idempotency key.
func (s *Orgs) CreateToken(ctx context.Context, c core.Caller, in CreateToken) (Token, error) {
	if err := c.RequireJWT(); err != nil {
		return Token{}, err
	}
	if !utf8.ValidString(in.Name) || utf8.RuneCountInString(in.Name) > maxTokenName || strings.ContainsFunc(in.Name, unicode.IsControl) {
		return Token{}, apierror.Invalid("invalid name", "a token's name has at most %d printable characters", maxTokenName)
	}
	if !in.ExpiresAt.IsZero() && !in.ExpiresAt.After(s.core.Clock()) {
		return Token{}, apierror.Invalid("invalid expires_at", "expires_at must be in the future")
	}
	if in.ExpiresAt.UTC().Year() > 9999 { // no record can have it
		return Token{}, apierror.Invalid("invalid expires_at", "expires_at must be before the year 10000")
	}
	// Other members of the workspace do not get this one's secret.
	return core.Once(ctx, s.core, c, "POST /v1/me/tokens "+c.UserID, in.Idempotency,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Token, error) {
			return s.sameToken(view, c, key)
		},
		func(keyID string) (Token, error) { return s.createToken(ctx, c, in, keyID) })
}

func (s *Orgs) createToken(ctx context.Context, c core.Caller, in CreateToken, keyID string) (Token, error) {
	for attempt := 1; ; attempt++ {
		key, prefix := newAPIKey()
		row := &record.APIKey{
			Meta: record.Meta{ID: "key-" + core.RandomText(20)}, WorkspaceID: c.WorkspaceID, Name: in.Name,
			Prefix: prefix, SHA256: APIKeyDigest(key), CreatedBy: c.UserID, ExpiresAt: in.ExpiresAt.UTC(),
		}
		var sealed json.RawMessage
		if keyID != "" {
			var err error
			if sealed, err = s.sealToken(row.ID, key); err != nil {
				return Token{}, apierror.As(err)
			}
		}
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			if _, ok := raftstore.Get(tx, record.Workspaces, c.WorkspaceID); !ok {
				return apierror.NotFound()
			}
			if err := in.Idempotency.ClaimWith(tx, keyID, row.ID, sealed); err != nil {
				return err
			}
			raftstore.Put(tx, record.APIKeys, row)
			return nil
		})
		if errors.Is(err, raftstore.ErrConflict) && attempt < tokenAttempts {
			continue
		}
		if err != nil {
			return Token{}, err
		}
		t := token(row)
		t.Key = key
		return t, nil
	}
}

// sameToken is what the first request with the same idempotency key made.
func (s *Orgs) sameToken(view *raftstore.Snapshot, c core.Caller, key *record.IdempotencyKey) (Token, error) {
	row, ok := raftstore.Get(view, record.APIKeys, key.ResourceID)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return Token{}, core.ErrKeyGone("token")
	}
	t := token(row)
	var err error
	if t.Key, err = s.openToken(row.ID, key.Result); err != nil {
		return Token{}, apierror.As(err)
	}
	return t, nil
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

func token(k *record.APIKey) Token {
	return Token{Prefix: k.Prefix, Name: k.Name, CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, CreatedBy: k.CreatedBy}
}

// ListTokens lists the current workspace's API keys, newest first.
func (s *Orgs) ListTokens(ctx context.Context, c core.Caller, o core.ListOptions) (page []Token, next string, err error) {
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
	page = make([]Token, len(rows))
	for i, k := range rows {
		page[i] = token(k)
	}
	return page, next, nil
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
