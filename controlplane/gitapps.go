package controlplane

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// joinApps creates apps and git hosts, of which neither knows the other: git hosts deploy
// apps, and apps are cloned with tokens of git hosts.
func joinApps(c *core.Core, apps app.Config, hosts githost.Config) (*app.Apps, *githost.GitHosts, error) {
	hosts.AppURL = apps.URL
	g, err := githost.New(c, hosts)
	if err != nil {
		return nil, nil, err
	}
	apps.InstallationFor = g.InstallationFor
	apps.CloneToken = cloneToken(c.Store, g)
	a := app.New(c, apps)
	g.Serve(g.Apps(deployer{core: c, apps: a}))
	return a, g, nil
}

// cloneToken returns how apps get what their repositories are cloned with.
func cloneToken(store *raftstore.Store, g *githost.GitHosts) func(ctx context.Context, workspaceID, installationID, repoURL string) (username, token string, err error) {
	return func(ctx context.Context, workspaceID, installationID, repoURL string) (string, string, error) {
		// An account that is connected anew has another installation. The one that the app
		// was made with can then only say what is wrong with it.
		if now, ok := g.InstallationFor(store.View(), workspaceID, repoURL); ok {
			installationID = now
		}
		if installationID == "" {
			return "", "", nil
		}
		return g.CloneToken(ctx, workspaceID, installationID, repoURL)
	}
}

// deployer is what git hosts ask of apps.
type deployer struct {
	core *core.Core
	apps *app.Apps
}

var _ githost.Deployer = deployer{}

// DeployApp implements githost.Deployer.
func (d deployer) DeployApp(ctx context.Context, appID, gitRef, commit, message, author, trigger string) (string, error) {
	a, ok := raftstore.Get(d.core.Store.View(), record.Apps, appID)
	if !ok {
		return "", apierror.NotFound()
	}
	out, err := d.apps.Pushed(ctx, a.WorkspaceID, a.ID, app.Push{
		Trigger: api.DeploymentTrigger(trigger), GitRef: gitRef, Commit: commit, Message: message, Author: author,
	})
	return out.ID, err
}

// CreatePreview implements githost.Deployer.
func (d deployer) CreatePreview(ctx context.Context, parentID string, pullRequest int, branch string, fork bool, env []githost.Variable) (string, error) {
	return d.apps.OpenPreview(ctx, parentID, pullRequest, branch, fork, core.Each(env, func(v githost.Variable) app.Variable { return app.Variable(v) }))
}

// DeletePreview implements githost.Deployer.
func (d deployer) DeletePreview(ctx context.Context, appID string) error {
	return d.apps.ClosePreview(ctx, appID)
}
