package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Issuer is an issuer of JWTs that the operator trusts.
type Issuer struct {
	URL      string   // exactly as tokens have it in "iss"
	Audience []string // one of them must be in "aud"; empty: any will do
	JWKSURL  string   // where it publishes its keys; "": where its discovery document says
}

// ParseIssuers reads issuers of the form https://issuer=audience, whose keys are found
// by discovery. An issuer that is named more than once has several audiences.
func ParseIssuers(texts []string) (out []Issuer, err error) {
	at := map[string]int{}
	for _, text := range texts {
		address, audience, _ := strings.Cut(strings.TrimSpace(text), "=")
		if audience == "" {
			return nil, fmt.Errorf("issuer %q: want https://issuer=audience: without an audience, tokens that it issues for others would be accepted, too", text)
		}
		i, known := at[address]
		if !known {
			i = len(out)
			at[address] = i
			out = append(out, Issuer{URL: address})
		}
		out[i].Audience = append(out[i].Audience, audience)
	}
	return out, nil
}

// Keys are fetched by a loop, and when a token names one that is not known: at most once
// in refetchEvery, whatever tokens name. An issuer that cannot be asked is trusted by the
// keys that it had for keysKept; then its tokens are refused.
const (
	refreshEvery = 15 * time.Minute
	retryEvery   = 30 * time.Second // after a failure
	refetchEvery = 10 * time.Second
	keysKept     = 24 * time.Hour
	maxWaiting   = 256 // requests that wait for keys at once
)

// issuerKeys are the keys of one issuer, as far as they are known.
type issuerKeys struct {
	cfg    Issuer
	parser *jwt.Parser
	clock  func() time.Time
	log    *slog.Logger
	client *http.Client

	mu       sync.Mutex
	set      *keySet       // nil: none was ever fetched
	tried    time.Time     // when the latest fetch began
	fetching chan struct{} // closed when the one that is under way ends; nil: none is
	waiting  int
}

func newIssuerKeys(cfg Issuer, clock func() time.Time, log *slog.Logger) (*issuerKeys, error) {
	for what, address := range map[string]string{"issuer": cfg.URL, "JWKS URL": cfg.JWKSURL} {
		if what == "issuer" && cfg.JWKSURL != "" || what == "JWKS URL" && cfg.JWKSURL == "" {
			continue // it need not be a URL; it is found by discovery
		}
		if u, err := url.Parse(address); err != nil || !secure(u) || u.RawQuery != "" && what == "issuer" || u.Fragment != "" {
			return nil, fmt.Errorf("%s %q: want https://…", what, address)
		}
	}
	if cfg.URL == "" {
		return nil, errors.New("a JWKS URL needs the issuer whose tokens it verifies")
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(algorithms), jwt.WithIssuer(cfg.URL), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(clock),
	}
	if len(cfg.Audience) > 0 {
		options = append(options, jwt.WithAudience(cfg.Audience...))
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &issuerKeys{cfg: cfg, parser: jwt.NewParser(options...), clock: clock, log: log, client: newKeyClient()}, nil
}

// secure reports whether what comes from u is what its host sent: by TLS, or from this
// machine.
func secure(u *url.URL) bool {
	local := u.Hostname() == "127.0.0.1" || u.Hostname() == "::1" || u.Hostname() == "localhost"
	return u.Host != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http" && local)
}

// verify reads the claims of a token that this issuer has signed. A token that no known
// key has signed is tried once more if that brings other keys.
func (k *issuerKeys) verify(ctx context.Context, raw string, c *claims) error {
	set := k.known()
	if set == nil {
		if set = k.other(ctx, nil, false); set == nil {
			return fmt.Errorf("the keys of %s are not known", k.cfg.URL)
		}
	}
	err := k.verifyBy(set, raw, c)
	if errors.Is(err, errNoKey) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		if newer := k.other(ctx, set, false); newer != nil {
			err = k.verifyBy(newer, raw, c)
		}
	}
	return err
}

func (k *issuerKeys) verifyBy(set *keySet, raw string, c *claims) error {
	*c = claims{}
	_, err := k.parser.ParseWithClaims(raw, c, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		return set.find(kid, t.Method.Alg())
	})
	return err
}

// known returns the keys that may be used, or nil.
func (k *issuerKeys) known() *keySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.usable()
}

// usable is known for who holds the lock.
func (k *issuerKeys) usable() *keySet {
	if k.set == nil || k.clock().Sub(k.set.at) > keysKept {
		return nil
	}
	return k.set
}

// other returns keys other than those of a set, or nil: it fetches them, or waits for
// who does. Unless it must, it fetches nothing soon after the last fetch.
func (k *issuerKeys) other(ctx context.Context, than *keySet, must bool) *keySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !must && k.usable() != nil && k.set != than:
		return k.set // somebody was faster
	case k.fetching != nil:
		return k.wait(ctx, than)
	case !must && !k.tried.IsZero() && k.clock().Sub(k.tried).Abs() < refetchEvery:
		return nil
	}
	k.tried = k.clock()
	done := make(chan struct{})
	k.fetching = done
	k.mu.Unlock()
	// Others wait for this one, so its caller's leaving does not end it.
	set, err := k.fetch(context.WithoutCancel(ctx))
	k.mu.Lock()
	k.fetching = nil
	close(done)
	if err != nil {
		k.log.WarnContext(ctx, "the keys of an issuer of JWTs could not be fetched", "issuer", k.cfg.URL, "error", err)
		return nil
	}
	set.at = k.clock()
	k.set = set
	return set
}

// wait waits for the fetch that is under way. Its caller holds the lock.
func (k *issuerKeys) wait(ctx context.Context, than *keySet) *keySet {
	if k.waiting >= maxWaiting {
		return nil
	}
	k.waiting++
	done := k.fetching
	k.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
	k.mu.Lock()
	k.waiting--
	if k.set == than {
		return nil
	}
	return k.usable()
}

// run keeps the keys fresh until ctx ends: what the issuer has withdrawn is not accepted
// for long, and a request need not wait.
func (k *issuerKeys) run(ctx context.Context) {
	for {
		next := refreshEvery
		if k.other(ctx, nil, true) == nil {
			next = retryEvery
		}
		wait := time.NewTimer(next - time.Duration(rand.Int64N(int64(next/10)))) //nolint:gosec // replicas need not ask all at once
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
	}
}
