package org_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// orgRig is the use cases on one replica, with a clock that tests move.
type orgRig struct {
	*org.Orgs
	*testcluster.Cluster
	t   *testing.T
	now time.Time
}

func newOrgRig(t *testing.T, tier string) *orgRig {
	t.Helper()
	tiers, err := limits.Load("", tier)
	if err != nil {
		t.Fatal(err)
	}
	r := &orgRig{Cluster: testcluster.New(t, 1), t: t, now: time.Now()}
	r.Orgs = org.New(core.New(core.Core{
		Store: r.Leader().Store, Sealer: testplane.Sealer{}, Clock: func() time.Time { return r.now }, Logger: testcluster.Log(), Tiers: tiers,
	}))
	return r
}

func (r *orgRig) login(name string) core.Caller {
	r.t.Helper()
	c, err := r.SignIn(r.t.Context(), "iss", name, name+"@example.com", time.Time{})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// join makes a person a member of a workspace by an invitation.
func (r *orgRig) join(owner core.Caller, name string, role api.Role) core.Caller {
	r.t.Helper()
	who := r.login(name)
	i, err := r.Invite(r.t.Context(), owner, owner.WorkspaceID, api.Invite{Email: name + "@example.com", Role: &role}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.AcceptInvitation(r.t.Context(), who, i.Token); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.SetCurrentOrg(r.t.Context(), who, api.SetCurrentOrg{OrgID: owner.WorkspaceID}); err != nil {
		r.t.Fatal(err)
	}
	return r.login(name)
}

func want(t *testing.T, err error, code apierror.Code, message string) {
	t.Helper()
	if e := apierror.As(err); err == nil || e.Code != code || e.Message != message {
		t.Errorf("%v, want %s %q", err, code, message)
	}
}

func TestAnInvitationWorksOnceForItsAddress(t *testing.T) {
	r := newOrgRig(t, "")
	ann, bob, eve := r.login("ann"), r.login("bob"), r.login("eve")
	ws := ann.WorkspaceID
	i, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: "BOB@example.com", Role: new(api.RoleViewer)}, core.Idempotency{})
	if err != nil || !strings.HasPrefix(i.Token, "binv_") || len(i.Token) != 37 || i.Link != "/v1/invitations/"+i.Token {
		t.Fatalf("%+v, %v", i, err)
	}
	for _, row := range raftstore.All(r.Leader().Store.View(), record.Invitations) {
		if row.ID == i.Token || row.PublicID == i.Token {
			t.Error("the store has the token")
		}
	}
	_, err = r.AcceptInvitation(t.Context(), eve, i.Token)
	want(t, err, apierror.ENotFound, "not found") // meant for another
	_, err = r.AcceptInvitation(t.Context(), bob, i.Token+"x")
	want(t, err, apierror.ENotFound, "not found")
	got, err := r.AcceptInvitation(t.Context(), bob, i.Token)
	if err != nil || got.ID != ws || got.Role != api.RoleViewer {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = r.AcceptInvitation(t.Context(), bob, i.Token)
	want(t, err, apierror.ENotFound, "not found") // used
	_, err = r.Invite(t.Context(), ann, ws, api.Invite{Email: "bob@example.com"}, core.Idempotency{})
	want(t, err, apierror.EConflict, "already a member")

	late, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: "eve@example.com"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error { // as if it were a week ago
		for _, row := range raftstore.Find(tx, record.Invitations, "workspace", ws) {
			c := *row
			c.ExpiresAt = tx.Now()
			raftstore.Put(tx, record.Invitations, &c)
		}
		return nil
	})
	_, err = r.AcceptInvitation(t.Context(), eve, late.Token)
	want(t, err, apierror.ENotFound, "not found")
	again, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: "eve@example.com"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	if list, _, err := r.ListInvitations(t.Context(), ann, ws, core.ListOptions{}); err != nil || len(list) != 1 || list[0].ID != again.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if err := r.RevokeInvitation(t.Context(), ann, ws, again.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.AcceptInvitation(t.Context(), eve, again.Token)
	want(t, err, apierror.ENotFound, "not found")

	for _, bad := range []string{"", "bob", "bob@", "Bob <bob@example.com>", "a@b, c@d", "a@b\nBcc: c@d", strings.Repeat("a", 250) + "@b.example"} {
		_, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: bad}, core.Idempotency{})
		want(t, err, apierror.EInvalid, "invalid email")
	}
	_, err = r.Invite(t.Context(), ann, ws, api.Invite{Email: "x@example.com", Role: new(api.Role("king"))}, core.Idempotency{})
	want(t, err, apierror.EInvalid, "invalid role")
}

