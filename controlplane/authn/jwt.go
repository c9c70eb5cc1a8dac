package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// JWTConfig says which JWTs are valid: those signed with a shared key, those signed
// with a published key of an issuer, or none.
type JWTConfig struct {
	HS256Key string // shared key, for development; at least 32 bytes
	JWKSURL  string // where Issuer publishes its keys, if it is not among Issuers
	Issuer   string // the only "iss" accepted with HS256Key and JWKSURL; required with JWKSURL
	Audience string // must be in "aud" with both, if set

	Issuers []Issuer // whose keys are found by discovery
}

// verifier checks JWTs. The algorithm selects the kind of key, and each kind is used
// only with its own algorithms, so that a public key is never used as a shared one.
type verifier struct {
	shared  []byte
	parser  *jwt.Parser // of those signed with the shared key
	issuers map[string]*issuerKeys
	reserve map[string]bool // issuers that the shared key must not speak for
}

const minSharedKey = 32

// leeway is the tolerated difference between clocks.
const leeway = 30 * time.Second

func newVerifier(cfg JWTConfig, clock func() time.Time, log *slog.Logger) (*verifier, error) {
	v := &verifier{issuers: map[string]*issuerKeys{}, reserve: map[string]bool{}}
	if cfg.HS256Key != "" {
		if len(cfg.HS256Key) < minSharedKey {
			return nil, fmt.Errorf("the JWT key has %d bytes, want at least %d", len(cfg.HS256Key), minSharedKey)
		}
		v.shared = []byte(cfg.HS256Key)
	}
	issuers := cfg.Issuers
	for _, is := range issuers {
		v.reserve[is.URL] = true
	}
	if cfg.JWKSURL != "" {
		is := Issuer{URL: cfg.Issuer, JWKSURL: cfg.JWKSURL}
		if cfg.Audience != "" {
			is.Audience = []string{cfg.Audience}
		}
		issuers = append(slices.Clone(issuers), is)
	}
	for _, is := range issuers {
		keys, err := newIssuerKeys(is, clock, log)
		if err != nil {
			return nil, err
		}
		if v.issuers[is.URL] != nil {
			return nil, fmt.Errorf("issuer %q is named twice", is.URL)
		}
		v.issuers[is.URL] = keys
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(clock),
	}
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
	Email    string    `json:"email"`
	Verified *verified `json:"email_verified"` // nil: the issuer does not say
	jwt.RegisteredClaims
}

// verified is the claim email_verified. Some issuers write it as a text.
type verified bool

// UnmarshalJSON implements json.Unmarshaler. What is not understood is not verified.
func (v *verified) UnmarshalJSON(raw []byte) error {
	*v = string(raw) == "true" || string(raw) == `"true"`
	return nil
}

// maxSubject limits claims that become part of a user's record.
const maxSubject = 255

var errJWT = errors.New("jwt")

// verify returns the claims of a valid token.
func (v *verifier) verify(ctx context.Context, raw string) (claims, error) {
	var c claims
	unverified, _, err := jwt.NewParser().ParseUnverified(raw, &c)
	if err != nil {
		return claims{}, fmt.Errorf("%w: %w", errJWT, err)
	}
	if _, has := unverified.Header["crit"]; has { // what must be understood is not (RFC 7515, 4.1.11)
		return claims{}, fmt.Errorf("%w: crit is not understood", errJWT)
	}
	alg, issuer := unverified.Method.Alg(), v.issuers[c.Issuer]
	switch {
	case alg == jwt.SigningMethodHS256.Alg() && v.shared != nil && !v.reserve[c.Issuer]:
		c = claims{}
		_, err = v.parser.ParseWithClaims(raw, &c, func(*jwt.Token) (any, error) { return v.shared, nil })
	case usesKeyPair(alg) && issuer != nil:
		err = issuer.verify(ctx, raw, &c)
	default:
		err = fmt.Errorf("algorithm %s of this issuer is not accepted", alg)
	}
	switch {
	case err != nil:
		return claims{}, fmt.Errorf("%w: %w", errJWT, err)
	case c.Subject == "", len(c.Subject) > maxSubject, len(c.Issuer) > maxSubject, len(c.Email) > maxSubject:
		return claims{}, fmt.Errorf("%w: sub, iss or email is missing or too long", errJWT)
	}
	if c.Verified != nil && !bool(*c.Verified) {
		c.Email = "" // anybody's to write, and invitations are for addresses
	}
	return c, nil
}

// run keeps the keys of the issuers fresh until ctx ends.
func (v *verifier) run(ctx context.Context) {
	var all sync.WaitGroup
	for _, keys := range v.issuers {
		all.Go(func() { keys.run(ctx) })
	}
	all.Wait()
}
