package githost

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// askEvery is how often GitHub is asked whether the pull request of a preview is still
// open, and its repository there. GitHub sends an event once: its end is missed if no
// replica could take it, or if the repository has another name by then.
const askEvery = time.Hour

// missed asks for the pull requests that nothing was heard of for askEvery, and for those
// of which an event says that they are to be asked for.
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
		if open[p.ID] = asked; p.Ask || now.Sub(asked) >= askEvery {
			due = append(due, p)
			open[p.ID] = now
		}
	}
	k.asked = open
	for _, p := range due {
		err := k.g.askFor(ctx, p)
		if p.Ask && (err == nil || answered(err) != 0) {
			err = errors.Join(err, k.g.asked(ctx, p.ID))
		}
		if err != nil && ctx.Err() == nil {
			k.Logger.InfoContext(ctx, "github does not say whether a pull request is open", "app_id", p.AppID, "pull_request", p.PullRequest, "error", err)
		}
	}
}

// asked writes down that a preview need not be asked for soon.
func (g *GitHosts) asked(ctx context.Context, id string) error {
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		if p, ok := raftstore.Get(tx, record.GitPreviews, id); ok && p.Ask {
			p = p.Clone()
			p.Ask = false
			raftstore.Put(tx, record.GitPreviews, p)
		}
		return nil
	})
}

// askFor asks GitHub for the pull request of a preview. If it is closed, that is accepted
// like the event that was missed, and orders with other events by its time. If its
// repository has left the installation, the preview is removed.
func (g *GitHosts) askFor(ctx context.Context, p *record.GitPreview) error {
	installation := p.InstallationID
	if now, ok := g.InstallationFor(g.core.Store.View(), p.WorkspaceID, p.Repo); ok {
		installation = now // its account was connected anew
	}
	err := g.askPull(ctx, p, installation)
	if status := answered(err); status != http.StatusNotFound && status != http.StatusUnprocessableEntity {
		return err
	}
	left, askErr := g.left(ctx, p, installation)
	apps, ok := g.apps.(*recordedApps)
	switch {
	case askErr != nil:
		return errors.Join(err, askErr)
	case !left || !ok:
		return err
	}
	g.core.Logger.InfoContext(ctx, "repository has left its installation, a preview goes", "app_id", p.AppID, "pull_request", p.PullRequest)
	return apps.close(ctx, p.PreviewID)
}

// left reports whether an installation has a preview's repository no longer: it was
// deleted, given away, or is not selected any more. One that has only another name is there.
func (g *GitHosts) left(ctx context.Context, p *record.GitPreview, installation string) (bool, error) {
	owner, name, _ := strings.Cut(p.FullName, "/")
	auth, err := g.github.asInstallation(ctx, installation, "", toList)
	if answered(err) == http.StatusNotFound { // it was removed, and so is what it had
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var repo githubRepo
	err = g.github.do(ctx, request{method: http.MethodGet, url: "/repos/" + owner + "/" + name, auth: auth, limit: installation}, &repo)
	if answered(err) == http.StatusNotFound {
		return true, nil
	}
	if err != nil || !validFullName(repo.FullName) {
		return false, err
	}
	newOwner, newName, _ := strings.Cut(repo.FullName, "/")
	if !strings.EqualFold(owner, newOwner) {
		return true, nil
	}
	// Who can read it may not have it: it may be public.
	_, err = g.github.asInstallation(ctx, installation, newName, toList)
	if answered(err) == http.StatusUnprocessableEntity {
		return true, nil
	}
	return false, err
}

func (g *GitHosts) askPull(ctx context.Context, p *record.GitPreview, installation string) error {
	owner, repo, _ := strings.Cut(p.FullName, "/")
	auth, err := g.github.asInstallation(ctx, installation, repo, toComment)
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
	if err := g.github.do(ctx, request{method: http.MethodGet, url: at, auth: auth, limit: installation}, &pull); err != nil {
		return err
	}
	if pull.State != "closed" {
		return nil
	}
	e := Event{PullRequest: &PullRequest{
		// As the preview's app calls it, also if it has another name by now.
		Repo: Repo{
			Provider: GitHub, URL: p.Repo, ID: strconv.FormatInt(pull.Base.Repo.ID, 10), FullName: p.FullName, DefaultBranch: pull.Base.Repo.DefaultBranch,
			InstallationID: installation, Private: pull.Base.Repo.Private,
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