func TestRoles(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	adam, mel, vera := r.join(ann, "adam", api.RoleAdmin), r.join(ann, "mel", api.RoleMember), r.join(ann, "vera", api.RoleViewer)
	if vera.WorkspaceID != ws || vera.Role != record.RoleViewer || adam.Role != record.RoleAdmin {
		t.Fatalf("%+v, %+v", vera, adam)
	}
	set := func(by core.Caller, who core.Caller, role api.Role) error {
		_, err := r.PatchMember(t.Context(), by, ws, who.UserID, api.PatchMember{Role: role})
		return err
	}
	want(t, set(mel, vera, api.RoleMember), apierror.EForbidden, "forbidden")
	want(t, set(vera, vera, api.RoleOwner), apierror.EForbidden, "forbidden")
	want(t, set(adam, adam, api.RoleOwner), apierror.EForbidden, "forbidden")
	want(t, set(adam, ann, api.RoleViewer), apierror.EForbidden, "forbidden")
	want(t, set(ann, ann, api.RoleViewer), apierror.EConflict, "last owner")
	want(t, r.RemoveMember(t.Context(), ann, ws, ann.UserID), apierror.EConflict, "last owner")
	want(t, r.RemoveMember(t.Context(), adam, ws, ann.UserID), apierror.EForbidden, "forbidden")
	want(t, r.RemoveMember(t.Context(), mel, ws, vera.UserID), apierror.EForbidden, "forbidden")
	want(t, r.DeleteOrg(t.Context(), adam, ws), apierror.EForbidden, "forbidden")
	want(t, set(ann, r.login("eve"), api.RoleMember), apierror.ENotFound, "not found")
	_, err := r.GetOrg(t.Context(), r.login("eve"), ws)
	want(t, err, apierror.ENotFound, "not found")
	_, err = r.Invite(t.Context(), adam, ws, api.Invite{Email: "o@example.com", Role: new(api.RoleOwner)}, core.Idempotency{})
	want(t, err, apierror.EForbidden, "forbidden")
	if err := set(adam, vera, api.RoleMember); err != nil {
		t.Error(err)
	}
	if err := set(ann, adam, api.RoleOwner); err != nil {
		t.Error(err)
	}
	if err := r.RemoveMember(t.Context(), ann, ws, ann.UserID); err != nil { // another owner is there
		t.Error(err)
	}
	if list, _, err := r.ListMembers(t.Context(), adam, ws, core.ListOptions{}); err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
}

// Two owners who leave at once do not leave a workspace without one.
func TestTheLastOwnersCannotLeaveAtOnce(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	bob := r.join(ann, "bob", api.RoleOwner)
	var all sync.WaitGroup
	for _, c := range []core.Caller{ann, bob} {
		all.Go(func() { _ = r.RemoveMember(t.Context(), c, ann.WorkspaceID, c.UserID) })
	}
	all.Wait()
	if n := len(raftstore.Find(r.Leader().Store.View(), record.Users, "workspace", ann.WorkspaceID)); n != 1 {
		t.Errorf("%d members are left", n)
	}
}

