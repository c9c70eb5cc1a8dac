// Package authn authenticates requests and limits how many a workspace may make.
// httpapi calls Authenticator.Authenticate for each request, and Limiter.Allow if it
// is of a workspace.
package authn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Users signs in the user of a verified JWT.
type Users interface {
	// issued is when the JWT was; zero: it does not say.
	SignIn(ctx context.Context, issuer, subject, email string, issued time.Time) (core.Caller, error)
	// SignedIn is told when the JWT of a user was issued.
	SignedIn(ctx context.Context, c core.Caller, issued time.Time)
	// Used is told that an API key was used.
	Used(ctx context.Context, key *record.APIKey)
}

// Config configures an Authenticator.
type Config struct {
	Store      *raftstore.Store
	Users      Users
	AdminToken string // "": no operator's token is valid
	JWT        JWTConfig
	Clock      func() time.Time
	Logger     *slog.Logger
}

// Authenticator verifies API keys, JWTs and operators' credentials.
type Authenticator struct {
	cfg   Config
	admin []byte // digest of the operator's token; nil if there is none
	jwt   *verifier
}

// New returns an authenticator. It refuses settings that would admit anyone.
func New(cfg Config) (*Authenticator, error) {
	v, err := newVerifier(cfg.JWT, cfg.Clock, cfg.Logger)
	if err != nil {
		return nil, err
	}
	a := &Authenticator{cfg: cfg, jwt: v}
	if cfg.AdminToken != "" {
		sum := sha256.Sum256([]byte(cfg.AdminToken))
		a.admin = sum[:]
	}
	return a, nil
}

// Run keeps the keys of the issuers of JWTs fresh until ctx ends. Without it, they are
// fetched when a token needs them. An issuer that is away is no failure: until its keys
// are known, its tokens are invalid.
func (a *Authenticator) Run(ctx context.Context) { a.jwt.run(ctx) }

// maxCredential limits the length of a credential.
const maxCredential = 16 << 10

// Authenticate returns the caller of a request, or a 401. A follower checks API keys
// against its own copy of the store.
func (a *Authenticator) Authenticate(r *http.Request) (core.Caller, error) {
	if name := peer.Operator(r.Context()); name != "" {
		return core.Caller{Admin: true, UserID: "operator:" + name}, nil
	}
	token, ok := Bearer(r.Header.Values("Authorization"))
	switch {
	case !ok:
		return core.Caller{}, apierror.Unauthorized(apierror.DetailMissingToken)
	case len(token) > maxCredential:
		return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
	case a.isAdmin(token):
		return core.Caller{Admin: true}, nil
	}
	if prefix, ok := org.APIKeyPrefix(token); ok {
		return a.apiKey(r.Context(), token, prefix)
	}
	if strings.Count(token, ".") == 2 {
		return a.signIn(r.Context(), token)
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

// Again returns what a caller may do now who was authenticated before, or a 401, for what
// stays open for long. A JWT says until when its holder may begin something, so that it
// expires ends nothing; that a key does, does. A follower decides by its own copy of the
// store, without waiting.
func (a *Authenticator) Again(c core.Caller) (core.Caller, error) {
	view := a.cfg.Store.View()
	switch {
	case c.Admin:
		return c, nil
	case c.KeyID != "":
		k, ok := raftstore.Get(view, record.APIKeys, c.KeyID)
		if !ok || !k.ExpiresAt.IsZero() && !a.cfg.Clock().Before(k.ExpiresAt) {
			break
		}
		if role, valid := core.KeyRole(view, k); valid {
			c.Role, c.Scopes = role, k.Scopes
			return c, nil
		}
	default:
		if u, ok := raftstore.Get(view, record.Users, c.UserID); ok {
			if role, member := u.RoleIn(c.WorkspaceID); member {
				c.Role = role
				return c, nil
			}
		}
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

// Bearer returns the token of an Authorization header. If there are two headers it
// returns none, because readers might disagree on which one counts.
func Bearer(headers []string) (token string, ok bool) {
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "bearer") && token != ""
}

// isAdmin compares digests, so that its duration reveals neither content nor length.
func (a *Authenticator) isAdmin(token string) bool {
	if a.admin == nil {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.admin) == 1
}

func (a *Authenticator) apiKey(ctx context.Context, key, prefix string) (core.Caller, error) {
	digest, view := org.APIKeyDigest(key), a.cfg.Store.View()
	for _, k := range raftstore.Find(view, record.APIKeys, "prefix", prefix) {
		expired := !k.ExpiresAt.IsZero() && !a.cfg.Clock().Before(k.ExpiresAt)
		role, valid := core.KeyRole(view, k)
		if subtle.ConstantTimeCompare(k.SHA256, digest) == 1 && !expired && valid {
			a.cfg.Users.Used(ctx, k)
			return core.Caller{WorkspaceID: k.WorkspaceID, UserID: k.CreatedBy, KeyID: k.ID, Role: role, Scopes: k.Scopes}, nil
		}
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

func (a *Authenticator) signIn(ctx context.Context, token string) (core.Caller, error) {
	claims, err := a.jwt.verify(ctx, token)
	if err != nil {
		a.cfg.Logger.DebugContext(ctx, "JWT refused", "error", err)
		e := apierror.Unauthorized(apierror.DetailInvalidToken)
		e.Err = err
		return core.Caller{}, e
	}
	var issued time.Time
	if claims.IssuedAt != nil {
		issued = claims.IssuedAt.Time
	}
	caller, err := a.cfg.Users.SignIn(ctx, claims.Issuer, claims.Subject, claims.Email, issued)
	if err == nil && claims.IssuedAt != nil {
		a.cfg.Users.SignedIn(ctx, caller, issued)
	}
	return caller, err
}
