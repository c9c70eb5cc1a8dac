package org

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// itself is the workspace as a resource.
var itself = core.Resource{Area: core.AreaWorkspace}

// maxOrgName limits the name of a workspace, in characters.
const maxOrgName = 100

func validName(name string) error {
	if name == "" {
		return &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	}
	if !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxOrgName || strings.ContainsFunc(name, unicode.IsControl) {
		return apierror.Invalid("invalid name", "an organization's name has at most %d printable characters", maxOrgName)
	}
	return nil
}

// org shows a workspace to one of its members.
func (s *Orgs) org(w *record.Workspace, u *record.User) api.Org {
	return api.Org{
		ID: w.ID, Name: w.Name, Role: api.Role(u.RoleAmong(w.ID)), Tier: s.core.Tiers.Name(w), Suspended: w.Suspended, CreatedAt: api.Time{Time: w.CreatedAt},
	}
}

// acting returns a workspace of the caller, who must have the right to an action in
// it, and the caller. A workspace of which the caller is not a member is not found.
func acting(r raftstore.Reader, c core.Caller, orgID string, a core.Action) (*record.Workspace, *record.User, error) {
	if err := c.RequireJWT(); err != nil {
		return nil, nil, err
	}
	u, ok := raftstore.Get(r, record.Users, c.UserID)
	if !ok {
		return nil, nil, apierror.NotFound()
	}
	role, member := u.RoleIn(orgID)
	w, ok := raftstore.Get(r, record.Workspaces, orgID)
	if !member || !ok {
		return nil, nil, apierror.NotFound()
	}
	c.WorkspaceID, c.Role = orgID, role
	if err := core.Authorize(c, a, itself); err != nil {
		return nil, nil, err
	}
	return w, u, nil
}

// Enter returns the caller as a member of a workspace that need not be the current
// one.
func (s *Orgs) Enter(c core.Caller, orgID string) (core.Caller, error) {
	_, u, err := acting(s.core.Store.View(), c, orgID, core.Read)
	if err != nil {
		return core.Caller{}, err
	}
	c.WorkspaceID = orgID
	c.Role, _ = u.RoleIn(orgID)
	return c, nil
}

// NotSuspended refuses a create of a suspended workspace before anything else is looked at.
// A create that is repeated with its key has been admitted. The transaction that creates
// checks again.
func (s *Orgs) NotSuspended(c core.Caller, i core.Idempotency) error {
	w, ok := raftstore.Get(s.core.Store.View(), record.Workspaces, c.WorkspaceID)
	if ok && w.Suspended && !core.Known(s.core, i) {
		return core.ErrSuspended
	}
	return nil
}

// ListOrgs lists the caller's workspaces, newest first.
func (s *Orgs) ListOrgs(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Org, next string, err error) {
	if err := c.RequireJWT(); err != nil {
		return nil, "", err
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	u, ok := raftstore.Get(view, record.Users, c.UserID)
	if !ok {
		return nil, "", apierror.NotFound()
	}
	rows, next, err := core.Paginate(workspacesOf(view, u), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, func(w *record.Workspace) api.Org { return s.org(w, u) }), next, nil
}

func workspacesOf(r raftstore.Reader, u *record.User) (out []*record.Workspace) {
	for _, id := range u.WorkspaceIDs {
		if w, ok := raftstore.Get(r, record.Workspaces, id); ok {
			out = append(out, w)
		}
	}
	return out
}

// GetOrg returns one of the caller's workspaces.
func (s *Orgs) GetOrg(ctx context.Context, c core.Caller, id string) (api.OrgDetails, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.OrgDetails{}, err
	}
	w, u, err := acting(view, c, id, core.Read)
	if err != nil {
		return api.OrgDetails{}, err
	}
	return api.OrgDetails{Org: s.org(w, u), Limits: api.Quotas(s.core.Tiers.Of(w)), Usage: s.usage(view, w)}, nil
}

// CreateOrg creates a workspace that the caller owns.
func (s *Orgs) CreateOrg(ctx context.Context, c core.Caller, in api.CreateOrg, i core.Idempotency) (api.Org, error) {
	if err := c.RequireJWT(); err != nil {
		return api.Org{}, err
	}
	if err := validName(in.Name); err != nil {
		return api.Org{}, err
	}
	// A repeated key gets its earlier workspace, whichever is the current one by now.
	return core.Once(ctx, s.core, core.Caller{UserID: c.UserID}, "POST /v1/orgs "+c.UserID, i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Org, error) {
			w, u, err := acting(view, c, key.ResourceID, core.Read)
			if err != nil {
				return api.Org{}, core.ErrKeyGone("workspace")
			}
			return s.org(w, u), nil
		},
		func(keyID string) (api.Org, error) { return s.createOrg(ctx, c, in, i, keyID) })
}

