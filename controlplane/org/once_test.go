package org_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

func once(key, body string) core.Idempotency {
	return core.Idempotency{Key: key, BodySHA256: []byte(body)}
}

// twice makes a create twice with one key, and once with another body.
func twice[T comparable](t *testing.T, create func(i core.Idempotency) (T, error)) T {
	t.Helper()
	first, err := create(once("k", "body"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := create(once("k", "body")); err != nil || again != first {
		t.Errorf("again: %+v, %v; the first was %+v", again, err, first)
	}
	_, err = create(once("k", "another"))
	want(t, err, apierror.EConflict, "idempotency key reused")
	return first
}

func TestAnOrgIsMadeOnceForAKey(t *testing.T) {
	r := newOrgRig(t, "team")
	ann, bob := r.login("ann"), r.login("bob")
	create := func(c core.Caller) func(i core.Idempotency) (string, error) {
		return func(i core.Idempotency) (string, error) {
			o, err := r.CreateOrg(t.Context(), c, api.CreateOrg{Name: "second"}, i)
			return o.ID, err
		}
	}
	id := twice(t, create(ann))
	if _, err := r.SetCurrentOrg(t.Context(), ann, api.SetCurrentOrg{OrgID: id}); err != nil {
		t.Fatal(err)
	}
	if again := twice(t, create(r.login("ann"))); again != id {
		t.Errorf("in another workspace the key made %s, too", again)
	}
	if theirs := twice(t, create(bob)); theirs == id {
		t.Error("another person's key is the same")
	}
	if err := r.DeleteOrg(t.Context(), r.login("ann"), id); err != nil {
		t.Fatal(err)
	}
	if again := twice(t, create(r.login("ann"))); again != id {
		t.Errorf("once it is deleted, the key made %s", again)
	}
}

func TestAWorkspaceIsMadeOnceForAKey(t *testing.T) {
	r := newOrgRig(t, "")
	twice(t, func(i core.Idempotency) (string, error) {
		w, err := r.CreateWorkspace(t.Context(), api.CreateWorkspace{Name: "ci", Tier: "free"}, i)
		return w.ID, err
	})
	all, _, err := r.ListWorkspaces(t.Context(), core.ListOptions{Limit: core.MaxLimit})
	if err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAnInvitationIsMadeOnceForAKey(t *testing.T) {
	r := newOrgRig(t, "team")
	ann := r.login("ann")
	adam := r.join(ann, "adam", api.RoleAdmin)
	invite := func(c core.Caller) func(i core.Idempotency) (api.NewInvitation, error) {
		return func(i core.Idempotency) (api.NewInvitation, error) {
			return r.Invite(t.Context(), c, ann.WorkspaceID, api.Invite{Email: "bob@example.com"}, i)
		}
	}
	first := twice(t, invite(ann))
	if _, err := r.AcceptInvitation(t.Context(), r.login("bob"), first.Token); err != nil {
		t.Fatal(err)
	}
	if again := twice(t, invite(ann)); again != first {
		t.Errorf("once it is accepted: %+v, and it was %+v", again, first)
	}
	_, err := invite(adam)(once("k", "body"))
	want(t, err, apierror.EConflict, "already a member")
	_, err = invite(r.login("eve"))(once("k", "body"))
	want(t, err, apierror.ENotFound, "not found")
}
