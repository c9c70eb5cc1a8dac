package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/githost"
)

// GitHosts are the use cases of /v1/github, of the git hosts' webhooks, and of
// /v1/repos.
type GitHosts interface {
	Connect(ctx context.Context, c core.Caller) (api.GitHubConnect, error)
	Callback(ctx context.Context, in githost.Callback) (api.GitHubInstallation, error)
	Installations(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.GitHubInstallation, next string, err error)
	DeleteInstallation(ctx context.Context, c core.Caller, id string) error
	Repos(ctx context.Context, c core.Caller, installationID string, o core.ListOptions) (page []api.GitHubRepo, next string, err error)

	// CheckHook refuses, before its body is read, a webhook of a git host that is not set
	// up, and one that no body makes the git host's.
	CheckHook(provider string, header http.Header) error
	Receive(ctx context.Context, provider string, header http.Header, body []byte) (api.GitEventReceipt, error)

	PreviewEnv(ctx context.Context, c core.Caller, repoID string) ([]api.RepoVariable, error)
	PutPreviewVariable(ctx context.Context, c core.Caller, repoID, key string, in api.PutRepoVariable) (api.RepoVariable, error)
	DeletePreviewVariable(ctx context.Context, c core.Caller, repoID, key string) error
}

// githostRoutes are of the integration of git hosts.
func githostRoutes() []route {
	github := []apierror.Error{
		{Code: apierror.ENotImplemented, Message: "github is not set up", Detail: "the operator sets BERTH_GITHUB_APP_ID, BERTH_GITHUB_APP_SLUG, BERTH_GITHUB_PRIVATE_KEY and BERTH_GITHUB_WEBHOOK_SECRET"},
		{Code: apierror.EBadGateway, Message: "github unreachable"},
		{Code: apierror.EUnavailable, Message: "github rate limit reached", Detail: "github allows no more calls for now"},
		{Code: apierror.EConflict, Message: "installation is suspended", Detail: "its account suspended it at GitHub"},
	}
	with := func(more ...apierror.Error) []apierror.Error { return append(more, github...) }
	return append([]route{
		{get, "/v1/github/connect", workspace, (*API).connectGitHub, operation{
			action: writing, // with its state, whoever has it lets an installation in
			id:     "connectGithub", tag: "Git hosting", summary: "Get the URL at which a person connects GitHub to the workspace",
			detail: "Open it in a browser within 15 minutes, and install the GitHub App in the account that has the repositories.",
			status: 200, answer: exampleGitHubConnect, failures: with(apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}),
		}},
		{get, "/v1/github/callback", public, (*API).githubCallback, operation{
			free: true, id: "githubCallback", tag: "Git hosting", summary: "Record an installation: GitHub sends the browser here",
			detail: "The state is the only credential. The answer is a page for a browser, and JSON otherwise. The page first asks the person whether the " +
				"workspace is theirs, and records nothing; its button calls again, with the answer in `confirm`.",
			query: []parameter{
				{name: "installation_id", description: "GitHub's id of the installation.", schema: aString},
				{name: "state", description: "Of the URL that connectGithub answered with.", schema: aString, required: true},
				{name: "setup_action", description: "install, update or request.", schema: aString},
				{name: "code", description: "Where the GitHub App requests user authorization.", schema: aString},
				{name: "confirm", description: "Of the page that asks.", schema: aString},
			},
			status: 200, answer: exampleGitHubInstallation, acceptType: "text/html", failures: with(
				apierror.Error{Code: apierror.EForbidden, Message: "invalid state", Detail: "begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EForbidden, Message: "state has expired", Detail: "begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EForbidden, Message: "code is required", Detail: "the GitHub App must request user authorization during installation"},
				apierror.Error{Code: apierror.EForbidden, Message: "invalid code", Detail: "begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EForbidden, Message: "installation is not yours", Detail: "an owner of its account connects it"},
				apierror.Error{Code: apierror.EForbidden, Message: "invalid confirm", Detail: "begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EForbidden, Message: "account suspended"},
				apierror.Error{Code: apierror.EInvalid, Message: "invalid installation_id", Detail: "want a number"},
				apierror.Error{Code: apierror.EConflict, Message: "installation belongs to another workspace", Detail: "it is disconnected there first"},
				apierror.Error{Code: apierror.EConflict, Message: "state was used already", Detail: "begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EConflict, Message: "installation waits for approval", Detail: "an owner of the account approves it at GitHub; then begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EConflict, Message: "installation is older than the request", Detail: "remove it at GitHub, and begin again with GET /v1/github/connect"},
				apierror.Error{Code: apierror.EUnprocessable, Message: "github refused"},
				apierror.Error{Code: apierror.ERateLimited, Message: "max installations reached", Fields: map[string]any{"max": 100, "active": 100}},
				apierror.Error{Code: apierror.ERateLimited, Message: "too many tries to connect", Detail: "github is asked for a workspace 20 times in 1m0s"},
				apierror.Error{Code: apierror.EUnauthorized, Message: "unauthorized", Detail: apierror.DetailInvalidToken},
				apierror.Error{Code: apierror.EInternal, Message: "internal error"}, *apierror.NotFound(), *apierror.Unavailable("", nil)),
		}},
		{get, "/v1/github/installations", workspace, (*API).listGitHubInstallations, operation{
			id: "listGithubInstallations", tag: "Git hosting", summary: "List the installations that the workspace has connected, newest first", list: true,
			status: 200, answer: []api.GitHubInstallation{exampleGitHubInstallation}, failures: github[:1],
		}},
		{del, "/v1/github/installations/:id", workspace, (*API).deleteGitHubInstallation, operation{
			id: "deleteGithubInstallation", tag: "Git hosting", summary: "Disconnect an installation, and remove it from its account",
			detail: "Apps keep what they serve. Those of private repositories cannot be deployed again.", status: 204,
			failures: with(apierror.Error{Code: apierror.EUnprocessable, Message: "github refused"}),
		}},
		{get, "/v1/github/repos", workspace, (*API).listGitHubRepos, operation{
			id: "listGithubRepos", tag: "Git hosting", summary: "List the repositories of an installation",
			detail: "A page has at most 100.",
			list:   true, query: []parameter{{name: "installation_id", description: "Default: the only one that there is.", schema: aFilter}},
			status: 200, answer: []api.GitHubRepo{exampleGitHubRepo}, failures: with(
				apierror.Error{Code: apierror.EInvalid, Message: "installation_id is required", Detail: "the workspace has 2 installations"},
				apierror.Error{Code: apierror.EUnprocessable, Message: "github refused"}, *apierror.NotFound()),
		}},
		gitHook(githost.GitHub, "githubWebhook", (*API).githubWebhook,
			"Signed in X-Hub-Signature-256 with the secret of the GitHub App. A push deploys the apps with `auto_deploy` that follow its branch; "+
				"a pull request makes, updates or removes the previews of the repository's apps."),
		gitHook(githost.GitLab, "gitlabWebhook", (*API).gitlabWebhook, "Push hooks, with the secret in X-Gitlab-Token."),
		gitHook(githost.Gitea, "giteaWebhook", (*API).giteaWebhook, "Pushes of Gitea and Forgejo, signed in X-Gitea-Signature."),
	}, repoRoutes()...)
}

// gitHook is the route of a git host's webhooks.
func gitHook(provider, id string, handle func(*API, *gin.Context) error, detail string) route {
	return route{post, "/v1/webhooks/" + provider, signed, handle, operation{
		id: id, tag: "Git hosting", summary: "Receive a webhook of " + provider, detail: detail + " An event that was received before has no effect.",
		bodyType: "application/json", status: http.StatusAccepted, answer: api.GitEventReceipt{Status: api.GitEventAccepted},
		failures: []apierror.Error{
			{Code: apierror.EInvalid, Message: "invalid payload", Detail: "the payload is not as documented"},
			{Code: apierror.ENotImplemented, Message: provider + " is not set up"},
			{Code: apierror.EUnavailable, Message: "too many webhooks at once"},
		},
	}}
}

func repoRoutes() []route {
	return []route{
		{get, "/v1/repos/:repo/preview-env", workspace, (*API).showPreviewEnv, operation{
			id: "listPreviewEnv", tag: "Git hosting", summary: "List the variables of a repository's previews",
			detail: "The id of a repository is GitHub's. The values of secrets are masked.",
			status: 200, answer: []api.RepoVariable{exampleRepoVariable},
		}},
		{put, "/v1/repos/:repo/preview-env/:key", workspace, (*API).putPreviewVariable, operation{
			free: true, id: "putPreviewVariable", tag: "Git hosting", summary: "Set a variable of a repository's previews",
			detail: "For the previews of pull requests of all the workspace's apps of this repository, from their next deployment on. It takes the " +
				"place of an app's own variable of this name. Without `secret`, one that is secret stays so.",
			body: api.PutRepoVariable{Value: "https://api.staging.example.com"}, status: 200, answer: exampleRepoVariable,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid json"},
				{Code: apierror.EInvalid, Message: errNoValue.Message},
				{Code: apierror.EInvalid, Message: "invalid key", Detail: "want a letter or _, then letters, digits and _, at most 128"},
				{Code: apierror.EInvalid, Message: "invalid value", Detail: "a variable cannot hold U+0000, or what is not UTF-8"},
				{Code: apierror.EInvalid, Message: "value too long", Detail: "at most 65536 bytes"},
				{Code: apierror.EInvalid, Message: "too many variables", Detail: "at most 200"},
				{Code: apierror.EInvalid, Message: "variables too large", Detail: "at most 262144 bytes in all"},
				{Code: apierror.ERateLimited, Message: "max preview environments reached", Fields: map[string]any{"max": 1000, "active": 1000}},
				{Code: apierror.ERateLimited, Message: "preview environments too large", Fields: map[string]any{"max_bytes": 4 << 20, "used_bytes": 4193280}},
				{Code: apierror.EForbidden, Message: "account suspended"},
				{Code: apierror.ETooLarge, Message: "request body too large"},
				{Code: codeTimeout, Message: "request timeout"},
			},
		}},
		{del, "/v1/repos/:repo/preview-env/:key", workspace, (*API).deletePreviewVariable, operation{
			free: true, id: "deletePreviewVariable", tag: "Git hosting", summary: "Remove a variable of a repository's previews", status: 204,
		}},
	}
}

