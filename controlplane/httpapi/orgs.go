package httpapi

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
)

func (a *API) listOrgs(c *gin.Context) error {
	return listed(c, func(ctx context.Context, o core.ListOptions) ([]api.Org, string, error) {
		return a.cfg.Orgs.ListOrgs(ctx, callerOf(c), o)
	})
}

func (a *API) createOrg(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateOrg](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.CreateOrg(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) getOrg(c *gin.Context) error {
	out, err := a.cfg.Orgs.GetOrg(c.Request.Context(), callerOf(c), c.Param("id"))
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) patchOrg(c *gin.Context) error {
	in, _, err := bind[api.PatchOrg](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.PatchOrg(c.Request.Context(), callerOf(c), c.Param("id"), in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deleteOrg(c *gin.Context) error {
	if err := a.cfg.Orgs.DeleteOrg(c.Request.Context(), callerOf(c), c.Param("id")); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) listMembers(c *gin.Context) error {
	return listed(c, func(ctx context.Context, o core.ListOptions) ([]api.Member, string, error) {
		return a.cfg.Orgs.ListMembers(ctx, callerOf(c), c.Param("id"), o)
	})
}

func (a *API) invite(c *gin.Context) error {
	in, key, err := bindCreate[api.Invite](c)
	if err != nil {
		return err
	}
	linked := func(out api.NewInvitation) api.NewInvitation {
		out.Link = baseURL(c.Request) + out.Link
		return out
	}
	key.Shown = func(out any) any { return linked(out.(api.NewInvitation)) }
	out, err := a.cfg.Orgs.Invite(c.Request.Context(), callerOf(c), c.Param("id"), in, key)
	if err != nil {
		return err
	}
	return created(c, linked(out))
}

func (a *API) patchMember(c *gin.Context) error {
	user, err := pathID(c, "user")
	if err != nil {
		return err
	}
	in, _, err := bind[api.PatchMember](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.PatchMember(c.Request.Context(), callerOf(c), c.Param("id"), user, in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) removeMember(c *gin.Context) error {
	user, err := pathID(c, "user")
	if err != nil {
		return err
	}
	if err := a.cfg.Orgs.RemoveMember(c.Request.Context(), callerOf(c), c.Param("id"), user); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) listInvitations(c *gin.Context) error {
	return listed(c, func(ctx context.Context, o core.ListOptions) ([]api.Invitation, string, error) {
		return a.cfg.Orgs.ListInvitations(ctx, callerOf(c), c.Param("id"), o)
	})
}

func (a *API) revokeInvitation(c *gin.Context) error {
	id, err := pathID(c, "invitation")
	if err != nil {
		return err
	}
	if err := a.cfg.Orgs.RevokeInvitation(c.Request.Context(), callerOf(c), c.Param("id"), id); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) acceptInvitation(c *gin.Context) error {
	token, err := pathID(c, "token")
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	out, err := a.cfg.Orgs.AcceptInvitation(c.Request.Context(), callerOf(c), token)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) listWorkspaces(c *gin.Context) error {
	return listed(c, a.cfg.Orgs.ListWorkspaces)
}

func (a *API) listTiers(c *gin.Context) error { return ok(c, a.cfg.Orgs.ListTiers()) }

func (a *API) createWorkspace(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateWorkspace](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.CreateWorkspace(c.Request.Context(), in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) patchWorkspace(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, _, err := bind[api.PatchWorkspace](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.PatchWorkspace(c.Request.Context(), id, in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) createWorkspaceToken(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, key, err := bindCreate[api.CreateToken](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Orgs.CreateWorkspaceToken(c.Request.Context(), id, in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

// listed answers with one page of a list.
func listed[T any](c *gin.Context, list func(context.Context, core.ListOptions) ([]T, string, error)) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := list(c.Request.Context(), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}
