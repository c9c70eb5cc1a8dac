// Package org contains users, the workspaces (organizations) of which they are
// members, and the workspaces' API keys.
package org

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Orgs contains the use cases of /v1/me. All of them require a JWT.
type Orgs struct {
	core    *core.Core
	marking sync.Map // ids of keys and users whose use is being recorded
}

// New returns the use cases.
func New(c *core.Core) *Orgs { return &Orgs{core: c} }

// UserID returns the id of an issuer's user.
func UserID(issuer, subject string) string { return "usr-" + derived("user", issuer, subject) }

// derived returns a text that depends only on parts and does not reveal them.
func derived(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return core.LowerBase32(sum[:])[:24]
}

// SignIn returns the user of a JWT. The first login creates the user and a
// workspace. Their ids are derived from issuer and subject, so simultaneous first
// logins create one user. issued is when the JWT was; zero: it does not say.
func (s *Orgs) SignIn(ctx context.Context, issuer, subject, email string, issued time.Time) (core.Caller, error) {
	id := UserID(issuer, subject)
	if u, ok := raftstore.Get(s.core.Store.View(), record.Users, id); ok && !s.moves(u, email, issued) {
		return asUser(u), nil
	}
	var out core.Caller
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, id)
		if ok {
			out = asUser(u)
			if s.moves(u, email, issued) {
				n := u.Clone()
				n.Email = email
				signIn(tx, n, issued)
				raftstore.Put(tx, record.Users, n)
			}
			return nil
		}
		workspaceID := "ws-" + derived("workspace", issuer, subject)
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: workspaceID}, Name: workspaceName(email)})
		u = &record.User{Meta: record.Meta{ID: id}, Issuer: issuer, Subject: subject, Email: email}
		u.Join(workspaceID, record.RoleOwner)
		raftstore.Put(tx, record.Users, u)
		core.PutAudit(tx, record.AuditEntry{
			Chain: workspaceID, ActorType: core.ActorUser, ActorID: id, Action: "signUp", Resource: "orgs/" + workspaceID, Outcome: core.OutcomeOK,
		})
		out = asUser(u)
		return nil
	})
	if err != nil {
		return core.Caller{}, err
	}
	return out, nil
}

// moves reports whether a JWT gives its user another address. Only one that is newer than
// any before does: invitations are accepted by the address, which an older one must not
// bring back, and two that were sent in turn would be a write each. One of the future, by
// an issuer whose clock is ahead, does once it is not.
func (s *Orgs) moves(u *record.User, email string, issued time.Time) bool {
	if email == "" || u.Email == email {
		return false
	}
	if issued.IsZero() { // an issuer that never says when cannot be told from one that is late
		return u.SignedInAt.IsZero()
	}
	return issued.After(u.SignedInAt) && !issued.After(s.core.Clock())
}

// signInEvery is the least time between the issues of two JWTs that count as two logins:
// some clients make one for each request.
const signInEvery = time.Minute

// isLogin reports whether a JWT that was issued then is of another login than the newest
// one before.
func isLogin(u *record.User, issued time.Time) bool { return issued.Sub(u.SignedInAt) >= signInEvery }

// signIn makes a JWT the newest of its user's, whose row n is to be written.
func signIn(tx *raftstore.Tx, n *record.User, issued time.Time) {
	if isLogin(n, issued) {
		core.PutAudit(tx, record.AuditEntry{
			Chain: n.CurrentWorkspaceID, ActorType: core.ActorUser, ActorID: n.ID, Action: "signIn", Outcome: core.OutcomeOK,
		})
	}
	if issued.After(n.SignedInAt) {
		n.SignedInAt = issued.UTC()
	}
}

// SignedIn records a login: that a person came with a JWT that was issued after the newest
// one before. Only the leader can. That it fails is no reason to refuse the request; the
// next one records it.
func (s *Orgs) SignedIn(ctx context.Context, c core.Caller, issued time.Time) {
	if now := s.core.Clock(); issued.After(now) {
		issued = now // or a wrong clock at the issuer would hide the logins after it
	}
	if u, ok := raftstore.Get(s.core.Store.View(), record.Users, c.UserID); !ok || !isLogin(u, issued) || !s.core.Store.IsLeader() {
		return
	}
	if _, busy := s.marking.LoadOrStore(c.UserID, nil); busy {
		return
	}
	defer s.marking.Delete(c.UserID)
	ctx, cancel := context.WithTimeout(ctx, usePatience)
	defer cancel()
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, c.UserID)
		if !ok || !isLogin(u, issued) {
			return nil
		}
		n := u.Clone()
		signIn(tx, n, issued)
		raftstore.Put(tx, record.Users, n)
		return nil
	})
	if err != nil {
		s.core.Logger.WarnContext(ctx, "a login was not recorded", "user_id", c.UserID, "error", err)
	}
}