func (a *API) connectGitHub(c *gin.Context) error {
	out, err := a.cfg.GitHosts.Connect(c.Request.Context(), callerOf(c))
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) listGitHubInstallations(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.GitHosts.Installations(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) deleteGitHubInstallation(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if err := a.cfg.GitHosts.DeleteInstallation(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) listGitHubRepos(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "installation_id")
	if err != nil {
		return err
	}
	id, err := filterOf(q, "installation_id")
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.GitHosts.Repos(c.Request.Context(), callerOf(c), id, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next, "installation_id", id)
}

func (a *API) showPreviewEnv(c *gin.Context) error {
	id, err := pathID(c, "repo")
	if err != nil {
		return err
	}
	rows, err := a.cfg.GitHosts.PreviewEnv(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(rows))
}

func (a *API) putPreviewVariable(c *gin.Context) error {
	id, err := pathID(c, "repo")
	if err != nil {
		return err
	}
	in, raw, err := bind[api.PutRepoVariable](c, maxJSONBody)
	if err != nil {
		return err
	}
	if !given(raw, "value") { // an empty one is a value
		return errNoValue
	}
	out, err := a.cfg.GitHosts.PutPreviewVariable(c.Request.Context(), callerOf(c), id, c.Param("key"), in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deletePreviewVariable(c *gin.Context) error {
	id, err := pathID(c, "repo")
	if err != nil {
		return err
	}
	key, err := pathID(c, "key")
	if err != nil {
		return err
	}
	if err := a.cfg.GitHosts.DeletePreviewVariable(c.Request.Context(), callerOf(c), id, key); err != nil {
		return err
	}
	return noContent(c)
}