func (s *Orgs) createOrg(ctx context.Context, c core.Caller, in api.CreateOrg, i core.Idempotency, keyID string) (out api.Org, err error) {
	id := newWorkspaceID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		u, ok := raftstore.Get(tx, record.Users, c.UserID)
		if !ok {
			return apierror.NotFound()
		}
		if err := s.mayOwnAnother(tx, u); err != nil {
			return err
		}
		w := &record.Workspace{Meta: record.Meta{ID: id}, Name: in.Name}
		raftstore.Put(tx, record.Workspaces, w)
		n := u.Clone()
		n.Join(id, record.RoleOwner)
		raftstore.Put(tx, record.Users, n)
		core.InWorkspace(ctx, id)
		core.Concerns(ctx, "orgs/"+id)
		out = s.org(w, n)
		return core.ClaimAnswer(tx, s.core, i, keyID, id, out)
	})
	return out, err
}

func newWorkspaceID() string { return "ws-" + core.RandomText(24) }

// mayOwnAnother refuses a workspace beyond those that a person may own. The best tier
// of those that there are counts. One that was deleted with usage is owned for the rest of
// its month, because another would have the month's credit anew.
func (s *Orgs) mayOwnAnother(r raftstore.Reader, u *record.User) error {
	owned, best := s.owned(r, u)
	return s.mayOwn(owned+1, best)
}

// mayBecomeOwner refuses to make a person the owner of a workspace as mayOwnAnother refuses
// to create one: otherwise a second account would take over any number of workspaces whose
// credit is spent. The workspace's own tier counts as well.
func (s *Orgs) mayBecomeOwner(r raftstore.Reader, u *record.User, w *record.Workspace) error {
	if role, member := u.RoleIn(w.ID); member && role == record.RoleOwner {
		return nil
	}
	owned, best := s.owned(r, u)
	return s.mayOwn(owned+1, s.better(best, w))
}

// owned returns how many workspaces a person owns, and which of them has the tier that
// allows most; nil if there is none.
func (s *Orgs) owned(r raftstore.Reader, u *record.User) (n int, best *record.Workspace) {
	n = u.DeletedIn(record.MonthOf(s.core.Clock()))
	for _, w := range workspacesOf(r, u) {
		if u.RoleAmong(w.ID) == record.RoleOwner {
			n, best = n+1, s.better(best, w)
		}
	}
	return n, best
}

// better returns which of two workspaces has the tier that allows more; best may be nil.
func (s *Orgs) better(best, w *record.Workspace) *record.Workspace {
	if best == nil {
		return w
	}
	before, bounded := s.core.Tiers.Orgs(best)
	most, limited := s.core.Tiers.Orgs(w)
	if bounded && (!limited || most > before) {
		return w
	}
	return best
}

// maxOwned limits the workspaces that a person owns, whatever the tier: a person's row names
// them all, and whoever creates one has all of them looked at and the row written.
const maxOwned = 1000

// mayOwn refuses n workspaces in all to who owns best, or none if that is nil.
func (s *Orgs) mayOwn(n int, best *record.Workspace) error {
	most, limited := s.core.Tiers.Orgs(orNew(best))
	if !limited || most > maxOwned {
		most = maxOwned
	}
	if n <= most {
		return nil
	}
	return &apierror.Error{
		Code:    apierror.EQuota,
		Message: fmt.Sprintf("org limit reached: your %s plan allows %d org(s). Upgrade to create more.", s.core.Tiers.Name(orNew(best)), most),
	}
}

// disown counts a workspace that a person owns no longer for the rest of the month, if it
// has used something in it. n is the person's row, to be written.
func (s *Orgs) disown(n *record.User, used bool) {
	if used {
		month := record.MonthOf(s.core.Clock())
		n.DeletedMonth, n.Deleted = month, n.DeletedIn(month)+1
	}
}