// asUser returns the caller who a user is in the current workspace.
func asUser(u *record.User) core.Caller {
	role, _ := u.RoleIn(u.CurrentWorkspaceID)
	return core.Caller{UserID: u.ID, WorkspaceID: u.CurrentWorkspaceID, Role: role, ViaJWT: true}
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
	return s.show(view, c)
}

// show converts the caller's user.
func (s *Orgs) show(r raftstore.Reader, c core.Caller) (api.Me, error) {
	u, ok := raftstore.Get(r, record.Users, c.UserID)
	if !ok {
		return api.Me{}, apierror.NotFound()
	}
	out := api.Me{ID: u.ID, Email: u.Email, Orgs: []api.Org{}}
	for _, id := range u.WorkspaceIDs {
		if w, ok := raftstore.Get(r, record.Workspaces, id); ok {
			org := s.org(w, u)
			if w.ID == u.CurrentWorkspaceID {
				out.CurrentOrg = &org
			}
			out.Orgs = append(out.Orgs, org)
		}
	}
	return out, nil
}

// SetCurrentOrg sets the workspace in which later JWT requests act. A workspace of
// which the user is not a member is not found.
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
		out, err = s.show(tx, c)
		return err
	})
	return out, err
}

// CreateToken creates an API key of the current workspace. Only its answer contains
// the complete key, also if the request is repeated with its idempotency key.
func (s *Orgs) CreateToken(ctx context.Context, c core.Caller, in api.CreateToken, i core.Idempotency) (api.NewToken, error) {
	if err := c.RequireJWT(); err != nil {
		return api.NewToken{}, err
	}
	if err := validToken(in); err != nil {
		return api.NewToken{}, err
	}
	// The user is part of the route, as an earlier version has it.
	return core.Once(ctx, s.core, c, "POST /v1/me/tokens "+c.UserID, i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.NewToken, error) {
			return s.sameToken(view, c, key)
		},
		func(keyID string) (api.NewToken, error) { return s.createToken(ctx, c, in, i, keyID) })
}

// maxScopes limits the scopes of a key.
const maxScopes = 20

func validToken(in api.CreateToken) error {
	if in.Name == "" {
		return &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	}
	for _, scope := range in.Scopes {
		if !core.ValidScope(scope) {
			return apierror.Invalid("invalid scopes", "want all, read-only, sandboxes, databases, apps, volumes, webhooks, or app:<id>")
		}
	}
	if len(in.Scopes) > maxScopes {
		return apierror.Invalid("invalid scopes", "a key has at most %d scopes", maxScopes)
	}
	if !utf8.ValidString(in.Name) || utf8.RuneCountInString(in.Name) > maxTokenName || strings.ContainsFunc(in.Name, unicode.IsControl) {
		return apierror.Invalid("invalid name", "a token's name has at most %d printable characters", maxTokenName)
	}
	if at := in.ExpiresAt; at != nil && at.UTC().Year() > 9999 { // records cannot store later times
		return apierror.Invalid("invalid expires_at", "expires_at must be before the year 10000")
	}
	return nil
}

func (s *Orgs) createToken(ctx context.Context, c core.Caller, in api.CreateToken, i core.Idempotency, keyID string) (api.NewToken, error) {
	// Checked only for a new token: a repeated request may come after its token
	// expired.
	if at := in.ExpiresAt; at != nil && !at.After(s.core.Clock()) {
		return api.NewToken{}, apierror.Invalid("invalid expires_at", "expires_at must be in the future")
	}
	for attempt := 1; ; attempt++ {
		key, prefix := newAPIKey()
		row := &record.APIKey{
			Meta: record.Meta{ID: "key-" + core.RandomText(20)}, WorkspaceID: c.WorkspaceID, Name: in.Name,
			Prefix: prefix, SHA256: APIKeyDigest(key), CreatedBy: c.UserID, Scopes: in.Scopes,
		}
		if in.ExpiresAt != nil {
			row.ExpiresAt = in.ExpiresAt.UTC()
		}
		var out api.NewToken
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			ws, err := s.mayMakeKeys(tx, c)
			if err != nil {
				return err
			}
			if err := ownApps(tx, ws.ID, in.Scopes); err != nil {
				return err
			}
			dropExpired(tx, ws.ID)
			if err := s.core.Tiers.Admit(tx, ws, limits.Need{Keys: 1}); err != nil {
				return err
			}
			row := row.Clone()
			raftstore.Put(tx, record.APIKeys, row)
			core.Concerns(ctx, "tokens/"+row.Prefix)
			out = api.NewToken{Token: token(row), Key: key}
			return core.ClaimAnswer(tx, s.core, i, keyID, row.ID, out)
		})
		if errors.Is(err, raftstore.ErrConflict) && attempt < tokenAttempts {
			continue
		}
		if err != nil {
			return api.NewToken{}, err
		}
		return out, nil
	}
}

