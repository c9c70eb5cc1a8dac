package main

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
)

// planeGitHosts has the installation 7 until it is disconnected.
type planeGitHosts struct {
	httpapi.GitHosts
	gone bool
	env  []api.RepoVariable
}

func (p *planeGitHosts) Connect(context.Context, core.Caller) (api.GitHubConnect, error) {
	return api.GitHubConnect{URL: "https://github.com/apps/berth/installations/new?state=s"}, nil
}

func (p *planeGitHosts) Installations(context.Context, core.Caller, core.ListOptions) ([]api.GitHubInstallation, string, error) {
	if p.gone {
		return nil, "", nil
	}
	return []api.GitHubInstallation{{ID: "7", Account: "acme", AccountType: "Organization", RepositorySelection: "all", CreatedAt: api.Time{Time: time.Now()}}}, "", nil
}

func (p *planeGitHosts) DeleteInstallation(_ context.Context, _ core.Caller, id string) error {
	if id != "7" || p.gone {
		return apierror.NotFound()
	}
	p.gone = true
	return nil
}

// Repos has two pages.
func (p *planeGitHosts) Repos(_ context.Context, _ core.Caller, id string, o core.ListOptions) ([]api.GitHubRepo, string, error) {
	if id != "" && id != "7" {
		return nil, "", apierror.NotFound()
	}
	if o.Cursor == "" {
		return []api.GitHubRepo{{ID: "9", FullName: "acme/shop", CloneURL: "https://github.com/acme/shop.git", Private: true, DefaultBranch: "main"}}, "2.100", nil
	}
	return []api.GitHubRepo{{ID: "10", FullName: "acme/site"}}, "", nil
}

func (p *planeGitHosts) PreviewEnv(context.Context, core.Caller, string) ([]api.RepoVariable, error) {
	return p.env, nil
}

func (p *planeGitHosts) PutPreviewVariable(_ context.Context, _ core.Caller, _, key string, in api.PutRepoVariable) (api.RepoVariable, error) {
	v := api.RepoVariable{Key: key, Value: in.Value, Secret: in.Secret != nil && *in.Secret, UpdatedAt: api.Time{Time: time.Now()}}
	p.env = append(p.env, v)
	return v, nil
}

func (p *planeGitHosts) DeletePreviewVariable(_ context.Context, _ core.Caller, _, key string) error {
	for _, v := range p.env {
		if v.Key == key {
			p.env = nil
			return nil
		}
	}
	return apierror.NotFound()
}
