package org

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// invitationKept is how long an invitation can be accepted.
const invitationKept = 7 * 24 * time.Hour

// maxInvitations limits those of a workspace that are open, also where its plan has any number
// of seats.
const maxInvitations = 1000

// The token of an invitation is binv_ and 160 random bits.
const (
	invitationBegin  = "binv_"
	invitationRandom = 32
)

func invitationID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func validRole(r api.Role) error {
	switch r {
	case api.RoleOwner, api.RoleAdmin, api.RoleMember, api.RoleViewer:
		return nil
	}
	return apierror.Invalid("invalid role", "role is owner, admin, member or viewer")
}

// member shows a user as a member of a workspace.
func member(u *record.User, orgID string) api.Member {
	role, _ := u.RoleIn(orgID)
	return api.Member{UserID: u.ID, Email: u.Email, Role: api.Role(role)}
}

// ListMembers lists the people of a workspace, newest first.
func (s *Orgs) ListMembers(ctx context.Context, c core.Caller, orgID string, o core.ListOptions) (page []api.Member, next string, err error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, _, err := acting(view, c, orgID, core.Read); err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Users, "workspace", orgID), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, func(u *record.User) api.Member { return member(u, orgID) }), next, nil
}

// Invite creates an invitation. Its token is only in the answer.
func (s *Orgs) Invite(ctx context.Context, c core.Caller, orgID string, in api.Invite, i core.Idempotency) (api.NewInvitation, error) {
	role := api.RoleMember
	if in.Role != nil {
		role = *in.Role
	}
	if err := validRole(role); err != nil {
		return api.NewInvitation{}, err
	}
	address, err := mail.ParseAddress(in.Email)
	if err != nil || address.Address != in.Email || len(in.Email) > 255 {
		return api.NewInvitation{}, apierror.Invalid("invalid email", "want an address such as ada@example.com")
	}
	row := record.Invitation{WorkspaceID: orgID, Email: in.Email, Role: record.Role(role), InvitedBy: c.UserID}
	// The person is part of the route, as an earlier version has it.
	return core.Once(ctx, s.core, core.Caller{WorkspaceID: orgID, UserID: c.UserID}, "POST /v1/orgs/{id}/members "+c.UserID, i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.NewInvitation, error) {
			return s.sameInvitation(view, c, orgID, key)
		},
		func(keyID string) (api.NewInvitation, error) { return s.invite(ctx, c, row, i, keyID) })
}

// sameInvitation returns the result of the first request with the same idempotency key, by
// an earlier version.
func (s *Orgs) sameInvitation(view *raftstore.Snapshot, c core.Caller, orgID string, key *record.IdempotencyKey) (api.NewInvitation, error) {
	if _, _, err := acting(view, c, orgID, core.Manage); err != nil {
		return api.NewInvitation{}, err
	}
	row, ok := raftstore.Get(view, record.Invitations, key.ResourceID)
	if !ok || row.WorkspaceID != orgID {
		return api.NewInvitation{}, core.ErrKeyGone("invitation")
	}
	token, err := s.core.OpenAnswer(key.Result, invitationContext(row.ID))
	if err != nil {
		return api.NewInvitation{}, apierror.As(err)
	}
	return newInvitation(row, token), nil
}

func invitationContext(id string) string { return "invitation/" + id }

func newInvitation(row *record.Invitation, token string) api.NewInvitation {
	return api.NewInvitation{Invitation: invitation(row), Token: token, Link: "/v1/invitations/" + token}
}

func (s *Orgs) invite(ctx context.Context, c core.Caller, row record.Invitation, key core.Idempotency, keyID string) (out api.NewInvitation, err error) {
	orgID := row.WorkspaceID
	token := invitationBegin + core.RandomText(invitationRandom)
	row.ID, row.PublicID = invitationID(token), "inv-"+core.RandomText(20)
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w, u, err := acting(tx, c, orgID, core.Manage)
		if err != nil {
			return err
		}
		if err := mayGive(u, orgID, row.Role); err != nil {
			return err
		}
		people := raftstore.Find(tx, record.Users, "workspace", orgID)
		if slices.ContainsFunc(people, func(u *record.User) bool { return strings.EqualFold(u.Email, row.Email) }) {
			return &apierror.Error{Code: apierror.EConflict, Message: "already a member"}
		}
		open := 0
		for _, i := range raftstore.Find(tx, record.Invitations, "workspace", orgID) {
			switch {
			case strings.EqualFold(i.Email, row.Email): // the new one takes its place
				raftstore.Delete(tx, record.Invitations, i.ID)
			case tx.Now().Before(i.ExpiresAt):
				open++
			}
		}
		if err := s.hasSeat(w, len(people)+open); err != nil {
			return err
		}
		if open >= maxInvitations {
			return &apierror.Error{Code: apierror.ERateLimited, Message: "max invitations reached", Fields: map[string]any{"max": maxInvitations, "active": open}}
		}
		n := row
		n.ExpiresAt = tx.Now().Add(invitationKept)
		raftstore.Put(tx, record.Invitations, &n)
		core.Concerns(ctx, "orgs/"+orgID+"/invitations/"+n.PublicID)
		out = newInvitation(&n, token)
		return core.ClaimAnswer(tx, s.core, key, keyID, n.ID, out)
	})
	return out, err
}

