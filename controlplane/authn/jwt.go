package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
)

// JWTConfig says which JWTs are good: those signed with a shared key, or by a
// key of an issuer's published set, or neither.
type JWTConfig struct {
	HS256Key string // shared key, for development; at least 32 bytes
	JWKSURL  string // where an issuer publishes its keys
	Issuer   string // the only "iss" accepted; needed with JWKSURL
	Audience string // must be in "aud" when set
}

// verifier checks JWTs. The algorithm decides the kind of key, and each kind is
// used with its own algorithms only: a public key never becomes a shared one.
type verifier struct {
	cfg    JWTConfig
	shared []byte
	keys   oidc.KeySet
	parser *jwt.Parser
	clock  func() time.Time
}

const minSharedKey = 32

// leeway allows for clocks that differ.
const leeway = 30 * time.Second

func newVerifier(cfg JWTConfig, clock func() time.Time) (*verifier, error) {
	v := &verifier{cfg: cfg, clock: clock}
	if cfg.HS256Key != "" {
		if len(cfg.HS256Key) < minSharedKey {
			return nil, fmt.Errorf("the JWT key has %d bytes, want at least %d", len(cfg.HS256Key), minSharedKey)
		}
		v.shared = []byte(cfg.HS256Key)
	}
	if cfg.JWKSURL != "" {
		u, err := url.Parse(cfg.JWKSURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Hostname() != "127.0.0.1" && u.Hostname() != "localhost" {
			return nil, fmt.Errorf("JWKS URL %q: want https://…", cfg.JWKSURL)
		}
		if cfg.Issuer == "" {
			return nil, errors.New("a JWKS URL needs the issuer whose tokens it verifies")
		}
		// The context is only the carrier of an HTTP client; keys are fetched
		// when a token names one that is not known, and kept.
		v.keys = oidc.NewRemoteKeySet(context.Background(), cfg.JWKSURL)
	}
	options := []jwt.ParserOption{jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(clock)}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	v.parser = jwt.NewParser(options...)
	return v, nil
}

type claims struct {
	Email string `json:"email"`
	jwt.RegisteredClaims
}

// maxSubject bounds what is made part of a user's record.
const maxSubject = 255

var errJWT = errors.New("jwt")

// verify returns the claims of a good token.
func (v *verifier) verify(ctx context.Context, raw string) (claims, error) {
	unverified, _, err := jwt.NewParser().ParseUnverified(raw, &claims{})
	if err != nil {
		return claims{}, fmt.Errorf("%w: %w", errJWT, err)
	}
	var c claims
	switch alg := unverified.Method.Alg(); {
	case alg == jwt.SigningMethodHS256.Alg() && v.shared != nil:
		_, err = v.parser.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
			if t.Method != jwt.SigningMethodHS256 {
				return nil, errJWT
			}
			return v.shared, nil
		})
	case alg != jwt.SigningMethodNone.Alg() && alg[0] != 'H' && v.keys != nil:
		err = v.bySet(ctx, raw, &c)
	default:
		err = fmt.Errorf("algorithm %s is not accepted", alg)
	}
	switch {
	case err != nil:
		return claims{}, fmt.Errorf("%w: %w", errJWT, err)
	case c.Subject == "", len(c.Subject) > maxSubject, len(c.Issuer) > maxSubject, len(c.Email) > maxSubject:
		return claims{}, fmt.Errorf("%w: sub, iss or email is missing or too long", errJWT)
	}
	return c, nil
}

// bySet verifies the signature by the issuer's keys, then the claims.
func (v *verifier) bySet(ctx context.Context, raw string, c *claims) error {
	payload, err := v.keys.VerifySignature(ctx, raw)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(payload, c); err != nil {
		return err
	}
	options := []jwt.ParserOption{jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(v.clock), jwt.WithIssuer(v.cfg.Issuer)}
	if v.cfg.Audience != "" {
		options = append(options, jwt.WithAudience(v.cfg.Audience))
	}
	return jwt.NewValidator(options...).Validate(c)
}
