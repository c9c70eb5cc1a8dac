package httpapi

import (
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/core"
)

// action is what a route does, for core.Authorize. The zero value leaves it to the
// route's method.
type action int

const (
	byMethod action = iota // reads if it is a GET, writes otherwise
	personal               // is about the person behind the JWT alone
	reading
	writing
	managing
	owning
)

// actionOf returns the action of a route that acts on a workspace.
func (rt *route) actionOf() core.Action {
	switch rt.doc.action {
	case reading:
		return core.Read
	case writing:
		return core.Write
	case managing:
		return core.Manage
	case owning:
		return core.Own
	}
	if rt.method == get && !rt.doc.websocket { // a socket enters what runs
		return core.Read
	}
	return core.Write
}

// areas are the areas of the routes by the beginning of their paths.
var areas = map[string]core.Area{
	"sandboxes": core.AreaSandboxes, "snapshots": core.AreaSandboxes, "templates": core.AreaSandboxes, "builds": core.AreaSandboxes,
	"databases": core.AreaDatabases, "apps": core.AreaApps, "github": core.AreaApps, "repos": core.AreaApps,
	"functions": core.AreaApps, "volumes": core.AreaVolumes, "webhooks": core.AreaWebhooks,
}

// resourceOf returns what a request acts on.
func (rt *route) resourceOf(c *gin.Context) core.Resource {
	path := strings.TrimPrefix(strings.TrimPrefix(rt.path, "/v1/"), "metrics/") // those of databases are the databases'
	first, rest, _ := strings.Cut(path, "/")
	area, ok := areas[first]
	if !ok {
		return core.Resource{Area: core.AreaWorkspace}
	}
	r := core.Resource{Area: area}
	if (first == "apps" || first == "functions") && strings.HasPrefix(rest, ":id") {
		r.App = c.Param("id")
	}
	return r
}

// ofOrg reports whether a route names the workspace on which it acts; all others act
// on the current one.
func (rt *route) ofOrg() bool { return strings.HasPrefix(rt.path, "/v1/orgs/:id") }

// authorize refuses what the caller may not do, and returns the caller as a member of
// the workspace on which the route acts.
func (a *API) authorize(c *gin.Context, rt *route, caller core.Caller) (core.Caller, error) {
	if rt.doc.action == personal {
		return caller, nil
	}
	if rt.ofOrg() {
		id, err := pathID(c, "id")
		if err != nil {
			return caller, err
		}
		if caller, err = a.cfg.Orgs.Enter(caller, id); err != nil {
			return caller, err
		}
	} else if err := caller.RequireWorkspace(); err != nil {
		return caller, err
	}
	return caller, core.Authorize(caller, rt.actionOf(), rt.resourceOf(c))
}
