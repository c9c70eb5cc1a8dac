package org_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

const freeOrgLimit = "org limit reached: your free plan allows 1 org(s). Upgrade to create more."

// invite makes an invitation.
func (r *orgRig) invite(owner core.Caller, name string, role api.Role) string {
	r.t.Helper()
	i, err := r.Invite(r.t.Context(), owner, owner.WorkspaceID, api.Invite{Email: name + "@example.com", Role: &role}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return i.Token
}

// uses writes down that a workspace has used something this month.
func (r *orgRig) uses(id string) {
	month := record.MonthOf(r.now)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Usages, &record.Usage{
			Meta: record.Meta{ID: record.UsageID(id, month)}, WorkspaceID: id, Month: month, Lines: []record.UsageLine{{Product: "sandbox", MicroUSD: 1}},
		})
		return nil
	})
}

func (r *orgRig) another(c core.Caller) error {
	_, err := r.CreateOrg(r.t.Context(), c, api.CreateOrg{Name: "another"}, core.Idempotency{})
	return err
}

// A person's row names all organizations of the person, so no tier allows any number.
func TestHowManyOrganizationsAPersonOwnsIsBoundByEveryPlan(t *testing.T) {
	r := newOrgRig(t, "unlimited")
	ann := r.login("ann")
	r.Update(func(tx *raftstore.Tx) error {
		u, _ := raftstore.Get(tx, record.Users, ann.UserID)
		u = u.Clone()
		for i := range 998 {
			w := &record.Workspace{Meta: record.Meta{ID: fmt.Sprintf("ws-%d", i)}, Name: "x"}
			raftstore.Put(tx, record.Workspaces, w)
			u.Join(w.ID, record.RoleOwner)
		}
		raftstore.Put(tx, record.Users, u)
		return nil
	})
	if err := r.another(ann); err != nil {
		t.Errorf("the thousandth: %v", err)
	}
	want(t, r.another(ann), apierror.EQuota, "org limit reached: your unlimited plan allows 1000 org(s). Upgrade to create more.")
}

// The plan bounds the organizations that a person owns, however the person comes by them.
func TestWhoBecomesAnOwnerIsBoundByThePlan(t *testing.T) {
	r := newOrgRig(t, "free")
	ann, bob := r.login("ann"), r.login("bob")
	ws := ann.WorkspaceID
	asOwner := r.invite(ann, "bob", api.RoleOwner)
	_, err := r.AcceptInvitation(t.Context(), bob, asOwner)
	want(t, err, apierror.EQuota, freeOrgLimit)

	bob = r.join(ann, "bob", api.RoleMember) // as long as it owns nothing, that is free
	makeOwner := func() error {
		_, err := r.PatchMember(t.Context(), ann, ws, bob.UserID, api.PatchMember{Role: api.RoleOwner})
		return err
	}
	want(t, makeOwner(), apierror.EQuota, freeOrgLimit)
	if _, err := r.PatchMember(t.Context(), ann, ws, ann.UserID, api.PatchMember{Role: api.RoleOwner}); err != nil {
		t.Errorf("an owner stays one: %v", err)
	}

	// The tier of the organization itself counts.
	if _, err := r.PatchWorkspace(t.Context(), ws, api.PatchWorkspace{Tier: new("pro")}); err != nil {
		t.Fatal(err)
	}
	if err := makeOwner(); err != nil {
		t.Errorf("of one whose plan allows it: %v", err)
	}
	cid := r.login("cid")
	if _, err := r.AcceptInvitation(t.Context(), cid, r.invite(ann, "cid", api.RoleOwner)); err != nil {
		t.Errorf("of one whose plan allows it: %v", err)
	}
}

