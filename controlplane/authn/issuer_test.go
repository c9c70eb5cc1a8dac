package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/tier"
)

// provider stands in for an OpenID provider.
type provider struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	answer  func(w http.ResponseWriter, r *http.Request) bool // of its own kind; nil: none
	issuer  string                                            // of the discovery document; "": its URL
	jwksURI string                                            // likewise
	asked   atomic.Int64                                      // for keys
}

func newProvider(t *testing.T) *provider {
	p := &provider{t: t}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		answer, doc := p.answer, map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
		if p.issuer != "" {
			doc["issuer"] = p.issuer
		}
		if p.jwksURI != "" {
			doc["jwks_uri"] = p.jwksURI
		}
		set := jose.JSONWebKeySet{Keys: p.keys}
		p.mu.Unlock()
		if answer != nil && answer(w, r) {
			return
		}
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(doc)
		case "/keys":
			p.asked.Add(1)
			_ = json.NewEncoder(w).Encode(set)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// publish replaces its keys.
func (p *provider) publish(keys ...jose.JSONWebKey) { p.set(func() { p.keys = keys }) }

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func jwk(kid string, key crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{Key: key.Public(), KeyID: kid, Use: "sig"}
}

// oidcRig is an authenticator that trusts one provider, with a clock.
type oidcRig struct {
	*Authenticator
	*provider
	now atomic.Int64 // Unix milliseconds
}

func newOIDCRig(t *testing.T) *oidcRig {
	r := &oidcRig{provider: newProvider(t)}
	r.now.Store(time.Now().UnixMilli())
	r.Authenticator = newAuth(t, func(c *Config) {
		c.Clock = r.time
		c.JWT = JWTConfig{HS256Key: shared, Issuers: []Issuer{{URL: r.URL, Audience: []string{"berth", "berth-cli"}}}}
	})
	return r
}

func (r *oidcRig) time() time.Time { return time.UnixMilli(r.now.Load()) }

func (r *oidcRig) pass(d time.Duration) { r.now.Add(d.Milliseconds()) }

// token is one of the provider's, valid for an hour unless claims say otherwise.
func (r *oidcRig) token(method jwt.SigningMethod, kid string, key any, claims jwt.MapClaims) string {
	r.t.Helper()
	all := jwt.MapClaims{"iss": r.URL, "sub": "ann", "aud": "berth", "exp": r.time().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	tok := jwt.NewWithClaims(method, all)
	if kid != "" {
		tok.Header["kid"] = kid
	}
	raw, err := tok.SignedString(key)
	if err != nil {
		r.t.Fatal(err)
	}
	return raw
}

func (r *oidcRig) good(what, token string) {
	r.t.Helper()
	if c, err := ask(r.Authenticator, "Bearer "+token); err != nil || !c.ViaJWT || c.UserID != "user of "+r.URL+" ann" {
		r.t.Errorf("%s: %+v, %v", what, c, err)
	}
}

func (r *oidcRig) bad(what, token string) {
	r.t.Helper()
	c, err := ask(r.Authenticator, "Bearer "+token)
	if e := apierror.As(err); err == nil || e.Code != apierror.EUnauthorized || e.Message != "unauthorized" || e.Detail != "invalid api token" {
		r.t.Errorf("%s: %+v, %v", what, c, err)
	}
}

func TestTokensOfADiscoveredIssuer(t *testing.T) {
	r := newOIDCRig(t)
	key, stranger := ecKey(t), ecKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	only256 := jwk("only256", rsaKey)
	only256.Algorithm = "RS256"
	encrypts := jwk("encrypts", key)
	encrypts.Use = "enc"
	r.publish(jwk("ec", key), jwk("rsa", rsaKey), only256, encrypts, jwk("weak", weak),
		jose.JSONWebKey{Key: []byte(shared), KeyID: "oct"}, jose.JSONWebKey{Key: stranger, KeyID: "private"})
	es, rs := jwt.SigningMethodES256, jwt.SigningMethodRS256
	r.good("ES256", r.token(es, "ec", key, nil))
	r.good("RS256", r.token(rs, "rsa", rsaKey, nil))
	r.good("PS384", r.token(jwt.SigningMethodPS384, "rsa", rsaKey, nil))
	r.good("no key named", r.token(es, "", key, nil))
	r.good("another audience of ours", r.token(es, "ec", key, jwt.MapClaims{"aud": []string{"x", "berth-cli"}}))
	r.good("just expired, by a clock that is behind", r.token(es, "ec", key, jwt.MapClaims{"exp": r.time().Add(-20 * time.Second).Unix()}))
	r.good("issued by a clock that is ahead", r.token(es, "ec", key, jwt.MapClaims{"nbf": r.time().Add(20 * time.Second).Unix()}))
	public, err := json.Marshal(jwk("ec", key))
	if err != nil {
		t.Fatal(err)
	}
	good := r.token(es, "ec", key, nil)
	parts := strings.Split(good, ".")
	withCrit := jwt.NewWithClaims(es, jwt.MapClaims{"iss": r.URL, "sub": "ann", "aud": "berth", "exp": r.time().Add(time.Hour).Unix()})
	withCrit.Header["kid"], withCrit.Header["crit"] = "ec", []string{"b64"}
	crit, err := withCrit.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	for what, token := range map[string]string{
		"another key":                   r.token(es, "ec", stranger, nil),
		"another key, none named":       r.token(es, "", stranger, nil),
		"a key that is for encryption":  r.token(es, "encrypts", key, nil),
		"a private key":                 r.token(es, "private", stranger, nil),
		"an RSA key that is weak":       r.token(rs, "weak", weak, nil),
		"a key of another algorithm":    r.token(jwt.SigningMethodRS512, "only256", rsaKey, nil),
		"another audience":              r.token(es, "ec", key, jwt.MapClaims{"aud": "other"}),
		"no audience":                   r.token(es, "ec", key, jwt.MapClaims{"aud": nil}),
		"another issuer":                r.token(es, "ec", key, jwt.MapClaims{"iss": "https://evil.example.com"}),
		"the issuer with a slash":       r.token(es, "ec", key, jwt.MapClaims{"iss": r.URL + "/"}),
		"expired":                       r.token(es, "ec", key, jwt.MapClaims{"exp": r.time().Add(-31 * time.Second).Unix()}),
		"never expires":                 r.token(es, "ec", key, jwt.MapClaims{"exp": nil}),
		"not yet":                       r.token(es, "ec", key, jwt.MapClaims{"nbf": r.time().Add(time.Minute).Unix()}),
		"no subject":                    r.token(es, "ec", key, jwt.MapClaims{"sub": ""}),
		"no signature":                  r.token(jwt.SigningMethodNone, "ec", jwt.UnsafeAllowNoneSignatureType, nil),
		"HS256 by the public key":       r.token(jwt.SigningMethodHS256, "ec", public, nil),
		"HS256 by a published key":      r.token(jwt.SigningMethodHS256, "oct", []byte(shared), nil),
		"the shared key for the issuer": r.token(jwt.SigningMethodHS256, "", []byte(shared), nil),
		"alg changed to none":           "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"alg changed to HS256":          "eyJhbGciOiJIUzI1NiIsImtpZCI6ImVjIn0." + parts[1] + "." + parts[2],
		"alg changed to RS256":          "eyJhbGciOiJSUzI1NiIsImtpZCI6ImVjIn0." + parts[1] + "." + parts[2],
		"alg unknown":                   "eyJhbGciOiJYWCJ9." + parts[1] + "." + parts[2],
		"crit":                          crit,
	} {
		r.bad(what, token)
	}
	r.good("still", good)
	r.pass(time.Hour + leeway + time.Second)
	r.bad("replayed after it expired", good)
}

// What the issuer publishes anew counts at once, what it withdraws soon.
func TestKeysRotate(t *testing.T) {
	r := newOIDCRig(t)
	first, second, third := ecKey(t), ecKey(t), ecKey(t)
	r.publish(jwk("1", first))
	r.good("the first key", r.token(jwt.SigningMethodES256, "1", first, nil))
	r.publish(jwk("1", first), jwk("2", second))
	r.bad("a new key, right after a fetch", r.token(jwt.SigningMethodES256, "2", second, nil))
	r.pass(refetchEvery)
	r.good("a new key", r.token(jwt.SigningMethodES256, "2", second, nil))
	r.good("the first key still", r.token(jwt.SigningMethodES256, "1", first, nil))
	r.pass(refetchEvery)
	r.publish(jwk("2", third))
	r.good("another key of the same name", r.token(jwt.SigningMethodES256, "2", third, nil))
	r.bad("a key that was withdrawn", r.token(jwt.SigningMethodES256, "1", first, nil))
	if n := r.asked.Load(); n != 3 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// However many keys tokens name, the issuer is asked once in a while.
func TestAFloodOfKeyNames(t *testing.T) {
	r := newOIDCRig(t)
	key := ecKey(t)
	r.publish(jwk("1", key))
	r.good("before", r.token(jwt.SigningMethodES256, "1", key, nil))
	r.pass(refetchEvery)
	var all sync.WaitGroup
	for i := range 200 {
		token := r.token(jwt.SigningMethodES256, fmt.Sprint("x", i), key, nil)
		all.Go(func() { r.bad("a name", token) })
	}
	all.Wait()
	r.good("meanwhile", r.token(jwt.SigningMethodES256, "1", key, nil))
	if n := r.asked.Load(); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// An issuer that is away, slow or hostile makes its own tokens invalid, and nothing else.
func TestAnIssuerThatMisbehaves(t *testing.T) {
	old := fetchTime
	fetchTime = 300 * time.Millisecond
	t.Cleanup(func() { fetchTime = old })
	r := newOIDCRig(t)
	key := ecKey(t)
	r.publish(jwk("1", key))
	token := r.token(jwt.SigningMethodES256, "1", key, jwt.MapClaims{"exp": r.time().AddDate(0, 0, 9).Unix()})
	own := sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"exp": r.time().AddDate(0, 0, 9).Unix()})
	var sent atomic.Int64
	for what, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"away": func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(502); return true },
		"slow": func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true },
		"a byte at a time": func(w http.ResponseWriter, r *http.Request) bool {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					return true
				case <-tick.C:
					_, _ = w.Write([]byte(" "))
					_ = http.NewResponseController(w).Flush()
				}
			}
		},
		"a gigabyte": func(w http.ResponseWriter, _ *http.Request) bool {
			chunk := []byte(strings.Repeat(" ", 1<<16))
			for range 1 << 14 {
				n, err := w.Write(chunk)
				if sent.Add(int64(n)); err != nil {
					return true
				}
			}
			return true
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("<html>")); return true },
		"nothing": func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("{}")); return true },
		"redirects": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
			return true
		},
		"in plaintext": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return true
		},
	} {
		r.set(func() { r.answer = answer })
		r.pass(refetchEvery)
		r.bad(what, token)
		if c, err := ask(r.Authenticator, "Bearer "+own); err != nil || !c.ViaJWT {
			t.Errorf("%s: the development key: %v", what, err)
		}
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes were read", n)
	}
	r.set(func() { r.answer, r.issuer = nil, "https://other.example.com" })
	r.pass(refetchEvery)
	r.bad("another issuer's document", token)
	r.set(func() { r.issuer, r.jwksURI = "", "http://192.0.2.1/keys" })
	r.pass(refetchEvery)
	r.bad("keys in plaintext", token)
	r.set(func() { r.jwksURI = "" })
	r.pass(refetchEvery)
	r.good("it is back", token)
	// It goes away again: its keys are good for a day.
	r.set(func() {
		r.answer = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true }
	})
	r.pass(keysKept - time.Minute)
	r.good("away for hours", token)
	r.pass(2 * time.Minute)
	r.bad("away for a day", token)
}

