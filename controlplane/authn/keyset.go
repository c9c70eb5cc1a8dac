package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/timescale"
)

// algorithms are those by which an issuer may sign: with a key pair only. That a token
// names none of them, or one for a shared key, never makes a public key anything else.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// keySet is what an issuer published.
type keySet struct {
	keys []jose.JSONWebKey
	at   time.Time
}

var errNoKey = errors.New("no published key fits")

// The bounds of what an issuer publishes.
const (
	maxDocument = 1 << 20 // bytes of an answer
	maxKeys     = 100
	minRSABits  = 2048
	maxRSABits  = 8192 // a larger one takes long to verify with
	maxTries    = 4    // keys that fit a token, which need not name one
)

// find returns the keys by which a token may be signed. One that names no key may be
// signed by any that fits.
func (s *keySet) find(kid, alg string) (any, error) {
	var out jwt.VerificationKeySet
	for i := range s.keys {
		key := &s.keys[i]
		if kid != "" && key.KeyID != kid || key.Algorithm != "" && key.Algorithm != alg || !fits(key.Key, alg) {
			continue
		}
		if out.Keys = append(out.Keys, key.Key); len(out.Keys) == maxTries {
			break
		}
	}
	if len(out.Keys) == 0 {
		return nil, errNoKey
	}
	return out, nil
}

// fits reports whether a key is of the kind that an algorithm uses.
func fits(key any, alg string) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey:
		return alg == map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[key.Params().BitSize]
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}

// parseKeySet reads a JWKS (RFC 7517). Keys that it does not understand, that are not for
// signatures, or that are not public are left out.
func parseKeySet(raw []byte) (*keySet, error) {
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("decode keys: %w", err)
	}
	set := &keySet{}
	for _, text := range doc.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) != nil || !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if r, ok := key.Key.(*rsa.PublicKey); ok && (r.N.BitLen() < minRSABits || r.N.BitLen() > maxRSABits) {
			continue
		}
		if set.keys = append(set.keys, key); len(set.keys) == maxKeys {
			break
		}
	}
	if len(set.keys) == 0 {
		return nil, errors.New("there is no public key for signatures")
	}
	return set, nil
}

// fetchTime bounds a fetch, discovery included.
var fetchTime = timescale.Limit(5 * time.Second)

const wellKnown = "/.well-known/openid-configuration"

// fetch asks the issuer for its keys. The discovery document is read each time: an issuer
// may move them.
// https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfig
func (k *issuerKeys) fetch(ctx context.Context) (*keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	address := k.cfg.JWKSURL
	if address == "" {
		raw, err := k.get(ctx, strings.TrimSuffix(k.cfg.URL, "/")+wellKnown)
		if err != nil {
			return nil, err
		}
		var doc struct {
			Issuer  string `json:"issuer"`
			JWKSURI string `json:"jwks_uri"`
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			return nil, fmt.Errorf("decode the discovery document: %w", err)
		}
		if doc.Issuer != k.cfg.URL {
			return nil, fmt.Errorf("the discovery document is of issuer %.200q", doc.Issuer)
		}
		if u, err := url.Parse(doc.JWKSURI); err != nil || !secure(u) || u.Scheme == "http" && !strings.HasPrefix(k.cfg.URL, "http:") {
			return nil, fmt.Errorf("jwks_uri %.200q: want https://…", doc.JWKSURI)
		}
		address = doc.JWKSURI
	}
	raw, err := k.get(ctx, address)
	if err != nil {
		return nil, err
	}
	return parseKeySet(raw)
}

// get reads a document, which has at most maxDocument bytes.
func (k *issuerKeys) get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d", address, resp.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", address, err)
	}
	if len(raw) > maxDocument {
		return nil, fmt.Errorf("GET %s: more than %d bytes", address, maxDocument)
	}
	return raw, nil
}

const maxRedirects = 3

// newKeyClient keeps no connection: keys are fetched rarely.
func newKeyClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects || !secure(req.URL) || req.URL.Scheme != via[0].URL.Scheme && req.URL.Scheme != "https" {
				return fmt.Errorf("redirected to %.200q", req.URL.Redacted())
			}
			return nil
		},
	}
}

// usesKeyPair reports whether an algorithm is one of those by which issuers sign.
func usesKeyPair(alg string) bool { return slices.Contains(algorithms, alg) }