// ownApps refuses scopes for apps and functions that the workspace has not: a name in place
// of an id would make a key that may do nothing.
func ownApps(tx *raftstore.Tx, workspaceID string, scopes []string) error {
	for _, scope := range scopes {
		id, is := strings.CutPrefix(scope, core.ScopeApp)
		if !is {
			continue
		}
		if a, ok := raftstore.Get(tx, record.Apps, id); !ok || a.WorkspaceID != workspaceID {
			return apierror.Invalid("invalid scopes", "%s: want app: and the id (app-… or fn-…) of an app or a function of this workspace", scope)
		}
	}
	return nil
}

// mayMakeKeys returns the workspace for which the caller makes a key. Who has been removed
// meanwhile, or may only read, makes none: nobody would revoke it.
func (s *Orgs) mayMakeKeys(tx *raftstore.Tx, c core.Caller) (*record.Workspace, error) {
	if c.UserID != core.ByOperator {
		w, _, err := acting(tx, c, c.WorkspaceID, core.Write)
		return w, err
	}
	w, ok := raftstore.Get(tx, record.Workspaces, c.WorkspaceID)
	if !ok {
		return nil, apierror.NotFound()
	}
	return w, nil
}

// Of a workspace's expired keys the oldest go before their time if there are more than
// expiredKept, because no quota counts them, and a create would look at any number. A create
// removes dropAtOnce at most, and adds one.
const (
	expiredKept = 50
	dropAtOnce  = 50
)

func dropExpired(tx *raftstore.Tx, workspaceID string) {
	// What is seen a little late goes with the next create. So creates without a quota do not
	// get in each other's way.
	keys := raftstore.Find(tx.Snapshot(), record.APIKeys, "workspace", workspaceID)
	expired := slices.DeleteFunc(keys, func(k *record.APIKey) bool { return k.ExpiresAt.IsZero() || tx.Now().Before(k.ExpiresAt) })
	slices.SortFunc(expired, func(a, b *record.APIKey) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	for _, k := range expired[:min(max(0, len(expired)-expiredKept), dropAtOnce)] {
		raftstore.Delete(tx, record.APIKeys, k.ID)
	}
}

// sameToken returns the result of the first request with the same idempotency key, by an
// earlier version.
func (s *Orgs) sameToken(view *raftstore.Snapshot, c core.Caller, key *record.IdempotencyKey) (api.NewToken, error) {
	row, ok := raftstore.Get(view, record.APIKeys, key.ResourceID)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return api.NewToken{}, core.ErrKeyGone("token")
	}
	opened, err := s.core.OpenAnswer(key.Result, tokenContext(row.ID))
	if err != nil {
		return api.NewToken{}, apierror.As(err)
	}
	return api.NewToken{Token: token(row), Key: opened}, nil
}

func tokenContext(id string) string { return "api-key/" + id }

// token converts a row, which does not contain the key.
func token(k *record.APIKey) api.Token {
	scopes := k.Scopes
	if len(scopes) == 0 {
		scopes = []string{core.ScopeAll}
	}
	return api.Token{
		Prefix: k.Prefix, Name: k.Name, Scopes: scopes, CreatedAt: api.Time{Time: k.CreatedAt}, ExpiresAt: api.NewTime(k.ExpiresAt), LastUsedAt: api.NewTime(k.LastUsedAt),
	}
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
				if k.CreatedBy != c.UserID {
					if err := core.Authorize(c, core.Manage, core.Resource{Area: core.AreaWorkspace}); err != nil {
						return err
					}
				}
				raftstore.Delete(tx, record.APIKeys, k.ID)
				return nil
			}
		}
		return apierror.NotFound()
	})
}
