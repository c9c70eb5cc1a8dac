package githost

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// askEvery is how often GitHub is asked whether the pull request of a preview is still
// open. GitHub sends an event once: its end is missed if no replica could take it, or if
// the repository has another name by then.
const askEvery = time.Hour

// missed begins to ask for the pull requests that nothing was heard of for askEvery.
func (k *keeper) missed(ctx context.Context) {
	view, now := k.Store.View(), k.Clock()
	var due []*record.GitPreview
	open := map[string]time.Time{}
	for _, p := range raftstore.All(view, record.GitPreviews) {
		if p.Closed || !isThere(view, p) {
			continue
		}
		asked, known := k.asked[p.ID]
		if !known {
			asked = now // a new leader does not ask for all at once
		}
		if open[p.ID] = asked; now.Sub(asked) >= askEvery {
			due = append(due, p)
			open[p.ID] = now
		}
	}
	k.asked = open
	for _, p := range due {
		if err := k.g.askFor(ctx, p); err != nil {
			k.Logger.InfoContext(ctx, "github does not say whether a pull request is open", "app_id", p.AppID, "pull_request", p.PullRequest, "error", err)
		}
	}
}

// askFor asks GitHub for the pull request of a preview. If it is closed, that is accepted
// like the event that was missed, and orders with other events by its time.
func (g *GitHosts) askFor(ctx context.Context, p *record.GitPreview) error {
	owner, repo, _ := strings.Cut(p.FullName, "/")
	auth, err := g.github.asInstallation(ctx, p.InstallationID, repo, toComment)
	if err != nil {
		return err
	}
	var pull struct {
		State     string    `json:"state"`
		UpdatedAt time.Time `json:"updated_at"`
		Head      struct {
			Ref string `json:"ref"`
			SHA string `json:"sha"`
		} `json:"head"`
		Base struct {
			Repo githubRepo `json:"repo"`
		} `json:"base"`
	}
	at := "/repos/" + owner + "/" + repo + "/pulls/" + strconv.Itoa(p.PullRequest)
	if err := g.github.do(ctx, request{method: http.MethodGet, url: at, auth: auth, limit: p.InstallationID}, &pull); err != nil {
		return err
	}
	if pull.State != "closed" {
		return nil
	}
	e := Event{PullRequest: &PullRequest{
		// As the preview's app calls it, also if it has another name by now.
		Repo: Repo{
			Provider: GitHub, URL: p.Repo, ID: strconv.FormatInt(pull.Base.Repo.ID, 10), FullName: p.FullName, DefaultBranch: pull.Base.Repo.DefaultBranch,
			InstallationID: p.InstallationID, Private: pull.Base.Repo.Private,
		},
		Number: p.PullRequest, Branch: pull.Head.Ref, Commit: strings.ToLower(pull.Head.SHA), Closed: true, At: pull.UpdatedAt.UTC(),
	}}
	if err := e.checkTimes(); err != nil || !validBranch(e.PullRequest.Branch) || !commitID.MatchString(e.PullRequest.Commit) {
		return unreachable(badPayload("pull request %d", p.PullRequest))
	}
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		g.accept(tx, GitHub, e, nil)
		return nil
	})
}
