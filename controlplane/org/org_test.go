package org_test

import (
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestFirstLoginMakesUserAndWorkspaceOnce(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := org.New(core.New(core.Core{Store: c.Leader().Store, Sealer: testplane.Sealer{}, Clock: time.Now, Logger: testcluster.Log()}))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := ident.SignIn(t.Context(), "iss", "ann", "ann@example.com", time.Time{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	view := c.Leader().Store.View()
	if u, w := len(raftstore.All(view, record.Users)), len(raftstore.All(view, record.Workspaces)); u != 1 || w != 1 {
		t.Fatalf("%d users, %d workspaces", u, w)
	}
	in, err := ident.SignIn(t.Context(), "iss", "ann", "new@example.com", time.Time{})
	user, workspace := in.UserID, in.WorkspaceID
	if err != nil {
		t.Fatal(err)
	}
	me, err := ident.Me(t.Context(), core.Caller{UserID: user, WorkspaceID: workspace, ViaJWT: true})
	if err != nil || me.Email != "new@example.com" || me.CurrentOrg == nil || me.CurrentOrg.ID != workspace || len(me.Orgs) != 1 || me.Orgs[0].Name != "ann" {
		t.Fatalf("%+v, %v", me, err)
	}
	if other, _ := ident.SignIn(t.Context(), "is", "sann", "", time.Time{}); other.UserID == user {
		t.Fatal("another issuer's user is the same")
	}
}

func TestTokens(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := org.New(core.New(core.Core{Store: c.Leader().Store, Sealer: testplane.Sealer{}, Clock: time.Now, Logger: testcluster.Log()}))
	login := func(subject string) core.Caller {
		c, err := ident.SignIn(t.Context(), "iss", subject, "", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ann, eve := login("ann"), login("eve")
	tok, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "laptop"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	prefix, ok := org.APIKeyPrefix(tok.Key)
	if !ok || prefix != tok.Prefix || !strings.HasPrefix(tok.Key, "brt_"+prefix+"_") || len(prefix) != 8 {
		t.Fatalf("%+v", tok)
	}
	list, _, err := ident.ListTokens(t.Context(), ann, core.ListOptions{})
	if err != nil || len(list) != 1 || list[0].Name != "laptop" || list[0].Prefix != prefix {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := ident.RevokeToken(t.Context(), eve, prefix); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("another workspace revokes: %v", err)
	}
	if _, err := ident.SetCurrentOrg(t.Context(), eve, api.SetCurrentOrg{OrgID: ann.WorkspaceID}); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("another workspace entered: %v", err)
	}
	if me, err := ident.SetCurrentOrg(t.Context(), ann, api.SetCurrentOrg{OrgID: ann.WorkspaceID}); err != nil || me.CurrentOrg.ID != ann.WorkspaceID {
		t.Fatalf("%+v, %v", me, err)
	}
	if err := ident.RevokeToken(t.Context(), ann, prefix); err != nil {
		t.Fatal(err)
	}
	if err := ident.RevokeToken(t.Context(), ann, prefix); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("second revoke: %v", err)
	}
	for _, make := range []func(api.CreateToken) error{
		func(in api.CreateToken) error {
			_, err := ident.CreateToken(t.Context(), ann, in, core.Idempotency{})
			return err
		},
		func(in api.CreateToken) error {
			_, err := ident.CreateWorkspaceToken(t.Context(), ann.WorkspaceID, in, core.Idempotency{})
			return err
		},
	} {
		if err := make(api.CreateToken{}); apierror.CodeOf(err) != apierror.EInvalid || apierror.As(err).Message != "name is required" {
			t.Errorf("no name: %v", err)
		}
	}
	for _, bad := range []string{"a\nb", strings.Repeat("x", 101), "\xff"} {
		if _, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: bad}, core.Idempotency{}); apierror.CodeOf(err) != apierror.EInvalid {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	if _, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci", ExpiresAt: api.NewTime(time.Now())}, core.Idempotency{}); apierror.As(err).Message != "invalid expires_at" {
		t.Errorf("a token that has expired already: %v", err)
	}
	if _, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci", ExpiresAt: &api.Time{}}, core.Idempotency{}); apierror.As(err).Message != "invalid expires_at" {
		t.Errorf("a token that ends with the year 0: %v", err)
	}
	if _, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci", Scopes: []string{"read"}}, core.Idempotency{}); apierror.As(err).Message != "invalid scopes" ||
		apierror.As(err).Detail != "want all, read-only, sandboxes, databases, apps, volumes, webhooks, or app:<id>" {
		t.Errorf("a token with a scope: %v", err)
	}
	if _, err := ident.SetCurrentOrg(t.Context(), ann, api.SetCurrentOrg{}); apierror.As(err).Message != "org_id is required" {
		t.Errorf("no organization: %v", err)
	}
	last := time.Date(9999, time.December, 31, 23, 59, 59, 0, time.FixedZone("", -3600)) // the year 10000, which no JSON has
	if _, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci", ExpiresAt: &api.Time{Time: last}}, core.Idempotency{}); apierror.As(err).Message != "invalid expires_at" {
		t.Errorf("a token for too long: %v", err)
	}
	end := time.Now().Add(time.Hour).UTC()
	if got, err := ident.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci", ExpiresAt: &api.Time{Time: end}}, core.Idempotency{}); err != nil || !got.ExpiresAt.Equal(end) {
		t.Errorf("%+v, %v", got, err)
	}
	key := core.Caller{WorkspaceID: ann.WorkspaceID, KeyID: "k"}
	if _, err := ident.Me(t.Context(), key); apierror.As(err).Detail != "jwt required" {
		t.Fatalf("an API key as a JWT: %v", err)
	}
}