// hasSeat refuses one more than those who have a seat, if the plan does not allow it.
func (s *Orgs) hasSeat(w *record.Workspace, taken int) error {
	most, limited := s.core.Tiers.Members(w)
	if !limited || taken < most {
		return nil
	}
	return &apierror.Error{
		Code:    apierror.EQuota,
		Message: fmt.Sprintf("seat limit reached: your %s plan allows %d member(s). Upgrade to invite more.", s.core.Tiers.Name(w), most),
	}
}

// mayGive refuses what concerns owners to everybody else.
func mayGive(u *record.User, orgID string, roles ...record.Role) error {
	if mine, _ := u.RoleIn(orgID); mine != record.RoleOwner && slices.Contains(roles, record.RoleOwner) {
		return &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: "this needs the role owner"}
	}
	return nil
}

func invitation(i *record.Invitation) api.Invitation {
	return api.Invitation{
		ID: i.PublicID, OrgID: i.WorkspaceID, Email: i.Email, Role: api.Role(i.Role), CreatedAt: api.Time{Time: i.CreatedAt}, ExpiresAt: api.Time{Time: i.ExpiresAt},
	}
}

// ListInvitations lists the invitations that can still be accepted, newest first.
func (s *Orgs) ListInvitations(ctx context.Context, c core.Caller, orgID string, o core.ListOptions) (page []api.Invitation, next string, err error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, _, err := acting(view, c, orgID, core.Manage); err != nil {
		return nil, "", err
	}
	now := s.core.Clock()
	open := slices.DeleteFunc(raftstore.Find(view, record.Invitations, "workspace", orgID), func(i *record.Invitation) bool { return !now.Before(i.ExpiresAt) })
	rows, next, err := core.Paginate(open, o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, invitation), next, nil
}

// RevokeInvitation withdraws an invitation.
func (s *Orgs) RevokeInvitation(ctx context.Context, c core.Caller, orgID, id string) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if _, _, err := acting(tx, c, orgID, core.Manage); err != nil {
			return err
		}
		for _, i := range raftstore.Find(tx, record.Invitations, "workspace", orgID) {
			if i.PublicID == id {
				raftstore.Delete(tx, record.Invitations, i.ID)
				return nil
			}
		}
		return apierror.NotFound()
	})
}

// AcceptInvitation makes the caller a member, if the invitation is theirs: a link that
// went astray is of no use to others.
func (s *Orgs) AcceptInvitation(ctx context.Context, c core.Caller, token string) (out api.Org, err error) {
	if err := c.RequireJWT(); err != nil {
		return api.Org{}, err
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		i, ok := raftstore.Get(tx, record.Invitations, invitationID(token))
		if !ok || !tx.Now().Before(i.ExpiresAt) {
			return apierror.NotFound()
		}
		u, known := raftstore.Get(tx, record.Users, c.UserID)
		w, there := raftstore.Get(tx, record.Workspaces, i.WorkspaceID)
		if !known || !there || !strings.EqualFold(u.Email, i.Email) || !standsFor(tx, i) {
			return apierror.NotFound()
		}
		_, already := u.RoleIn(w.ID)
		if !already { // the plan may have changed since the invitation
			if err := s.hasSeat(w, len(raftstore.Find(tx, record.Users, "workspace", w.ID))); err != nil {
				return err
			}
			if i.Role == record.RoleOwner {
				if err := s.mayBecomeOwner(tx, u, w); err != nil {
					return err
				}
			}
		}
		raftstore.Delete(tx, record.Invitations, i.ID)
		core.InWorkspace(ctx, w.ID)
		core.Concerns(ctx, "orgs/"+w.ID+"/invitations/"+i.PublicID)
		if !already {
			n := u.Clone()
			n.Join(w.ID, i.Role)
			raftstore.Put(tx, record.Users, n)
			u = n
		}
		out = s.org(w, u)
		return nil
	})
	return out, err
}

// standsFor reports whether who made an invitation could still make it. Otherwise who was
// removed or lost a role would come back by what they left behind.
func standsFor(r raftstore.Reader, i *record.Invitation) bool {
	u, ok := raftstore.Get(r, record.Users, i.InvitedBy)
	if !ok {
		return false
	}
	role, _ := u.RoleIn(i.WorkspaceID)
	return core.Authorize(core.Caller{WorkspaceID: i.WorkspaceID, UserID: u.ID, Role: role}, core.Manage, itself) == nil &&
		mayGive(u, i.WorkspaceID, i.Role) == nil
}

