package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	shared = "0123456789abcdef0123456789abcdef"
	admin  = "the-operator-of-the-tests"
)

type users struct {
	fail  error
	email *string // the address of the last who signed in
}

func (u users) SignIn(_ context.Context, issuer, subject, email string, _ time.Time) (core.Caller, error) {
	if u.fail != nil {
		return core.Caller{}, u.fail
	}
	if u.email != nil {
		*u.email = email
	}
	return core.Caller{UserID: "user of " + issuer + " " + subject, WorkspaceID: "ws of " + subject, ViaJWT: true}, nil
}

func (users) Used(context.Context, *record.APIKey) {}

func (users) SignedIn(context.Context, core.Caller, time.Time) {}

func newAuth(t *testing.T, change func(*Config)) *Authenticator {
	t.Helper()
	cfg := Config{Users: users{}, AdminToken: admin, JWT: JWTConfig{HS256Key: shared, Issuer: "iss"}, Clock: time.Now, Logger: testcluster.Log()}
	if change != nil {
		change(&cfg)
	}
	if cfg.Store == nil {
		cfg.Store = testcluster.New(t, 1).Leader().Store
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ask(a *Authenticator, headers ...string) (core.Caller, error) {
	r := httptest.NewRequest("GET", "/v1/sandboxes", nil)
	for _, h := range headers {
		r.Header.Add("Authorization", h)
	}
	return a.Authenticate(r)
}

func sign(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	for k, v := range map[string]any{"iss": "iss", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()} {
		if _, given := claims[k]; !given {
			claims[k] = v
		}
	}
	tok := jwt.NewWithClaims(method, claims)
	tok.Header["kid"] = "k1"
	raw, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTheThree401s(t *testing.T) {
	tier.Slow(t)
	a := newAuth(t, nil)
	for name, c := range map[string]struct {
		headers []string
		detail  string
	}{
		"no header":         {nil, "missing bearer token"},
		"an empty one":      {[]string{""}, "missing bearer token"},
		"another scheme":    {[]string{"Basic YTpi"}, "missing bearer token"},
		"no token":          {[]string{"Bearer "}, "missing bearer token"},
		"two of them":       {[]string{"Bearer " + admin, "Bearer x"}, "missing bearer token"},
		"noise":             {[]string{"Bearer x"}, "invalid api token"},
		"an unknown key":    {[]string{"Bearer brt_aaaaaaaa_" + strings.Repeat("a", 32)}, "invalid api token"},
		"a megabyte":        {[]string{"Bearer " + strings.Repeat("a.b.c", 1<<18)}, "invalid api token"},
		"not an admin":      {[]string{"Bearer " + admin + "x"}, "invalid api token"},
		"a broken JWT":      {[]string{"Bearer a.b.c"}, "invalid api token"},
		"NULs and newlines": {[]string{"Bearer brt_\x00\x00"}, "invalid api token"},
	} {
		_, err := ask(a, c.headers...)
		if e := apierror.As(err); err == nil || e.Code != apierror.EUnauthorized || e.Message != "unauthorized" || e.Detail != c.detail {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c, err := ask(a, "bearer "+admin); err != nil || !c.Admin || c.WorkspaceID != "" {
		t.Fatalf("operator: %+v, %v", c, err)
	}
	// Without a configured operator token no token is valid, not even an empty one.
	closed := newAuth(t, func(c *Config) { c.AdminToken = "" })
	if c, err := ask(closed, "Bearer "+admin); err == nil {
		t.Fatalf("%+v", c)
	}
}

func TestAPIKeys(t *testing.T) {
	cluster := testcluster.New(t, 1)
	a := newAuth(t, func(c *Config) { c.Store = cluster.Leader().Store })
	key := "brt_abcdefgh_" + strings.Repeat("s", 32)
	cluster.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "k1"}, WorkspaceID: "ws", Prefix: "abcdefgh", SHA256: org.APIKeyDigest(key)})
		return nil
	})
	if c, err := ask(a, "Bearer "+key); err != nil || c.WorkspaceID != "ws" || c.KeyID != "k1" || c.ViaJWT || c.Admin {
		t.Fatalf("%+v, %v", c, err)
	}
	expires := func(at time.Time) {
		cluster.Update(func(tx *raftstore.Tx) error {
			k, _ := raftstore.Get(tx, record.APIKeys, "k1")
			n := *k
			n.ExpiresAt = at
			raftstore.Put(tx, record.APIKeys, &n)
			return nil
		})
	}
	expires(a.cfg.Clock().Add(time.Second))
	if _, err := ask(a, "Bearer "+key); err != nil {
		t.Errorf("a key before its end: %v", err)
	}
	expires(a.cfg.Clock())
	if _, err := ask(a, "Bearer "+key); apierror.As(err).Detail != "invalid api token" {
		t.Errorf("a key that has expired: %v", err)
	}
	if _, err := ask(a, "Bearer brt_abcdefgh_"+strings.Repeat("t", 32)); err == nil {
		t.Fatal("the prefix alone was enough")
	}
}