// A client that leaves does not end the fetch for which others wait, and requests with a
// key that is known wait for none.
func TestOthersDoNotWait(t *testing.T) {
	r := newOIDCRig(t)
	first, second := ecKey(t), ecKey(t)
	r.publish(jwk("1", first))
	r.good("before", r.token(jwt.SigningMethodES256, "1", first, nil))
	began, proceed := make(chan struct{}, 1), make(chan struct{})
	r.set(func() {
		r.answer = func(_ http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/keys" {
				began <- struct{}{}
				<-proceed
			}
			return false
		}
		r.keys = append(r.keys, jwk("2", second))
	})
	r.pass(refetchEvery)
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	ask := func(ctx context.Context) {
		q := httptest.NewRequestWithContext(ctx, "GET", "/v1/me", nil)
		q.Header.Set("Authorization", "Bearer "+r.token(jwt.SigningMethodES256, "2", second, nil))
		if _, err := r.Authenticate(q); err != nil {
			t.Errorf("a new key: %v", err)
		}
	}
	all.Go(func() { ask(ctx) })
	<-began
	leave()
	r.good("a known key, meanwhile", r.token(jwt.SigningMethodES256, "1", first, nil))
	all.Go(func() { ask(t.Context()) })
	close(proceed)
	all.Wait()
	if n := r.asked.Load(); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// Run has the keys before the first token comes, and ends.
