package httpapi

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// AppDomains are the use cases of /v1/apps/{id}/domains.
type AppDomains interface {
	Create(ctx context.Context, c core.Caller, appID string, in api.CreateAppDomain, i core.Idempotency) (api.AppDomain, error)
	Get(ctx context.Context, c core.Caller, appID, domain string) (api.AppDomain, error)
	List(ctx context.Context, c core.Caller, appID string, o core.ListOptions) (page []api.AppDomain, next string, err error)
	Verify(ctx context.Context, c core.Caller, appID, domain string) (api.AppDomain, error)
	Delete(ctx context.Context, c core.Caller, appID, domain string) error
}

// appDomainRoutes are the routes of an app's domains.
func appDomainRoutes() []route {
	taken := apierror.Error{Code: apierror.EConflict, Message: "domain is taken", Detail: "another workspace has verified it"}
	return []route{
		{post, "/v1/apps/:id/domains", workspace, ofDomains((*API).createDomain), operation{
			free: true, id: "createAppDomain", tag: "Apps", summary: "Add a custom domain to an app",
			detail: "The answer says in `dns` what to set: the TXT record proves the domain, the other record leads to the app. DNS is looked into by itself for a week, " +
				"and by `verify` at once. At most 10 an app and 50 a workspace.",
			idempotent: true, body: api.CreateAppDomain{Domain: "shop.example.com"}, status: 201, answer: exampleNewDomain,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "domain is required"},
				{Code: apierror.EInvalid, Message: "invalid domain", Detail: "it has one label alone"},
				{Code: apierror.EInvalid, Message: "domain is reserved", Detail: "it is a name of the service itself"},
				{Code: apierror.EForbidden, Message: "account suspended"},
				{Code: apierror.EConflict, Message: "domain exists", Detail: "this app has it already"},
				{Code: apierror.EConflict, Message: "domain is in use", Detail: "another app of this workspace has it: remove it there first"},
				taken,
				{Code: apierror.ERateLimited, Message: "max domains reached", Detail: "of one app", Fields: map[string]any{"max": 10, "active": 10}},
			},
		}},
		{get, "/v1/apps/:id/domains", workspace, ofDomains((*API).listDomains), operation{
			id: "listAppDomains", tag: "Apps", summary: "List the domains of an app, newest first", list: true, status: 200, answer: []api.AppDomain{exampleDomain},
		}},
		{get, "/v1/apps/:id/domains/:domain", workspace, ofDomain((*API).getDomain), operation{
			id: "getAppDomain", tag: "Apps", summary: "Read one domain of an app", status: 200, answer: exampleDomain,
		}},
		{post, "/v1/apps/:id/domains/:domain/verify", workspace, ofDomain((*API).verifyDomain), operation{
			id: "verifyAppDomain", tag: "Apps", summary: "Verify a custom domain now, by its TXT record in DNS",
			detail: "A domain whose TXT record is not there stays `pending`, and `error` says what was found. One that had failed is looked for again. " +
				"Where a certificate could not be had, it is soon ordered again.",
			body: api.Empty{}, status: 200, answer: exampleDomain,
			failures: []apierror.Error{taken, {Code: apierror.ERateLimited, Message: "looked a moment ago", Detail: "DNS was asked within the last 2s"}},
		}},
		{del, "/v1/apps/:id/domains/:domain", workspace, ofDomain((*API).deleteDomain), operation{
			id: "deleteAppDomain", tag: "Apps", summary: "Remove a custom domain of an app", detail: "It leads to the app no more, and its certificate is deleted.", status: 204,
		}},
	}
}

func ofDomains(h func(*API, *gin.Context, string) error) func(*API, *gin.Context) error {
	return func(a *API, c *gin.Context) error {
		id, err := pathID(c, "id")
		if err != nil {
			return err
		}
		if a.cfg.Domains == nil {
			return apierror.NotFound()
		}
		return h(a, c, id)
	}
}

// ofDomain is for the routes of one domain, whose name may be in any form.
func ofDomain(h func(a *API, c *gin.Context, id, domain string) error) func(*API, *gin.Context) error {
	return ofDomains(func(a *API, c *gin.Context, id string) error { return h(a, c, id, c.Param("domain")) })
}

func (a *API) createDomain(c *gin.Context, id string) error {
	in, key, err := bindCreate[api.CreateAppDomain](c)
	if err != nil {
		return err
	}
	d, err := a.cfg.Domains.Create(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return created(c, d)
}

func (a *API) listDomains(c *gin.Context, id string) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Domains.List(c.Request.Context(), callerOf(c), id, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getDomain(c *gin.Context, id, domain string) error {
	d, err := a.cfg.Domains.Get(c.Request.Context(), callerOf(c), id, domain)
	if err != nil {
		return err
	}
	return ok(c, d)
}

func (a *API) verifyDomain(c *gin.Context, id, domain string) error {
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	d, err := a.cfg.Domains.Verify(c.Request.Context(), callerOf(c), id, domain)
	if err != nil {
		return err
	}
	return ok(c, d)
}

func (a *API) deleteDomain(c *gin.Context, id, domain string) error {
	if err := a.cfg.Domains.Delete(c.Request.Context(), callerOf(c), id, domain); err != nil {
		return err
	}
	return noContent(c)
}
