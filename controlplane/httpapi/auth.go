package httpapi

import (
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
)

// access says who may use a route.
type access int

const (
	public      access = iota // anybody
	workspace                 // an API key or a JWT
	jwtOnly                   // a JWT
	operator                  // an operator's token or client certificate
	brokerToken               // the broker token of the database that the path names
	signed                    // the secret of a git host's webhooks, which the use case checks
)

// admit authenticates the caller, checks the route's access, and stores the caller
// in the context.
func (a *API) admit(c *gin.Context, rt route) error {
	need := rt.access
	switch need {
	case public, signed:
		return nil
	case brokerToken:
		return a.admitBroker(c)
	}
	if rt.doc.websocket {
		bearerOfSocket(c.Request.Header)
	}
	caller, err := a.cfg.Authenticator.Authenticate(c.Request)
	if err != nil {
		return err
	}
	caller.RequestID = requestID(c)
	c.Set(keyCaller, caller)
	switch need {
	case operator:
		if !caller.Admin {
			return errForbidden
		}
		return nil
	case jwtOnly:
		if err := caller.RequireJWT(); err != nil {
			return err
		}
	case workspace:
		if err := caller.RequireWorkspace(); err != nil {
			return err
		}
		if err := a.notSuspended(c, rt, caller); err != nil {
			return err
		}
	}
	if a.cfg.Limiter != nil {
		if err := a.cfg.Limiter.Allow(limitedAs(need, caller)); err != nil {
			return err
		}
	}
	caller, err = a.authorize(c, &rt, caller)
	c.Set(keyCaller, caller)
	return err
}

// notSuspended refuses the creates of a suspended workspace before everything else that
// could be wrong with them, as nothing that its people mend would help.
func (a *API) notSuspended(c *gin.Context, rt route, caller core.Caller) error {
	if rt.method == get || !slices.ContainsFunc(rt.doc.failures, suspends) {
		return nil
	}
	i, err := idempotency(c)
	if err != nil { // it repeats nothing
		i = core.Idempotency{}
	}
	return a.cfg.Orgs.NotSuspended(caller, i)
}

// suspends reports whether an error is the refusal of a suspended workspace. The routes
// that have it create something.
func suspends(e apierror.Error) bool {
	return e.Code == core.ErrSuspended.Code && e.Message == core.ErrSuspended.Message
}

// limitedAs returns whose bucket a request takes from: the workspace's, but for what people
// alone may do their own. Otherwise whoever uses up the workspace's with a stolen key would
// keep its owner from revoking that key.
func limitedAs(need access, caller core.Caller) string {
	if need == jwtOnly {
		return caller.UserID
	}
	return caller.WorkspaceID
}

// errRateLimited is a Limiter's error, for the OpenAPI document.
var errRateLimited = limits.DefaultRate.Exceeded()