// What a caller may do is asked again while something of theirs is open.
func TestAgain(t *testing.T) {
	now := time.Now()
	store := testcluster.New(t, 1).Leader().Store
	a := newAuth(t, func(c *Config) { c.Store, c.Clock = store, func() time.Time { return now } })
	change := func(f func(tx *raftstore.Tx)) {
		t.Helper()
		if err := store.Update(t.Context(), func(tx *raftstore.Tx) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	mel := &record.User{Meta: record.Meta{ID: "mel"}, Issuer: "iss", Subject: "mel"}
	mel.Join("ws", record.RoleMember)
	change(func(tx *raftstore.Tx) {
		raftstore.Put(tx, record.Users, mel)
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "own"}, WorkspaceID: "ws", Prefix: "aaaaaaaa", Scopes: []string{"apps"}, ExpiresAt: now.Add(time.Hour)})
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "hers"}, WorkspaceID: "ws", Prefix: "bbbbbbbb", CreatedBy: "mel"})
	})
	person := core.Caller{WorkspaceID: "ws", UserID: "mel", ViaJWT: true, Role: record.RoleMember}
	hers := core.Caller{WorkspaceID: "ws", UserID: "mel", KeyID: "hers", Role: record.RoleMember}
	own := core.Caller{WorkspaceID: "ws", KeyID: "own", Scopes: []string{"apps"}}
	want := func(what string, c core.Caller, allowed bool, role record.Role) {
		t.Helper()
		got, err := a.Again(c)
		if (err == nil) != allowed || got.Role != role || err != nil && apierror.CodeOf(err) != apierror.EUnauthorized {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	want("a member", person, true, record.RoleMember)
	want("a member's key", hers, true, record.RoleMember)
	want("the workspace's key", own, true, "")
	want("an operator", core.Caller{Admin: true}, true, "")
	change(func(tx *raftstore.Tx) {
		n := mel.Clone()
		n.Join("ws", record.RoleViewer)
		raftstore.Put(tx, record.Users, n)
	})
	want("a viewer now", person, true, record.RoleViewer)
	want("a viewer's key", hers, true, record.RoleViewer)
	change(func(tx *raftstore.Tx) {
		n := mel.Clone()
		n.Leave("ws")
		raftstore.Put(tx, record.Users, n)
	})
	want("removed", person, false, "")
	want("the key of who was removed", hers, false, "")
	now = now.Add(time.Hour)
	want("an expired key", own, false, "")
	now = now.Add(-time.Hour)
	change(func(tx *raftstore.Tx) { raftstore.Delete(tx, record.APIKeys, "own") })
	want("a revoked key", own, false, "")
}

func TestSharedKeyJWTs(t *testing.T) {
	tier.Slow(t)
	a := newAuth(t, nil)
	good := sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{})
	c, err := ask(a, "Bearer "+good)
	if err != nil || !c.ViaJWT || c.UserID != "user of iss ann" || c.WorkspaceID != "ws of ann" {
		t.Fatalf("%+v, %v", c, err)
	}
	past := time.Now().Add(-time.Hour).Unix()
	for name, raw := range map[string]string{
		"another key":      sign(t, jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), jwt.MapClaims{}),
		"another HMAC":     sign(t, jwt.SigningMethodHS512, []byte(shared), jwt.MapClaims{}),
		"no signature":     sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.MapClaims{}),
		"expired":          sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"exp": past}),
		"never expires":    sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"exp": nil}),
		"not yet valid":    sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()}),
		"another issuer":   sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"iss": "other"}),
		"no subject":       sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"sub": ""}),
		"a long subject":   sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{"sub": strings.Repeat("s", 256)}),
		"cut short":        good[:len(good)-4],
		"payload replaced": strings.Split(good, ".")[0] + ".eyJzdWIiOiJldmUifQ." + strings.Split(good, ".")[2],
	} {
		if c, err := ask(a, "Bearer "+raw); apierror.As(err).Detail != "invalid api token" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	down := newAuth(t, func(c *Config) { c.Users = users{fail: apierror.Unavailable("no leader", errors.New("x"))} })
	if _, err := ask(down, "Bearer "+good); apierror.CodeOf(err) != apierror.EUnavailable {
		t.Fatalf("a first login without a leader: %v", err)
	}
	off := newAuth(t, func(c *Config) { c.JWT = JWTConfig{} })
	if _, err := ask(off, "Bearer "+good); err == nil {
		t.Fatal("a JWT was accepted where none is configured")
	}
}