// Who is removed loses access with the next request, also by keys.
func TestAMemberWhoIsRemovedIsOut(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	mel := r.join(ann, "mel", api.RoleMember)
	made, err := r.CreateToken(t.Context(), mel, api.CreateToken{Name: "ci", Scopes: []string{"all"}}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	row := func() *record.APIKey {
		for _, k := range raftstore.Find(r.Leader().Store.View(), record.APIKeys, "prefix", made.Prefix) {
			return k
		}
		return nil
	}
	if role, valid := core.KeyRole(r.Leader().Store.View(), row()); !valid || role != record.RoleMember {
		t.Errorf("%s, %v", role, valid)
	}
	if _, err := r.PatchMember(t.Context(), ann, ws, mel.UserID, api.PatchMember{Role: api.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	kept := row()
	if role, valid := core.KeyRole(r.Leader().Store.View(), kept); !valid || role != record.RoleViewer {
		t.Errorf("after the role: %s, %v", role, valid)
	}
	if err := r.RemoveMember(t.Context(), ann, ws, mel.UserID); err != nil {
		t.Fatal(err)
	}
	if row() != nil {
		t.Error("the key is left")
	}
	if _, valid := core.KeyRole(r.Leader().Store.View(), kept); valid {
		t.Error("the key is valid")
	}
	if now := r.login("mel"); now.WorkspaceID == ws || now.WorkspaceID == "" {
		t.Errorf("%+v", now)
	}
	_, err = r.SetCurrentOrg(t.Context(), mel, api.SetCurrentOrg{OrgID: ws})
	want(t, err, apierror.ENotFound, "not found")
}

// fill gives a workspace more keys and invitations of a person than a transaction deletes.
func (r *orgRig) fill(ws, userID string) {
	r.t.Helper()
	for range 14 {
		r.Update(func(tx *raftstore.Tx) error {
			for range 1000 {
				raftstore.Put(tx, record.APIKeys, &record.APIKey{
					Meta: record.Meta{ID: "key-" + core.RandomText(20)}, WorkspaceID: ws, Prefix: core.RandomText(8), SHA256: make([]byte, 32), CreatedBy: userID,
				})
				if id := core.RandomText(64); id < "n" {
					raftstore.Put(tx, record.Invitations, &record.Invitation{
						Meta: record.Meta{ID: id}, PublicID: "inv-" + core.RandomText(20), WorkspaceID: ws, Email: id + "@example.com",
						Role: record.RoleAdmin, InvitedBy: userID, ExpiresAt: tx.Now().Add(time.Hour),
					})
				}
			}
			return nil
		})
	}
}

// left counts the keys and invitations of a workspace.
func (r *orgRig) left(ws string) (keys, invitations int) {
	view := r.Leader().Store.View()
	return len(raftstore.Find(view, record.APIKeys, "workspace", ws)), len(raftstore.Find(view, record.Invitations, "workspace", ws))
}

func TestWhoMadeManyKeysAndInvitationsIsRemoved(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	mel := r.join(ann, "mel", api.RoleAdmin)
	r.fill(ws, mel.UserID)
	if m, err := r.PatchMember(t.Context(), ann, ws, mel.UserID, api.PatchMember{Role: api.RoleMember}); err != nil || m.Role != api.RoleMember {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, invitations := r.left(ws); invitations != 0 {
		t.Errorf("%d invitations of a member are left", invitations)
	}
	if err := r.RemoveMember(t.Context(), ann, ws, mel.UserID); err != nil {
		t.Fatal(err)
	}
	if keys, _ := r.left(ws); keys != 0 {
		t.Errorf("%d keys of who was removed are left", keys)
	}
	zed := r.join(ann, "zed", api.RoleAdmin)
	r.fill(ws, zed.UserID)
	if err := r.RemoveMember(t.Context(), ann, ws, zed.UserID); err != nil {
		t.Fatal(err)
	}
	if keys, invitations := r.left(ws); keys != 0 || invitations != 0 {
		t.Errorf("%d keys and %d invitations of who was removed are left", keys, invitations)
	}
}

func TestAWorkspaceWithManyKeysAndInvitationsIsDeleted(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	r.fill(ann.WorkspaceID, ann.UserID)
	if err := r.DeleteOrg(t.Context(), ann, ann.WorkspaceID); err != nil {
		t.Fatal(err)
	}
	if keys, invitations := r.left(ann.WorkspaceID); keys != 0 || invitations != 0 {
		t.Errorf("%d keys and %d invitations are left", keys, invitations)
	}
}

func TestAWorkspaceWithManyMembersIsDeleted(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	for part := range 20 {
		r.Update(func(tx *raftstore.Tx) error {
			for n := range 100 {
				u := &record.User{Meta: record.Meta{ID: "usr-" + strconv.Itoa(100*part+n)}, Email: strings.Repeat("x", 240) + "@example.com"}
				u.Join(ws, record.RoleMember)
				raftstore.Put(tx, record.Users, u)
			}
			return nil
		})
	}
	if err := r.DeleteOrg(t.Context(), ann, ws); err != nil {
		t.Fatal(err)
	}
	view := r.Leader().Store.View()
	if _, there := raftstore.Get(view, record.Workspaces, ws); there || len(raftstore.Find(view, record.Users, "workspace", ws)) != 0 {
		t.Error("the workspace, or a member of it, is there")
	}
}

// An invitation is worth what who made it may still give.
func TestAnInvitationNeedsWhoMadeIt(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	for _, c := range []struct {
		name   string
		role   api.Role // of who invites
		gives  api.Role
		after  func(mallory core.Caller) error
		opened bool
	}{
		{"removed", api.RoleAdmin, api.RoleMember, func(m core.Caller) error { return r.RemoveMember(t.Context(), ann, ws, m.UserID) }, false},
		{"demoted", api.RoleAdmin, api.RoleAdmin, func(m core.Caller) error {
			_, err := r.PatchMember(t.Context(), ann, ws, m.UserID, api.PatchMember{Role: api.RoleMember})
			return err
		}, false},
		{"no-owner", api.RoleOwner, api.RoleOwner, func(m core.Caller) error {
			_, err := r.PatchMember(t.Context(), ann, ws, m.UserID, api.PatchMember{Role: api.RoleAdmin})
			return err
		}, false},
		{"admin-still", api.RoleOwner, api.RoleAdmin, func(m core.Caller) error {
			_, err := r.PatchMember(t.Context(), ann, ws, m.UserID, api.PatchMember{Role: api.RoleAdmin})
			return err
		}, true},
	} {
		inviter, friend := r.join(ann, c.name, c.role), r.login(c.name+"-friend")
		i, err := r.Invite(t.Context(), inviter, ws, api.Invite{Email: c.name + "-friend@example.com", Role: &c.gives}, core.Idempotency{})
		if err != nil {
			t.Fatal(c.name, err)
		}
		if err := c.after(inviter); err != nil {
			t.Fatal(c.name, err)
		}
		_, err = r.AcceptInvitation(t.Context(), friend, i.Token)
		if c.opened {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		want(t, err, apierror.ENotFound, "not found")
		if left, _, err := r.ListInvitations(t.Context(), ann, ws, core.ListOptions{}); err != nil || len(left) != 0 {
			t.Errorf("%s: still listed: %+v, %v", c.name, left, err)
		}
	}
}

func TestOrgAndSeatLimits(t *testing.T) {
	r := newOrgRig(t, "free")
	ann := r.login("ann")
	_, err := r.CreateOrg(t.Context(), ann, api.CreateOrg{Name: "second"}, core.Idempotency{})
	want(t, err, apierror.EQuota, "org limit reached: your free plan allows 1 org(s). Upgrade to create more.")
	if _, err := r.PatchWorkspace(t.Context(), ann.WorkspaceID, api.PatchWorkspace{Tier: new("pro")}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 9 {
		all.Go(func() { _, _ = r.CreateOrg(t.Context(), ann, api.CreateOrg{Name: "more"}, core.Idempotency{}) })
	}
	all.Wait()
	list, _, err := r.ListOrgs(t.Context(), ann, core.ListOptions{})
	if err != nil || len(list) != 5 {
		t.Fatalf("%d orgs, %v", len(list), err)
	}
	for _, o := range list {
		if o.Name == "second" || o.Name == "more" && o.Tier != "free" {
			t.Errorf("%+v", o)
		}
	}
	free := list[0].ID
	for _, name := range []string{"a", "b"} {
		if _, err := r.Invite(t.Context(), ann, free, api.Invite{Email: name + "@example.com"}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.Invite(t.Context(), ann, free, api.Invite{Email: "c@example.com"}, core.Idempotency{})
	want(t, err, apierror.EQuota, "seat limit reached: your free plan allows 3 member(s). Upgrade to invite more.")
	if _, err := r.Invite(t.Context(), ann, free, api.Invite{Email: "B@example.com"}, core.Idempotency{}); err != nil {
		t.Errorf("the same address again: %v", err)
	}
	for range 10 {
		if _, err := r.CreateWorkspaceToken(t.Context(), free, api.CreateToken{Name: "ci"}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.CreateWorkspaceToken(t.Context(), free, api.CreateToken{Name: "ci"}, core.Idempotency{})
	want(t, err, apierror.ERateLimited, "max keys reached")
}

func TestAnOrganizationIsDeletedWhenItIsEmpty(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	o, err := r.CreateOrg(t.Context(), ann, api.CreateOrg{Name: "Research"}, core.Idempotency{})
	if err != nil || o.Role != api.RoleOwner || o.Tier != "unlimited" {
		t.Fatalf("%+v, %v", o, err)
	}
	if renamed, err := r.PatchOrg(t.Context(), ann, o.ID, api.PatchOrg{Name: "R&D"}); err != nil || renamed.Name != "R&D" {
		t.Errorf("%+v, %v", renamed, err)
	}
	for _, bad := range []string{"a\x00", strings.Repeat("x", 101), "\xff"} {
		_, err := r.PatchOrg(t.Context(), ann, o.ID, api.PatchOrg{Name: bad})
		want(t, err, apierror.EInvalid, "invalid name")
	}
	_, err = r.CreateOrg(t.Context(), ann, api.CreateOrg{}, core.Idempotency{})
	want(t, err, apierror.EInvalid, "name is required")
	key, err := r.CreateWorkspaceToken(t.Context(), o.ID, api.CreateToken{Name: "ci"}, testplane.Key("k", "b"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.CreateWorkspaceToken(t.Context(), o.ID, api.CreateToken{Name: "ci"}, testplane.Key("k", "b")); err != nil || again.Key != key.Key {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "v"}, WorkspaceID: o.ID, Name: "v", Status: record.ResourceReady})
		return nil
	})
	want(t, r.DeleteOrg(t.Context(), ann, o.ID), apierror.EConflict, "organization is not empty")
	if _, err := r.Invite(t.Context(), ann, o.ID, api.Invite{Email: "bob@example.com"}, core.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Volumes, "v")
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we-1"}, WorkspaceID: o.ID})
		raftstore.Put(tx, record.GitInstallations, &record.GitInstallation{Meta: record.Meta{ID: "7"}, WorkspaceID: o.ID})
		raftstore.Put(tx, record.RepoEnvs, &record.RepoEnv{Meta: record.Meta{ID: o.ID + "/9"}, WorkspaceID: o.ID, RepoID: "9"})
		return nil
	})
	if err := r.DeleteOrg(t.Context(), ann, o.ID); err != nil {
		t.Fatal(err)
	}
	view := r.Leader().Store.View()
	for what, n := range map[string]int{
		"keys": len(raftstore.Find(view, record.APIKeys, "workspace", o.ID)), "people": len(raftstore.Find(view, record.Users, "workspace", o.ID)),
		"invitations": len(raftstore.Find(view, record.Invitations, "workspace", o.ID)), "endpoints": len(raftstore.Find(view, record.WebhookEndpoints, "workspace", o.ID)),
		"installations": len(raftstore.Find(view, record.GitInstallations, "workspace", o.ID)), "preview environments": len(raftstore.Find(view, record.RepoEnvs, "workspace", o.ID)),
	} {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
	if me, err := r.Me(t.Context(), ann); err != nil || len(me.Orgs) != 1 || me.CurrentOrg == nil {
		t.Errorf("%+v, %v", me, err)
	}
}

// Who deletes a workspace gets no new credit by it in the same month, and no way out of a
// suspension.
func TestADeletedWorkspaceCountsInItsMonth(t *testing.T) {
	r := newOrgRig(t, "free")
	ann := r.login("ann")
	suspend := func(id string, yes bool) {
		t.Helper()
		if _, err := r.PatchWorkspace(t.Context(), id, api.PatchWorkspace{Suspended: &yes}); err != nil {
			t.Fatal(err)
		}
	}
	suspend(ann.WorkspaceID, true)
	want(t, r.DeleteOrg(t.Context(), ann, ann.WorkspaceID), apierror.EForbidden, "account suspended")
	suspend(ann.WorkspaceID, false)

	// One that has used nothing makes room.
	if err := r.DeleteOrg(t.Context(), ann, ann.WorkspaceID); err != nil {
		t.Fatal(err)
	}
	o, err := r.CreateOrg(t.Context(), ann, api.CreateOrg{Name: "first"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	month := record.MonthOf(r.now)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Usages, &record.Usage{
			Meta: record.Meta{ID: record.UsageID(o.ID, month)}, WorkspaceID: o.ID, Month: month, Lines: []record.UsageLine{{Product: "sandbox", MicroUSD: 1}},
		})
		return nil
	})
	if err := r.DeleteOrg(t.Context(), ann, o.ID); err != nil {
		t.Fatal(err)
	}
	again := func() error {
		_, err := r.CreateOrg(t.Context(), ann, api.CreateOrg{Name: "again"}, core.Idempotency{})
		return err
	}
	want(t, again(), apierror.EQuota, "org limit reached: your free plan allows 1 org(s). Upgrade to create more.")
	r.now = limits.NextMonth(r.now)
	if err := again(); err != nil {
		t.Errorf("in the next month: %v", err)
	}
}

func TestOperatorsChangeWorkspaces(t *testing.T) {
	r := newOrgRig(t, "")
	w, err := r.CreateWorkspace(t.Context(), api.CreateWorkspace{Name: "ci", Tier: "free", Quotas: &api.Quotas{Sandboxes: new(40), CPU: new(-1)}}, core.Idempotency{})
	if err != nil || w.Tier != "free" || *w.Limits.Sandboxes != 40 || *w.Limits.CPU != -1 || *w.Limits.Keys != 10 || w.Quotas.Keys != nil {
		t.Fatalf("%+v, %v", w, err)
	}
	w, err = r.PatchWorkspace(t.Context(), w.ID, api.PatchWorkspace{Suspended: new(true), SubscriptionStatus: new("past_due"), Quotas: &api.Quotas{}})
	if err != nil || !w.Suspended || w.SubscriptionStatus != "past_due" || w.Tier != "free" || *w.Limits.Sandboxes != 10 {
		t.Fatalf("%+v, %v", w, err)
	}
	if list, _, err := r.ListWorkspaces(t.Context(), core.ListOptions{}); err != nil || len(list) != 1 || list[0].ID != w.ID {
		t.Errorf("%+v, %v", list, err)
	}
	for message, in := range map[string]api.PatchWorkspace{
		"unknown tier":                {Tier: new("gold")},
		"invalid quotas":              {Quotas: &api.Quotas{Keys: new(-2)}},
		"invalid subscription_status": {SubscriptionStatus: new("paid")},
	} {
		_, err := r.PatchWorkspace(t.Context(), w.ID, in)
		want(t, err, apierror.EInvalid, message)
	}
	_, err = r.PatchWorkspace(t.Context(), "ws-none", api.PatchWorkspace{})
	want(t, err, apierror.ENotFound, "not found")
	_, err = r.CreateWorkspaceToken(t.Context(), "ws-none", api.CreateToken{Name: "ci"}, core.Idempotency{})
	want(t, err, apierror.ENotFound, "not found")
	_, err = r.CreateWorkspaceToken(t.Context(), w.ID, api.CreateToken{Name: "ci", Scopes: []string{"everything"}}, core.Idempotency{})
	want(t, err, apierror.EInvalid, "invalid scopes")
}

// The use of a key is written at most once an hour.
func TestTheLastUseOfAKey(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	made, err := r.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	row := func() *record.APIKey {
		return raftstore.Find(r.Leader().Store.View(), record.APIKeys, "prefix", made.Prefix)[0]
	}
	use := func() uint64 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { r.Used(t.Context(), row()) })
		}
		all.Wait()
		return row().ModifyIndex
	}
	first := use()
	if got := row().LastUsedAt; !got.Equal(r.now) {
		t.Errorf("%s, want %s", got, r.now)
	}
	r.now = r.now.Add(59 * time.Minute)
	if again := use(); again != first {
		t.Error("it was written again")
	}
	r.now = r.now.Add(time.Minute)
	if again := use(); again == first {
		t.Error("it was not written after an hour")
	}
	if list, _, err := r.ListTokens(t.Context(), ann, core.ListOptions{}); err != nil || list[0].LastUsedAt == nil || list[0].Scopes[0] != "all" {
		t.Errorf("%+v, %v", list, err)
	}
}

// The plan counts when an invitation is accepted, not only when it was made.
// A plan without a limit of seats does not fill the store with invitations.
func TestOpenInvitationsAreBounded(t *testing.T) {
	r := newOrgRig(t, limits.Unlimited)
	ann := r.login("ann")
	r.invite(ann, "first", api.RoleMember)
	for part := range 10 {
		r.Update(func(tx *raftstore.Tx) error {
			for n := range 100 {
				name := strconv.Itoa(100*part + n)
				raftstore.Put(tx, record.Invitations, &record.Invitation{
					Meta: record.Meta{ID: name}, PublicID: "inv-" + name, WorkspaceID: ann.WorkspaceID, Email: name + "@example.com", Role: record.RoleMember,
					InvitedBy: ann.UserID, ExpiresAt: r.now.Add(time.Hour),
				})
			}
			return nil
		})
	}
	_, err := r.Invite(t.Context(), ann, ann.WorkspaceID, api.Invite{Email: "more@example.com"}, core.Idempotency{})
	want(t, err, apierror.ERateLimited, "max invitations reached")
}

func TestASeatIsTakenAtAcceptance(t *testing.T) {
	r := newOrgRig(t, "free")
	ann, bob, cid := r.login("ann"), r.login("bob"), r.login("cid")
	ws := ann.WorkspaceID
	tokens := map[string]string{}
	for _, name := range []string{"bob", "cid"} {
		i, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: name + "@example.com"}, core.Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		tokens[name] = i.Token
	}
	members := func(n int) {
		t.Helper()
		if _, err := r.PatchWorkspace(t.Context(), ws, api.PatchWorkspace{Quotas: &api.Quotas{Members: new(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	members(2)
	if _, err := r.AcceptInvitation(t.Context(), bob, tokens["bob"]); err != nil {
		t.Fatalf("the last seat: %v", err)
	}
	_, err := r.AcceptInvitation(t.Context(), cid, tokens["cid"])
	want(t, err, apierror.EQuota, "seat limit reached: your free plan allows 2 member(s). Upgrade to invite more.")
	if people, _, err := r.ListMembers(t.Context(), ann, ws, core.ListOptions{}); err != nil || len(people) != 2 {
		t.Errorf("%d members, %v", len(people), err)
	}
	// The invitation is not used up by that.
	members(3)
	if _, err := r.AcceptInvitation(t.Context(), cid, tokens["cid"]); err != nil {
		t.Errorf("after an upgrade: %v", err)
	}
	// Who is a member already needs no seat.
	i, err := r.Invite(t.Context(), ann, ws, api.Invite{Email: "dan@example.com"}, core.Idempotency{})
	want(t, err, apierror.EQuota, "seat limit reached: your free plan allows 3 member(s). Upgrade to invite more.")
	if i.Token != "" {
		t.Error("an invitation beyond the seats")
	}
}
