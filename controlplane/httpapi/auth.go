package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// access says who may use a route.
type access int

const (
	public    access = iota // anybody
	workspace               // an API key or a JWT
	jwtOnly                 // a JWT
	operator                // an operator's token or client certificate
)

// admit lets the caller in or refuses it, and remembers who it is.
func (a *API) admit(c *gin.Context, rt route) error {
	need := rt.access
	if need == public {
		return nil
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
	}
	if a.cfg.Limiter != nil && caller.WorkspaceID != "" {
		return a.cfg.Limiter.Allow(caller.WorkspaceID)
	}
	return nil
}

// errRateLimited is what a Limiter answers with; it is here for the document.
var errRateLimited = &apierror.Error{
	Code:    apierror.ERateLimited,
	Message: "rate limit: 50 req/burst, 25/sec sustained per workspace",
}