// An invitation is for an address: whoever can choose one at the issuer must not get it.
func TestOnlyVerifiedAddressesCount(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		verified any
		want     string
	}{
		"verified":               {true, "ann@example.com"},
		"as a text":              {"true", "ann@example.com"},
		"not verified":           {false, ""},
		"not verified, as text":  {"false", ""},
		"neither":                {0, ""},
		"an issuer without both": {nil, "ann@example.com"},
	} {
		email := "none"
		a := newAuth(t, func(cfg *Config) { cfg.Users = users{email: &email} })
		claims := jwt.MapClaims{"email": "ann@example.com"}
		if c.verified != nil {
			claims["email_verified"] = c.verified
		}
		if _, err := ask(a, "Bearer "+sign(t, jwt.SigningMethodHS256, []byte(shared), claims)); err != nil || email != c.want {
			t.Errorf("%s: %q, %v", name, email, err)
		}
	}
}

func TestPublishedKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var fetched atomic.Int64
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	}))
	defer issuer.Close()
	a := newAuth(t, func(c *Config) {
		c.JWT = JWTConfig{JWKSURL: issuer.URL, Issuer: "iss", Audience: "berth", HS256Key: shared}
	})
	for range 3 {
		c, err := ask(a, "Bearer "+sign(t, jwt.SigningMethodES256, key, jwt.MapClaims{"aud": "berth"}))
		if err != nil || c.UserID != "user of iss ann" {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	if fetched.Load() != 1 {
		t.Errorf("the keys were fetched %d times", fetched.Load())
	}
	public, err := json.Marshal(jose.JSONWebKey{Key: key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"another key":                   sign(t, jwt.SigningMethodES256, stranger, jwt.MapClaims{"aud": "berth"}),
		"another audience":              sign(t, jwt.SigningMethodES256, key, jwt.MapClaims{"aud": "other"}),
		"another issuer":                sign(t, jwt.SigningMethodES256, key, jwt.MapClaims{"aud": "berth", "iss": "x"}),
		"expired":                       sign(t, jwt.SigningMethodES256, key, jwt.MapClaims{"aud": "berth", "exp": 1}),
		"the public key as shared key":  sign(t, jwt.SigningMethodHS256, public, jwt.MapClaims{"aud": "berth"}),
		"shared key, no audience in it": sign(t, jwt.SigningMethodHS256, []byte(shared), jwt.MapClaims{}),
	} {
		if c, err := ask(a, "Bearer "+raw); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestLimiter(t *testing.T) {
	now := time.Unix(1000, 0)
	is := limits.DefaultRate
	l := NewLimiter(func() time.Time { return now }, func(string) limits.Rate { return is })
	take := func(ws string, n int) (ok int) {
		for range n {
			if l.Allow(ws) == nil {
				ok++
			}
		}
		return ok
	}
	if got := take("a", 100); got != 50 {
		t.Fatalf("a burst of %d, want 50", got)
	}
	if got := take("b", 10); got != 10 {
		t.Fatalf("another workspace got %d of 10", got)
	}
	now = now.Add(time.Second)
	if got := take("a", 100); got != 25 {
		t.Fatalf("%d after a second, want 25", got)
	}
	e := apierror.As(l.Allow("a"))
	if e.Code != apierror.ERateLimited || e.RetryAfter != time.Second || e.Message != "rate limit: 50 req/burst, 25/sec sustained per workspace" {
		t.Fatalf("%+v", e)
	}
	// Another tier counts from the next request on.
	is = limits.Rate{Burst: 4, PerSecond: 2}
	now = now.Add(time.Minute)
	if got := take("a", 100); got != 4 {
		t.Fatalf("%d of a burst of 4", got)
	}
	now = now.Add(time.Second)
	if got := take("a", 100); got != 2 {
		t.Fatalf("%d after a second, want 2", got)
	}
	if e := apierror.As(l.Allow("a")); e.Message != "rate limit: 4 req/burst, 2/sec sustained per workspace" || e.RetryAfter != time.Second {
		t.Fatalf("%+v", e)
	}
	is = limits.Rate{None: true}
	if got := take("a", 1000); got != 1000 {
		t.Fatalf("%d without a limit", got)
	}
	is = limits.Rate{}
	if got := take("d", 10); got != 0 {
		t.Fatalf("%d of a rate of 0", got)
	}
	is = limits.DefaultRate
	now = now.Add(time.Hour)
	take("c", 1)
	if len(l.buckets) != 1 {
		t.Fatalf("%d buckets are kept", len(l.buckets))
	}
}