// Who hands an organization over that has used something of the month, or is suspended,
// gets no other in its place in that month.
func TestWhoGivesUpAnOrganizationHasHadIt(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		had  func(r *orgRig, id string)
		free bool // to create another
	}{
		"nothing": {func(*orgRig, string) {}, true},
		"usage":   {(*orgRig).uses, false},
		"suspended": {func(r *orgRig, id string) {
			if _, err := r.PatchWorkspace(r.t.Context(), id, api.PatchWorkspace{Suspended: new(true)}); err != nil {
				r.t.Fatal(err)
			}
		}, false},
		"something of which nothing is written down": {func(r *orgRig, id string) {
			r.Update(func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: "box"}, WorkspaceID: id, Status: record.SandboxStarting})
				return nil
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for how, leave := range map[string]func(r *orgRig, ann, bob core.Caller) error{
				"left": func(r *orgRig, ann, _ core.Caller) error {
					return r.RemoveMember(r.t.Context(), ann, ann.WorkspaceID, ann.UserID)
				},
				"demoted": func(r *orgRig, ann, bob core.Caller) error {
					_, err := r.PatchMember(r.t.Context(), bob, ann.WorkspaceID, ann.UserID, api.PatchMember{Role: api.RoleMember})
					return err
				},
			} {
				r := newOrgRig(t, "free")
				ann, bob := r.login("ann"), r.login("bob")
				if err := r.DeleteOrg(t.Context(), bob, bob.WorkspaceID); err != nil { // so that bob may own ann's
					t.Fatal(err)
				}
				bob = r.join(ann, "bob", api.RoleOwner)
				c.had(r, ann.WorkspaceID)
				if err := leave(r, ann, bob); err != nil {
					t.Fatal(how, err)
				}
				if err := r.another(ann); (err == nil) != c.free {
					t.Errorf("%s: another in the same month: %v", how, err)
				}
				r.now = limits.NextMonth(r.now)
				if err := r.another(ann); !c.free && err != nil {
					t.Errorf("%s: in the next month: %v", how, err)
				}
			}
		})
	}
}

// What an organization has used counts from its first second, and not only once its hosts
// have told it.
func TestADeletedWorkspaceCountsBeforeItsUseIsWrittenDown(t *testing.T) {
	tier.Slow(t)
	for name, had := range map[string]func(r *orgRig, tx *raftstore.Tx, id string){
		"a box that has ended": func(_ *orgRig, tx *raftstore.Tx, id string) {
			raftstore.Put(tx, record.EndedBoxes, &record.EndedBox{Meta: record.Meta{ID: "box"}, WorkspaceID: id, HostID: "h1", CPU: 16})
		},
		"processor time that has no price": func(r *orgRig, tx *raftstore.Tx, id string) {
			month := record.MonthOf(r.now)
			raftstore.Put(tx, record.Usages, &record.Usage{
				Meta: record.Meta{ID: record.UsageID(id, month)}, WorkspaceID: id, Month: month,
				Lines: []record.UsageLine{{Product: "sandbox", Resource: record.ResourceCPU, Amount: 1000}},
			})
		},
		"creates of this hour": func(r *orgRig, tx *raftstore.Tx, id string) {
			raftstore.Put(tx, record.WorkspaceCreates, &record.Creates{Meta: record.Meta{ID: id}, Seconds: limits.Hour(nil).Add(r.now, 1).Bytes()})
		},
	} {
		r := newOrgRig(t, "free")
		ann := r.login("ann")
		r.Update(func(tx *raftstore.Tx) error {
			had(r, tx, ann.WorkspaceID)
			return nil
		})
		if err := r.DeleteOrg(t.Context(), ann, ann.WorkspaceID); err != nil {
			t.Fatal(err)
		}
		if err := r.another(ann); err == nil || apierror.As(err).Message != freeOrgLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Of another workspace, or long ago: that does not count.
	r := newOrgRig(t, "free")
	ann := r.login("ann")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.EndedBoxes, &record.EndedBox{Meta: record.Meta{ID: "box"}, WorkspaceID: "ws-other", HostID: "h1"})
		raftstore.Put(tx, record.WorkspaceCreates, &record.Creates{Meta: record.Meta{ID: ann.WorkspaceID}, Seconds: limits.Hour(nil).Add(r.now.Add(-2*time.Hour), 1).Bytes()})
		return nil
	})
	if err := r.DeleteOrg(t.Context(), ann, ann.WorkspaceID); err != nil {
		t.Fatal(err)
	}
	if err := r.another(ann); err != nil {
		t.Errorf("one that has used nothing: %v", err)
	}
}
