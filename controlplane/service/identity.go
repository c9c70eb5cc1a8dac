package service

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Identity are the use cases of /v1/me. Every one needs a JWT.
type Identity struct{ store *raftstore.Store }

// NewIdentity makes the use cases.
func NewIdentity(store *raftstore.Store) *Identity { return &Identity{store: store} }

// UserID is the id of the user whom an issuer knows by a subject.
func UserID(issuer, subject string) string { return "usr-" + derived("user", issuer, subject) }

// derived is the same text for the same parts, and says nothing of them.
func derived(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return lowerBase32.EncodeToString(sum[:])[:24]
}

// SignIn finds the user of a JWT, and makes one with a workspace of its own at
// the first login. The ids follow from issuer and subject, so two first logins
// at once make one user.
func (s *Identity) SignIn(ctx context.Context, issuer, subject, email string) (userID, workspaceID string, err error) {
	id := UserID(issuer, subject)
	if u, ok := raftstore.Get(s.store.View(), record.Users, id); ok && (email == "" || u.Email == email) {
		return u.ID, u.CurrentWorkspaceID, nil
	}
	err = s.store.Update(ctx, func(tx *raftstore.Tx) error {
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
		return "", "", storeError(err)
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
func (s *Identity) Me(ctx context.Context, c Caller) (Profile, error) {
	if err := c.RequireJWT(); err != nil {
		return Profile{}, err
	}
	view, err := s.store.VerifiedView(ctx)
	if err != nil {
		return Profile{}, storeError(err)
	}
	return profile(view, c)
}

func profile(r raftstore.Reader, c Caller) (Profile, error) {
	u, ok := raftstore.Get(r, record.Users, c.UserID)
	if !ok {
		return Profile{}, NotFound()
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
func (s *Identity) SetCurrentOrg(ctx context.Context, c Caller, workspaceID string) (Profile, error) {
	if err := c.RequireJWT(); err != nil {
		return Profile{}, err
	}
	var out Profile
	err := s.store.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, c.UserID)
		if !ok || !slices.Contains(u.WorkspaceIDs, workspaceID) {
			return NotFound()
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
	return out, storeError(err)
}

// CreateToken makes an API key of the current workspace; its Key is shown only
// here.
func (s *Identity) CreateToken(ctx context.Context, c Caller, name string) (Token, error) {
	if err := c.RequireJWT(); err != nil {
		return Token{}, err
	}
	if !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxTokenName || strings.ContainsFunc(name, unicode.IsControl) {
		return Token{}, invalid("invalid name", "a token's name has at most %d printable characters", maxTokenName)
	}
	for attempt := 1; ; attempt++ {
		key, prefix := newAPIKey()
		row := &record.APIKey{
			Meta: record.Meta{ID: "key-" + randomText(20)}, WorkspaceID: c.WorkspaceID, Name: name,
			Prefix: prefix, SHA256: APIKeyDigest(key), CreatedBy: c.UserID,
		}
		err := s.store.Update(ctx, func(tx *raftstore.Tx) error {
			if _, ok := raftstore.Get(tx, record.Workspaces, c.WorkspaceID); !ok {
				return NotFound()
			}
			raftstore.Put(tx, record.APIKeys, row)
			return nil
		})
		if errors.Is(err, raftstore.ErrConflict) && attempt < tokenAttempts {
			continue
		}
		if err != nil {
			return Token{}, storeError(err)
		}
		t := token(row)
		t.Key = key
		return t, nil
	}
}

func token(k *record.APIKey) Token {
	return Token{Prefix: k.Prefix, Name: k.Name, CreatedAt: k.CreatedAt, CreatedBy: k.CreatedBy}
}

// ListTokens lists the current workspace's API keys, newest first.
func (s *Identity) ListTokens(ctx context.Context, c Caller, o ListOptions) (page []Token, next string, err error) {
	if err := c.RequireJWT(); err != nil {
		return nil, "", err
	}
	view, err := s.store.VerifiedView(ctx)
	if err != nil {
		return nil, "", storeError(err)
	}
	rows, next, err := paginate(raftstore.Find(view, record.APIKeys, "workspace", c.WorkspaceID), o)
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
func (s *Identity) RevokeToken(ctx context.Context, c Caller, prefix string) error {
	if err := c.RequireJWT(); err != nil {
		return err
	}
	return storeError(s.store.Update(ctx, func(tx *raftstore.Tx) error {
		for _, k := range raftstore.Find(tx, record.APIKeys, "prefix", prefix) {
			if k.WorkspaceID == c.WorkspaceID {
				raftstore.Delete(tx, record.APIKeys, k.ID)
				return nil
			}
		}
		return NotFound()
	}))
}
