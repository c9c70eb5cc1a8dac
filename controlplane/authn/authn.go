// Package authn finds out who a request is from, and how many requests a
// workspace may make. httpapi calls Authenticator.Authenticate on each request
// and, for a workspace, Limiter.Allow.
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
	SignIn(ctx context.Context, issuer, subject, email string) (userID, workspaceID string, err error)
}

// Config says which credentials are good.
type Config struct {
	Store      *raftstore.Store
	Users      Users
	AdminToken string // "" lets no operator in by token
	JWT        JWTConfig
	Clock      func() time.Time
	Logger     *slog.Logger
}

// Authenticator knows API keys, JWTs and operators.
type Authenticator struct {
	cfg   Config
	admin []byte // digest of the operator's token; nil: there is none
	jwt   *verifier
}

// New makes an authenticator. It refuses settings that would let anyone in.
func New(cfg Config) (*Authenticator, error) {
	v, err := newVerifier(cfg.JWT, cfg.Clock)
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

// maxCredential bounds what is looked at as a credential.
const maxCredential = 16 << 10

// Authenticate says who a request is from. It fails with a 401 of the service's.
// A replica that does not lead sees API keys as its own view has them.
func (a *Authenticator) Authenticate(r *http.Request) (core.Caller, error) {
	if name := peer.Operator(r.Context()); name != "" {
		return core.Caller{Admin: true, UserID: "operator:" + name}, nil
	}
	token, ok := bearer(r.Header.Values("Authorization"))
	switch {
	case !ok:
		return core.Caller{}, apierror.Unauthorized(apierror.DetailMissingToken)
	case len(token) > maxCredential:
		return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
	case a.isAdmin(token):
		return core.Caller{Admin: true}, nil
	}
	if prefix, ok := org.APIKeyPrefix(token); ok {
		return a.apiKey(token, prefix)
	}
	if strings.Count(token, ".") == 2 {
		return a.signIn(r.Context(), token)
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

// bearer is the token of an Authorization header. Two of them are none: which
// one counts would depend on who reads it.
func bearer(headers []string) (string, bool) {
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "bearer") && token != ""
}

// isAdmin compares digests, so that neither content nor length shows in the time.
func (a *Authenticator) isAdmin(token string) bool {
	if a.admin == nil {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.admin) == 1
}

func (a *Authenticator) apiKey(key, prefix string) (core.Caller, error) {
	digest := org.APIKeyDigest(key)
	for _, k := range raftstore.Find(a.cfg.Store.View(), record.APIKeys, "prefix", prefix) {
		expired := !k.ExpiresAt.IsZero() && !a.cfg.Clock().Before(k.ExpiresAt)
		if subtle.ConstantTimeCompare(k.SHA256, digest) == 1 && !expired {
			return core.Caller{WorkspaceID: k.WorkspaceID, UserID: k.CreatedBy, KeyID: k.ID}, nil
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
	userID, workspaceID, err := a.cfg.Users.SignIn(ctx, claims.Issuer, claims.Subject, claims.Email)
	if err != nil {
		return core.Caller{}, err
	}
	return core.Caller{UserID: userID, WorkspaceID: workspaceID, ViaJWT: true}, nil
}