func TestRunFetchesKeys(t *testing.T) {
	r := newOIDCRig(t)
	key := ecKey(t)
	fetched := make(chan struct{}, 1)
	r.set(func() {
		r.keys = []jose.JSONWebKey{jwk("1", key)}
		r.answer = func(_ http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/keys" {
				fetched <- struct{}{}
			}
			return false
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { r.Run(ctx) })
	<-fetched
	r.good("the first token", r.token(jwt.SigningMethodES256, "1", key, nil))
	stop()
	run.Wait()
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

func TestSeveralIssuers(t *testing.T) {
	tier.Slow(t)
	r, other := newOIDCRig(t), newProvider(t)
	mine, theirs := ecKey(t), ecKey(t)
	r.publish(jwk("1", mine))
	other.publish(jwk("1", theirs))
	issuers, err := ParseIssuers([]string{r.URL + "=berth", other.URL + "=theirs", " " + r.URL + "=berth-cli"})
	if err != nil || len(issuers) != 2 || len(issuers[0].Audience) != 2 {
		t.Fatalf("%+v, %v", issuers, err)
	}
	a := newAuth(t, func(c *Config) { c.JWT = JWTConfig{Issuers: issuers} })
	for what, token := range map[string]string{
		"one":   r.token(jwt.SigningMethodES256, "1", mine, nil),
		"other": r.token(jwt.SigningMethodES256, "1", theirs, jwt.MapClaims{"iss": other.URL, "aud": "theirs"}),
	} {
		if c, err := ask(a, "Bearer "+token); err != nil || c.UserID == "" {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
	}
	for what, token := range map[string]string{
		"signed by the other":         r.token(jwt.SigningMethodES256, "1", theirs, nil),
		"in the other's name":         r.token(jwt.SigningMethodES256, "1", mine, jwt.MapClaims{"iss": other.URL, "aud": "theirs"}),
		"with the other's audience":   r.token(jwt.SigningMethodES256, "1", mine, jwt.MapClaims{"aud": "theirs"}),
		"without any key of ours set": r.token(jwt.SigningMethodHS256, "1", []byte(shared), jwt.MapClaims{"iss": "iss"}),
	} {
		if c, err := ask(a, "Bearer "+token); err == nil {
			t.Errorf("%s: %+v", what, c)
		}
	}
	for _, bad := range []string{"", "https://login.example.com", "https://login.example.com=", "http://login.example.com=berth", "=berth", "login.example.com=berth", "https://u:p@login.example.com=b", "https://login.example.com/?x=berth"} {
		issuers, err := ParseIssuers([]string{bad})
		if err == nil {
			_, err = New(Config{JWT: JWTConfig{Issuers: issuers}, Clock: time.Now})
		}
		if err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParseKeySet(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"1","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AAAA"},{"kty":"RSA","n":"AQAB","e":"AQAB"},{}]}`))
	f.Add([]byte(`{"keys":[null,1,"x",{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		set, err := parseKeySet(raw)
		if err != nil {
			return
		}
		for _, k := range set.keys {
			if !k.IsPublic() {
				t.Fatalf("%+v", k)
			}
			for _, alg := range algorithms {
				_, _ = set.find(k.KeyID, alg)
			}
		}
	})
}
