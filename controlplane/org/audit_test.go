package org_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// told lists the actions that the log of a workspace has, in order.
func (r *orgRig) told(workspace string) (out []string) {
	rows := raftstore.Find(r.Leader().Store.View(), record.AuditEntries, "chain", workspace)
	slices.SortFunc(rows, func(a, b *record.AuditEntry) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	for _, e := range rows {
		out = append(out, e.Action+" "+e.Resource)
	}
	return out
}

func TestLoginsAreTold(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	ws := ann.WorkspaceID
	issued := r.now.Add(-time.Minute)
	r.SignedIn(t.Context(), ann, issued)
	r.SignedIn(t.Context(), ann, issued)                         // the same JWT
	r.SignedIn(t.Context(), ann, issued.Add(-time.Hour))         // an older one
	r.SignedIn(t.Context(), ann, issued.Add(time.Second))        // a client that makes one for each request
	r.SignedIn(t.Context(), core.Caller{UserID: "usr-x"}, r.now) // nobody
	r.SignedIn(t.Context(), ann, r.now.Add(1000*time.Hour))      // the issuer's clock is wrong: it counts as now
	if got := r.told(ws); !slices.Equal(got, []string{"signUp orgs/" + ws, "signIn ", "signIn "}) {
		t.Errorf("%q", got)
	}
	r.now = r.now.Add(2 * time.Minute)
	r.SignedIn(t.Context(), ann, r.now)
	if got := r.told(ws); len(got) != 4 {
		t.Errorf("a wrong clock hid the login after it: %q", got)
	}
}

// Invitations are for addresses: a JWT that was issued earlier brings none back.
func TestOnlyANewerTokenMovesAnAddress(t *testing.T) {
	r := newOrgRig(t, "")
	start := r.now.Add(-time.Hour)
	in := func(email string, issued time.Time, want string) {
		t.Helper()
		c, err := r.SignIn(t.Context(), "iss", "ann", email, issued)
		if err != nil {
			t.Fatal(err)
		}
		if !issued.IsZero() {
			r.SignedIn(t.Context(), c, issued)
		}
		if me, err := r.Me(t.Context(), c); err != nil || me.Email != want {
			t.Errorf("%q of %s: %q, %v, want %q", email, issued, me.Email, err, want)
		}
	}
	in("old@example.com", start, "old@example.com")
	in("new@example.com", start.Add(20*time.Second), "new@example.com")
	before := r.Leader().Store.Status().LastLogIndex
	for range 3 {
		in("old@example.com", start, "new@example.com")
		in("older@example.com", start.Add(20*time.Second), "new@example.com")
		in("other@example.com", time.Time{}, "new@example.com")
		in("new@example.com", start.Add(20*time.Second), "new@example.com")
		in("future@example.com", r.now.Add(time.Second), "new@example.com")
	}
	if n := r.Leader().Store.Status().LastLogIndex - before; n > 2 { // the login of the future counts as one of now
		t.Errorf("%d writes", n)
	}
	r.now = r.now.Add(2 * time.Minute)
	in("latest@example.com", r.now, "latest@example.com")
	ws := r.login("ann").WorkspaceID
	if got := r.told(ws); !slices.Equal(got, []string{"signUp orgs/" + ws, "signIn ", "signIn ", "signIn "}) {
		t.Errorf("%q", got)
	}
}

func TestTheFirstUseOfAKeyIsTold(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	key, err := r.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		rows := raftstore.Find(r.Leader().Store.View(), record.APIKeys, "prefix", key.Prefix)
		r.Used(t.Context(), rows[0])
		r.now = r.now.Add(2 * time.Hour)
	}
	if got := r.told(ann.WorkspaceID)[1:]; !slices.Equal(got, []string{"firstUseOfToken tokens/" + key.Prefix}) {
		t.Errorf("%q", got)
	}
}

// Who makes a key, uses it and revokes it, again and again, does not fill the log.
func TestTheFirstUsesOfManyKeysAreToldInPart(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	r.Update(func(tx *raftstore.Tx) error {
		for i := range 120 {
			raftstore.Put(tx, record.APIKeys, &record.APIKey{
				Meta: record.Meta{ID: fmt.Sprintf("key-%d", i)}, WorkspaceID: ann.WorkspaceID, Prefix: fmt.Sprint(i), CreatedBy: ann.UserID,
			})
		}
		return nil
	})
	for _, k := range raftstore.Find(r.Leader().Store.View(), record.APIKeys, "workspace", ann.WorkspaceID) {
		r.Used(t.Context(), k)
	}
	if got := r.told(ann.WorkspaceID)[1:]; len(got) != 101 || got[100] != "moreActs " {
		t.Errorf("%d entries, the last are %q", len(got), got[max(0, len(got)-2):])
	}
}

// What a request acts on is told by the use case, where the path does not.
func TestActsAreToldInTheWorkspaceThatTheyConcern(t *testing.T) {
	r := newOrgRig(t, "")
	ann, bob := r.login("ann"), r.login("bob")
	act := func(c core.Caller, action string, do func(ctxOf core.Caller, act *core.Act)) {
		c.RequestID = "req"
		do(c, core.NewAct(c, action, ""))
	}
	var invited api.NewInvitation
	act(ann, "inviteMember", func(c core.Caller, a *core.Act) {
		var err error
		if invited, err = r.Invite(core.WithAct(t.Context(), a), c, ann.WorkspaceID, api.Invite{Email: "bob@example.com"}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	})
	act(bob, "acceptInvitation", func(c core.Caller, a *core.Act) {
		if _, err := r.AcceptInvitation(core.WithAct(t.Context(), a), c, invited.Token); err != nil {
			t.Fatal(err)
		}
	})
	act(ann, "createToken", func(c core.Caller, a *core.Act) {
		if _, err := r.CreateToken(core.WithAct(t.Context(), a), c, api.CreateToken{Name: "ci"}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	})
	got := r.told(ann.WorkspaceID)[1:]
	resource := "orgs/" + ann.WorkspaceID + "/invitations/" + invited.ID
	if len(got) != 3 || got[0] != "inviteMember "+resource || got[1] != "acceptInvitation "+resource || len(got[2]) != len("createToken tokens/")+8 {
		t.Errorf("%q", got)
	}
	if got := r.told(bob.WorkspaceID); len(got) != 1 { // that bob signed up
		t.Errorf("%q", got)
	}
	act(ann, "deleteOrg", func(c core.Caller, a *core.Act) {
		if err := r.DeleteOrg(core.WithAct(t.Context(), a), c, ann.WorkspaceID); err != nil {
			t.Fatal(err)
		}
	})
	if got := r.told(ann.WorkspaceID); len(got) != 5 || got[4] != "deleteOrg " {
		t.Errorf("the log of a deleted workspace: %q", got)
	}
}
