package githost

import (
	"context"
	"net/http"

	"github.com/berth-cloud/berth/controlplane/loops"
)

// Prune is one pass of the loop that forgets.
func (g *GitHosts) Prune(ctx context.Context, t *loops.Term) { (&keeper{Term: t, g: g}).prune(ctx) }

// Missed returns the pass of the loop that asks for the pull requests of previews.
func (g *GitHosts) Missed(t *loops.Term) func(ctx context.Context) {
	return (&keeper{Term: t, g: g}).missed
}

// ParseAll gives a body to the parsers of every git host, as events of all kinds.
func ParseAll(body []byte) (out []Event) {
	take := func(e Event, err error) {
		if err == nil {
			out = append(out, e)
		}
	}
	for _, event := range []string{"push", "pull_request", "installation", "installation_repositories", "repository"} {
		for _, media := range []string{"application/json", "application/x-www-form-urlencoded"} {
			take(githubHook{}.Parse(http.Header{"X-Github-Event": {event}, "Content-Type": {media}}, body))
		}
	}
	take(gitlabHook{}.Parse(http.Header{"X-Gitlab-Event": {"Push Hook"}}, body))
	take(gitlabHook{}.Parse(http.Header{"X-Gitlab-Event": {"System Hook"}}, body))
	take(giteaHook{}.Parse(http.Header{"X-Gitea-Event": {"push"}}, body))
	return out
}

// Of what is taken from git hosts.
var (
	ValidBranch   = validBranch
	ValidFullName = validFullName
	OneLine       = oneLine
	MayBeDue      = mayBeDue
	ReportAge     = reportAge
)
