package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
)

// ConnectGitHub returns the URL at which a person connects GitHub to the workspace.
func (c *Client) ConnectGitHub(ctx context.Context) (*GitHubConnect, error) {
	return into[GitHubConnect](ctx, c, get(Version, "github", "connect"))
}

// ListGitHubInstallations reads one page of the installations that the workspace has
// connected, newest first, and the cursor of the next: empty after the last.
func (c *Client) ListGitHubInstallations(ctx context.Context, p Page) ([]GitHubInstallation, string, error) {
	return page[GitHubInstallation](ctx, c, p, Version, "github", "installations")
}

// GitHubInstallations reads every installation that the workspace has connected.
func (c *Client) GitHubInstallations(ctx context.Context) iter.Seq2[GitHubInstallation, error] {
	return all(func(p Page) ([]GitHubInstallation, string, error) { return c.ListGitHubInstallations(ctx, p) })
}

// DeleteGitHubInstallation disconnects an installation, and removes it from its account.
func (c *Client) DeleteGitHubInstallation(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "github", "installations", id))
}

// ListGitHubRepos reads one page of the repositories of an installation, and the cursor of
// the next. An empty id is that of the only installation that there is.
func (c *Client) ListGitHubRepos(ctx context.Context, installationID string, p Page) ([]GitHubRepo, string, error) {
	cl := get(Version, "github", "repos")
	cl.query = p.query()
	if installationID != "" {
		cl.query.Set("installation_id", installationID)
	}
	return pageOf[GitHubRepo](ctx, c, cl)
}

// GitHubRepos reads every repository of an installation.
func (c *Client) GitHubRepos(ctx context.Context, installationID string) iter.Seq2[GitHubRepo, error] {
	return all(func(p Page) ([]GitHubRepo, string, error) { return c.ListGitHubRepos(ctx, installationID, p) })
}

// ListPreviewEnv reads the variables of the previews of a repository, which is given by
// GitHub's id.
func (c *Client) ListPreviewEnv(ctx context.Context, repoID string) ([]RepoVariable, error) {
	out, err := into[[]RepoVariable](ctx, c, get(Version, "repos", repoID, "preview-env"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// PutPreviewVariable sets a variable of the previews of a repository, from their next
// deployment on.
func (c *Client) PutPreviewVariable(ctx context.Context, repoID, key string, in PutRepoVariable) (*RepoVariable, error) {
	b, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return into[RepoVariable](ctx, c, call{
		method: http.MethodPut, path: join([]string{Version, "repos", repoID, "preview-env", key}),
		header: http.Header{"Content-Type": {"application/json"}}, body: b, safe: true,
	})
}

// DeletePreviewVariable removes a variable of the previews of a repository.
func (c *Client) DeletePreviewVariable(ctx context.Context, repoID, key string) error {
	return c.done(ctx, remove(Version, "repos", repoID, "preview-env", key))
}
