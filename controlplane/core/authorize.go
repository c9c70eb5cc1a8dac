package core

import (
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Action is what a request does with a resource.
type Action int

// The actions, each of which takes more than the one before.
const (
	Read   Action = iota // viewers too; also what gives no access to what it shows
	Write                // create, change, delete, and enter what runs
	Manage               // people, and what belongs to the workspace itself
	Own                  // delete the workspace
)

// Area is a kind of resources for which a key may have a scope.
type Area string

// The areas. Everything that has none of its own is of AreaWorkspace.
const (
	AreaSandboxes Area = "sandboxes" // with their snapshots, forks and templates
	AreaDatabases Area = "databases"
	AreaApps      Area = "apps" // and functions
	AreaVolumes   Area = "volumes"
	AreaWebhooks  Area = "webhooks"
	AreaWorkspace Area = "workspace"
)

// The scopes of keys that are not an area's name.
const (
	ScopeAll      = "all"
	ScopeReadOnly = "read-only" // all that a viewer may
	ScopeApp      = "app:"      // followed by the id of an app or a function
)

// Resource is what a request acts on.
type Resource struct {
	Area Area
	App  string // id of the app or function; empty: none in particular
}

// Authorize decides whether a caller may act on a resource of its workspace. A role
// bounds what a person may do, also by the keys that person has made; scopes bound a
// key further: it may do what any one of them allows.
func Authorize(c Caller, a Action, r Resource) error {
	switch {
	case a >= Own && c.Role != record.RoleOwner:
		return forbidden("this needs the role owner")
	case a == Manage && c.Role != record.RoleOwner && c.Role != record.RoleAdmin:
		return forbidden("this needs the role admin or owner")
	case a == Write && c.Role == record.RoleViewer:
		return forbidden("a viewer may only read")
	case c.KeyID == "" || len(c.Scopes) == 0:
		return nil
	case a >= Manage, !slices.ContainsFunc(c.Scopes, func(scope string) bool { return covers(scope, a, r) }):
		return forbidden("the scopes of this key do not cover that")
	}
	return nil
}

// covers reports whether a scope alone allows an action.
func covers(scope string, a Action, r Resource) bool {
	switch {
	case scope == ScopeAll, scope == ScopeReadOnly && a == Read:
		return true
	case strings.HasPrefix(scope, ScopeApp):
		return r.App != "" && r.App == strings.TrimPrefix(scope, ScopeApp)
	}
	return scope == string(r.Area) && r.Area != AreaWorkspace
}

func forbidden(detail string) error {
	return &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: detail}
}

// ValidScope reports whether a key may have the scope.
func ValidScope(s string) bool {
	if id, ok := strings.CutPrefix(s, ScopeApp); ok {
		return id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(r rune) bool {
			return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
		})
	}
	switch s {
	case ScopeAll, ScopeReadOnly, string(AreaSandboxes), string(AreaDatabases), string(AreaApps), string(AreaVolumes), string(AreaWebhooks):
		return true
	}
	return false
}
