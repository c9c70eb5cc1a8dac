package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/org"
)

func (a *API) getMe(c *gin.Context) error {
	profile, err := a.cfg.Orgs.Me(c.Request.Context(), callerOf(c))
	if err != nil {
		return err
	}
	return ok(c, renderMe(profile))
}

func (a *API) setCurrentOrg(c *gin.Context) error {
	in, _, err := bind[api.SetCurrentOrg](c, maxJSONBody)
	if err != nil {
		return err
	}
	if in.OrgID == "" {
		return invalid("org_id is required", "")
	}
	profile, err := a.cfg.Orgs.SetCurrentOrg(c.Request.Context(), callerOf(c), in.OrgID)
	if err != nil {
		return err
	}
	return ok(c, renderMe(profile))
}

func (a *API) createToken(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateToken](c)
	if err != nil {
		return err
	}
	// A key that may do more than was asked for is worse than none.
	if len(in.Scopes) > 0 {
		return invalid("invalid scopes", "keys have no scopes yet: a key may do all that its organization may")
	}
	want := org.CreateToken{Name: in.Name, Idempotency: key}
	if in.ExpiresAt != nil {
		if in.ExpiresAt.IsZero() { // in the service's terms: never
			return invalid("invalid expires_at", "expires_at must be in the future")
		}
		want.ExpiresAt = in.ExpiresAt.Time
	}
	token, err := a.cfg.Orgs.CreateToken(c.Request.Context(), callerOf(c), want)
	if err != nil {
		return err
	}
	return created(c, api.NewToken{Token: renderToken(token), Key: token.Key})
}

func (a *API) listTokens(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	page, next, err := a.cfg.Orgs.ListTokens(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	linkNext(c, o, next)
	return ok(c, each(page, renderToken))
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
