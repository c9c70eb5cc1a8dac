package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *API) getMe(c *gin.Context) error {
	me, err := a.cfg.Orgs.Me(c.Request.Context(), callerOf(c))
	if err != nil {
		return err
	}
	return ok(c, me)
}

func (a *API) setCurrentOrg(c *gin.Context) error {
	in, _, err := bind[api.SetCurrentOrg](c, maxJSONBody)
	if err != nil {
		return err
	}
	me, err := a.cfg.Orgs.SetCurrentOrg(c.Request.Context(), callerOf(c), in)
	if err != nil {
		return err
	}
	return ok(c, me)
}

func (a *API) createToken(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateToken](c)
	if err != nil {
		return err
	}
	token, err := a.cfg.Orgs.CreateToken(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, token)
}

func (a *API) listTokens(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Orgs.ListTokens(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) revokeToken(c *gin.Context) error {
	prefix, err := pathID(c, "prefix")
	if err != nil {
		return err
	}
	if err := a.cfg.Orgs.RevokeToken(c.Request.Context(), callerOf(c), prefix); err != nil {
		return err
	}
	return noContent(c)
}