// withdraw deletes the invitations to a workspace that nobody stands for any more, so
// that they take no seats, and reports whether there are more of them.
func withdraw(tx *raftstore.Tx, orgID string) (more bool) {
	return drop(tx, nil, slices.DeleteFunc(raftstore.Find(tx, record.Invitations, "workspace", orgID), func(i *record.Invitation) bool { return standsFor(tx, i) }))
}

// rowsAtOnce limits the keys and invitations that one transaction deletes: a tier need not
// limit how many a workspace has.
const rowsAtOnce = 1000

// drop deletes keys and invitations, and reports whether there are more than one transaction
// deletes.
func drop(tx *raftstore.Tx, keys []*record.APIKey, invitations []*record.Invitation) (more bool) {
	n := min(len(keys), rowsAtOnce)
	for _, k := range keys[:n] {
		raftstore.Delete(tx, record.APIKeys, k.ID)
	}
	for _, i := range invitations[:min(len(invitations), rowsAtOnce-n)] {
		raftstore.Delete(tx, record.Invitations, i.ID)
	}
	return len(keys)+len(invitations) > rowsAtOnce
}

// PatchMember changes a member's role. Invitations that the member may not give any more
// end.
func (s *Orgs) PatchMember(ctx context.Context, c core.Caller, orgID, userID string, in api.PatchMember) (out api.Member, err error) {
	if err := validRole(in.Role); err != nil {
		return api.Member{}, err
	}
	more := false
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w, me, err := acting(tx, c, orgID, core.Manage)
		if err != nil {
			return err
		}
		u, role, err := memberOf(tx, orgID, userID)
		if err != nil {
			return err
		}
		next := record.Role(in.Role)
		if err := cmp.Or(mayGive(me, orgID, role, next), keepsOwner(tx, orgID, userID, next)); err != nil {
			return err
		}
		n := u.Clone()
		switch {
		case next == record.RoleOwner:
			if err := s.mayBecomeOwner(tx, u, w); err != nil {
				return err
			}
		case role == record.RoleOwner:
			s.disown(n, s.spent(tx, w))
		}
		n.Join(orgID, next)
		raftstore.Put(tx, record.Users, n)
		more = withdraw(tx, orgID)
		out = member(n, orgID)
		return nil
	})
	for err == nil && more {
		err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
			more = withdraw(tx, orgID)
			return nil
		})
	}
	return out, err
}

// spent reports whether who owns a workspace no longer has had something of it: it has used
// something of this month, perhaps only now, or is suspended, which nobody evades by handing
// it over.
func (s *Orgs) spent(tx *raftstore.Tx, w *record.Workspace) bool {
	return w.Suspended || s.used(tx, w.ID) || contents(tx.Snapshot(), w.ID) != ""
}

func memberOf(r raftstore.Reader, orgID, userID string) (*record.User, record.Role, error) {
	if u, ok := raftstore.Get(r, record.Users, userID); ok {
		if role, member := u.RoleIn(orgID); member {
			return u, role, nil
		}
	}
	return nil, "", apierror.NotFound()
}

// keepsOwner refuses a change after which a workspace would have no owner. next is the
// role of the user after it, empty for none.
func keepsOwner(r raftstore.Reader, orgID, userID string, next record.Role) error {
	if next == record.RoleOwner {
		return nil
	}
	for _, u := range raftstore.Find(r, record.Users, "workspace", orgID) {
		if role, _ := u.RoleIn(orgID); role == record.RoleOwner && u.ID != userID {
			return nil
		}
	}
	return &apierror.Error{Code: apierror.EConflict, Message: "last owner", Detail: "make another member an owner first"}
}

// RemoveMember ends a membership at once, with the keys and the invitations that the
// person made for the workspace. Everybody may leave.
func (s *Orgs) RemoveMember(ctx context.Context, c core.Caller, orgID, userID string) error {
	action := core.Manage
	if userID == c.UserID {
		action = core.Read
	}
	for more := true; more; {
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			w, me, err := acting(tx, c, orgID, action)
			if err != nil {
				return err
			}
			u, role, err := memberOf(tx, orgID, userID)
			if err != nil {
				return err
			}
			if err := cmp.Or(mayGive(me, orgID, role), keepsOwner(tx, orgID, userID, "")); err != nil {
				return err
			}
			more = drop(tx,
				slices.DeleteFunc(raftstore.Find(tx, record.APIKeys, "workspace", orgID), func(k *record.APIKey) bool { return k.CreatedBy != userID }),
				slices.DeleteFunc(raftstore.Find(tx, record.Invitations, "workspace", orgID), func(i *record.Invitation) bool { return i.InvitedBy != userID }))
			if more {
				return nil
			}
			n := u.Clone()
			if role == record.RoleOwner {
				s.disown(n, s.spent(tx, w))
			}
			n.Leave(orgID)
			raftstore.Put(tx, record.Users, n)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