// used reports whether a workspace has used something in this month: what is written down,
// and what is not yet, because hosts are asked now and then. So it also counts creates of
// the last hour, which else would begin anew in another workspace.
func (s *Orgs) used(tx *raftstore.Tx, id string) bool {
	now := s.core.Clock()
	if u, ok := raftstore.Get(tx, record.Usages, record.UsageID(id, record.MonthOf(now))); ok && (u.MicroUSD() > 0 || u.CPUSeconds() > 0) {
		return true // not all use has a price, and a month's processor time has a quota
	}
	// A box ends in the transaction that deletes its sandbox, so who sees no sandbox of the
	// workspace any more sees here all of its boxes whose use may still come.
	return limits.Created(tx, id, now) > 0 || slices.ContainsFunc(raftstore.All(tx.Snapshot(), record.EndedBoxes), func(e *record.EndedBox) bool { return e.WorkspaceID == id })
}

// orNew returns w or, if that is nil, a workspace as it would be created.
func orNew(w *record.Workspace) *record.Workspace {
	if w == nil {
		return &record.Workspace{}
	}
	return w
}

// PatchOrg renames a workspace.
func (s *Orgs) PatchOrg(ctx context.Context, c core.Caller, id string, in api.PatchOrg) (out api.Org, err error) {
	if err := validName(in.Name); err != nil {
		return api.Org{}, err
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		w, u, err := acting(tx, c, id, core.Manage)
		if err != nil {
			return err
		}
		n := w.Clone()
		n.Name = in.Name
		raftstore.Put(tx, record.Workspaces, n)
		out = s.org(n, u)
		return nil
	})
	return out, err
}

// DeleteOrg deletes a workspace that has nothing left but keys, webhook endpoints,
// connections to git hosts, preview environments and people. A suspended one stays, or
// its owners would go on with another.
func (s *Orgs) DeleteOrg(ctx context.Context, c core.Caller, id string) error {
	for more := true; more; {
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			w, me, err := acting(tx, c, id, core.Own)
			if err != nil {
				return err
			}
			if w.Suspended {
				return core.ErrSuspended
			}
			if what := contents(tx, id); what != "" {
				return &apierror.Error{Code: apierror.EConflict, Message: "organization is not empty", Detail: "it has " + what + ": delete them first"}
			}
			if more = drop(tx, raftstore.Find(tx, record.APIKeys, "workspace", id), raftstore.Find(tx, record.Invitations, "workspace", id)); more {
				return nil
			}
			others := slices.DeleteFunc(raftstore.Find(tx, record.Users, "workspace", id), func(u *record.User) bool { return u.ID == me.ID })
			if more = len(others) > membersAtOnce; more {
				s.leave(tx, id, others[:membersAtOnce]) // the caller comes last, or could not go on
				return nil
			}
			for _, e := range raftstore.Find(tx, record.WebhookEndpoints, "workspace", id) {
				raftstore.Delete(tx, record.WebhookEndpoints, e.ID)
			}
			for _, i := range raftstore.Find(tx, record.GitInstallations, "workspace", id) {
				raftstore.Delete(tx, record.GitInstallations, i.ID) // or its account could be connected to no other
			}
			for _, e := range raftstore.Find(tx, record.RepoEnvs, "workspace", id) {
				raftstore.Delete(tx, record.RepoEnvs, e.ID)
			}
			s.leave(tx, id, append(others, me))
			raftstore.Delete(tx, record.WorkspaceCreates, id)
			raftstore.Delete(tx, record.Workspaces, id)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// membersAtOnce limits the members that leave a workspace in one transaction: a person's row
// names all the workspaces that the person is in.
const membersAtOnce = 100

// leave ends the memberships of a workspace that is being deleted.
func (s *Orgs) leave(tx *raftstore.Tx, id string, people []*record.User) {
	used := s.used(tx, id)
	for _, u := range people {
		n := u.Clone()
		if role, _ := u.RoleIn(id); role == record.RoleOwner {
			s.disown(n, used)
		}
		n.Leave(id)
		raftstore.Put(tx, record.Users, n)
	}
}

// contents returns what a workspace still has, or "".
func contents(r raftstore.Reader, id string) string {
	switch {
	case len(raftstore.Find(r, record.Databases, "workspace", id)) > 0:
		return "databases"
	case len(raftstore.Find(r, record.Apps, "workspace", id)) > 0:
		return "apps"
	case len(raftstore.Find(r, record.Sandboxes, "workspace", id)) > 0:
		return "sandboxes"
	case len(raftstore.Find(r, record.Snapshots, "workspace", id)) > 0:
		return "snapshots"
	case len(raftstore.Find(r, record.Volumes, "workspace", id)) > 0:
		return "volumes"
	case len(raftstore.Find(r, record.Templates, "workspace", id)) > 0:
		return "templates"
	}
	return ""
}