func TestATokenIsMadeOnceAKey(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := org.New(core.New(core.Core{Store: c.Leader().Store, Sealer: testplane.Sealer{}, Clock: time.Now, Logger: testcluster.Log()}))
	ann, err := ident.SignIn(t.Context(), "iss", "ann", "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	in, key := api.CreateToken{Name: "ci"}, testplane.Key("k1", "body")
	first, err := ident.CreateToken(t.Context(), ann, in, key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ident.CreateToken(t.Context(), ann, in, key)
	if err != nil || !reflect.DeepEqual(again, first) || again.Key == "" {
		t.Fatalf("the same request made %+v, then %+v, %v", first, again, err)
	}
	if _, err := ident.CreateToken(t.Context(), ann, in, testplane.Key("k1", "another")); apierror.CodeOf(err) != apierror.EConflict {
		t.Fatalf("another body: %v", err)
	}
	bob := ann
	bob.UserID = "usr-bob"
	c.Update(func(tx *raftstore.Tx) error {
		u := &record.User{Meta: record.Meta{ID: bob.UserID}}
		u.Join(ann.WorkspaceID, record.RoleMember)
		raftstore.Put(tx, record.Users, u)
		return nil
	})
	if his, err := ident.CreateToken(t.Context(), bob, in, key); err != nil || his.Key == first.Key {
		t.Fatalf("another member of the workspace with the same idempotency key got %+v, %v", his, err)
	}
	if err := ident.RevokeToken(t.Context(), ann, first.Prefix); err != nil {
		t.Fatal(err)
	}
	if again, err := ident.CreateToken(t.Context(), ann, in, key); err != nil || !reflect.DeepEqual(again, first) {
		t.Fatalf("of a revoked key: %+v, %v", again, err)
	}
}

// A repeated request gets the first answer as long as its idempotency key is kept,
// even after the token has expired.
func TestAnExpiredTokenIsShownToWhoRepeatsItsRequest(t *testing.T) {
	c := testcluster.New(t, 1)
	now := time.Now()
	ident := org.New(core.New(core.Core{
		Store: c.Leader().Store, Sealer: testplane.Sealer{}, Clock: func() time.Time { return now }, Logger: testcluster.Log(),
	}))
	ann, err := ident.SignIn(t.Context(), "iss", "ann", "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	in, key := api.CreateToken{Name: "ci", ExpiresAt: api.NewTime(now.Add(time.Minute))}, testplane.Key("k1", "body")
	first, err := ident.CreateToken(t.Context(), ann, in, key)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if again, err := ident.CreateToken(t.Context(), ann, in, key); err != nil || again.Key != first.Key {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := ident.CreateToken(t.Context(), ann, in, testplane.Key("k2", "body")); apierror.As(err).Message != "invalid expires_at" {
		t.Fatalf("a new one that has expired already: %v", err)
	}
}

func TestAPIKeyPrefix(t *testing.T) {
	good := "brt_abcdefgh_" + strings.Repeat("a", 32)
	if p, ok := org.APIKeyPrefix(good); !ok || p != "abcdefgh" {
		t.Fatal(p, ok)
	}
	for _, bad := range []string{"", "brt_", good[:len(good)-1], good + "a", strings.Replace(good, "_a", "-a", 1), strings.Replace(good, "h_", "hx", 1)} {
		if _, ok := org.APIKeyPrefix(bad); ok {
			t.Errorf("%q was taken for a key", bad)
		}
	}
}
