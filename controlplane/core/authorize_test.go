package core_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestAuthorize(t *testing.T) {
	sandboxes, databases := core.Resource{Area: core.AreaSandboxes}, core.Resource{Area: core.AreaDatabases}
	apps, blog, shop := core.Resource{Area: core.AreaApps}, core.Resource{Area: core.AreaApps, App: "blog"}, core.Resource{Area: core.AreaApps, App: "shop"}
	itself := core.Resource{Area: core.AreaWorkspace}
	key := func(role record.Role, scopes ...string) core.Caller {
		return core.Caller{WorkspaceID: "ws", KeyID: "k", Role: role, Scopes: scopes}
	}
	person := func(role record.Role) core.Caller { return core.Caller{WorkspaceID: "ws", ViaJWT: true, Role: role} }
	for name, c := range map[string]struct {
		caller core.Caller
		action core.Action
		on     core.Resource
		may    bool
	}{
		"a viewer reads":                {person("viewer"), core.Read, sandboxes, true},
		"a viewer writes":               {person("viewer"), core.Write, sandboxes, false},
		"a member writes":               {person("member"), core.Write, sandboxes, true},
		"a member manages":              {person("member"), core.Manage, itself, false},
		"an admin manages":              {person("admin"), core.Manage, itself, true},
		"an admin owns":                 {person("admin"), core.Own, itself, false},
		"an owner owns":                 {person("owner"), core.Own, itself, true},
		"nobody in particular manages":  {person(""), core.Manage, itself, false},
		"a key writes":                  {key(""), core.Write, databases, true},
		"a key manages":                 {key(""), core.Manage, itself, false},
		"an owner's scoped key manages": {key("owner", "all"), core.Manage, itself, false},
		"a viewer's key writes":         {key("viewer", "all"), core.Write, databases, false},
		"all":                           {key("", "all"), core.Write, databases, true},
		"read-only reads":               {key("", "read-only"), core.Read, databases, true},
		"read-only writes":              {key("", "read-only"), core.Write, databases, false},
		"another area":                  {key("", "sandboxes"), core.Read, databases, false},
		"its area":                      {key("", "sandboxes"), core.Write, sandboxes, true},
		"its area and reading: reads":   {key("", "sandboxes", "read-only"), core.Read, databases, true},
		"its area and reading: writes":  {key("", "sandboxes", "read-only"), core.Write, databases, false},
		"its app":                       {key("", "app:blog"), core.Write, blog, true},
		"another app":                   {key("", "app:blog"), core.Read, shop, false},
		"every app":                     {key("", "app:blog"), core.Read, apps, false},
		"apps":                          {key("", "apps"), core.Write, shop, true},
		"a scope of nothing":            {key("", "workspace"), core.Read, itself, false},
		"an app without an id":          {key("", "app:"), core.Read, apps, false},
	} {
		err := core.Authorize(c.caller, c.action, c.on)
		if (err == nil) != c.may || err != nil && apierror.CodeOf(err) != apierror.EForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	for scope, want := range map[string]bool{
		"all": true, "read-only": true, "volumes": true, "webhooks": true, "app:my-app": true,
		"": false, "workspace": false, "ALL": false, "app:": false, "app:../x": false, "app:A": false, "sandboxes ": false,
	} {
		if core.ValidScope(scope) != want {
			t.Errorf("scope %q: %v", scope, !want)
		}
	}
}
