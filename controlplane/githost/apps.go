package githost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Apps are what events are for. Each call may be repeated, and then does what is left.
type Apps interface {
	// Pushed deploys the apps that follow a branch.
	Pushed(ctx context.Context, p Push) (deployments []string, err error)
	// PullRequest opens, updates or closes the preview of each app of a repository.
	PullRequest(ctx context.Context, p PullRequest) error
}

// noApps is for a control plane without apps, where no event has a follower.
type noApps struct{}

func (noApps) Pushed(context.Context, Push) ([]string, error) { return nil, nil }
func (noApps) PullRequest(context.Context, PullRequest) error { return nil }

// Variable is one of an environment, in the clear.
type Variable struct {
	Key, Value string
	Secret     bool
}

// Deployer is what this package asks of the apps. Triggers are those of package api.
type Deployer interface {
	// DeployApp begins a deployment of a commit, which is in the branch gitRef.
	DeployApp(ctx context.Context, appID, gitRef, commit, message, author, trigger string) (deploymentID string, err error)
	// CreatePreview makes the preview of an app for a pull request, or changes the one
	// that there is: an app with record.App.ParentID and PullRequest, the settings of the
	// app, this branch, no auto_deploy, and an environment of the app's variables without
	// those of scope "production", and of env, which counts more. One whose code is of a
	// fork gets nothing that is secret of either.
	CreatePreview(ctx context.Context, parentID string, pullRequest int, branch string, fork bool, env []Variable) (appID string, err error)
	// DeletePreview removes a preview. That there is none is a success.
	DeletePreview(ctx context.Context, appID string) error
}

// deployed reports whether an app has been deployed for an event already: what was done
// before a failure, or before a leader's death, is not done twice. Indexes order what
// several leaders have written, whose clocks may differ.
func deployed(r raftstore.Reader, appID, commit, trigger string, since uint64) bool {
	return slices.ContainsFunc(raftstore.Find(r, record.Deployments, "app", appID), func(d *record.Deployment) bool {
		return d.GitCommit == commit && d.Trigger == trigger && d.CreateIndex > since
	})
}

// Triggers of deployments.
const (
	triggerPush        = "push"
	triggerPullRequest = "pull_request"
)

// Apps is the usual implementation of Apps: it finds the apps of an event in the records.
func (g *GitHosts) Apps(d Deployer) Apps { return &recordedApps{g: g, deployer: d} }

type recordedApps struct {
	g        *GitHosts
	deployer Deployer
}

// ofRepo are the apps of a repository that events may reach: not of other workspaces than
// those of the event, and of a private repository only where the workspace has a part in
// it.
func (g *GitHosts) ofRepo(r raftstore.Reader, repo Repo, workspaces []string) []*record.App {
	var out []*record.App
	for _, a := range raftstore.Find(r, record.Apps, "git_url", repo.URL) {
		if a.Status == record.AppDeleting || workspaces != nil && !slices.Contains(workspaces, a.WorkspaceID) {
			continue
		}
		if workspaces == nil && repo.Private && repo.Provider == GitHub {
			if _, ok := g.InstallationFor(r, a.WorkspaceID, a.GitURL); !ok {
				continue
			}
		}
		out = append(out, a)
	}
	return out
}

// followers are the apps that a push deploys.
func (g *GitHosts) followers(r raftstore.Reader, p Push) []*record.App {
	return slices.DeleteFunc(g.ofRepo(r, p.Repo, p.Workspaces), func(a *record.App) bool {
		branch := a.GitBranch
		if branch == "" {
			branch = p.DefaultBranch
		}
		return !a.AutoDeploy || a.ParentID != "" || branch != p.Branch
	})
}

// parents are the apps of which a pull request gets previews.
func (g *GitHosts) parents(r raftstore.Reader, p PullRequest) []*record.App {
	return slices.DeleteFunc(g.ofRepo(r, p.Repo, p.Workspaces), func(a *record.App) bool { return !a.HasPreviews() || p.Fork && !a.ForkPreviews })
}

// previews are those that a pull request has, whatever has become of their apps.
func (g *GitHosts) previews(r raftstore.Reader, p PullRequest) []*record.App {
	return slices.DeleteFunc(g.ofRepo(r, p.Repo, p.Workspaces), func(a *record.App) bool { return a.ParentID == "" || a.PullRequest != p.Number })
}

// Pushed implements Apps.
func (a *recordedApps) Pushed(ctx context.Context, p Push) (deployments []string, err error) {
	if p.Commit == "" {
		return nil, nil // the branch is gone; what is deployed stays
	}
	view := a.g.core.Store.View()
	var failed error
	for _, app := range a.g.followers(view, p) {
		if deployed(view, app.ID, p.Commit, triggerPush, p.AcceptedIndex) {
			continue
		}
		id, err := a.deployer.DeployApp(ctx, app.ID, p.Branch, p.Commit, p.Message, p.Author, triggerPush)
		if err != nil {
			failed = a.failed(ctx, failed, app.ID, err)
			continue
		}
		deployments = append(deployments, id)
	}
	return deployments, failed
}

// PullRequest implements Apps.
func (a *recordedApps) PullRequest(ctx context.Context, p PullRequest) error {
	view := a.g.core.Store.View()
	var failed error
	if p.Closed {
		for _, preview := range a.g.previews(view, p) {
			failed = a.failed(ctx, failed, preview.ID, a.close(ctx, preview.ID))
		}
		return failed
	}
	parents := a.g.parents(view, p)
	for _, preview := range a.g.previews(view, p) {
		// What was made of a branch of the repository knows too much for a fork's code: the
		// repository of the branch may have been given away since.
		unwanted := p.Fork && !slices.ContainsFunc(parents, func(app *record.App) bool { return app.ID == preview.ParentID })
		if preview.Fork != p.Fork || unwanted {
			failed = a.failed(ctx, failed, preview.ID, a.close(ctx, preview.ID))
		}
	}
	for _, app := range parents {
		failed = a.failed(ctx, failed, app.ID, a.open(ctx, app, p))
	}
	return failed
}

// failed adds what is worth another try, also if it must wait for it. What no try cures
// delays no other app.
func (a *recordedApps) failed(ctx context.Context, before error, appID string, err error) error {
	switch {
	case err == nil:
		return before
	case held(err):
		return errors.Join(before, fmt.Errorf("app %s: %w: %w", appID, errHeld, err))
	case final(err):
		a.g.core.Logger.WarnContext(ctx, "event of a git host had no effect on an app", "app_id", appID, "error", err)
		return before
	}
	return errors.Join(before, fmt.Errorf("app %s: %w", appID, err))
}

func (a *recordedApps) open(ctx context.Context, app *record.App, p PullRequest) error {
	env, err := a.g.previewEnv(a.g.core.Store.View(), app.WorkspaceID, p.ID)
	if err != nil {
		return err
	}
	id, err := a.deployer.CreatePreview(ctx, app.ID, p.Number, p.Branch, p.Fork, env)
	if err != nil {
		return err
	}
	if err := a.g.notePreview(ctx, app, id, p); err != nil {
		return err
	}
	if deployed(a.g.core.Store.View(), id, p.Commit, triggerPullRequest, p.AcceptedIndex) {
		return nil
	}
	_, err = a.deployer.DeployApp(ctx, id, p.Branch, p.Commit, p.Message, p.Author, triggerPullRequest)
	return err
}

func (a *recordedApps) close(ctx context.Context, previewID string) error {
	if err := a.deployer.DeletePreview(ctx, previewID); err != nil && apierror.CodeOf(err) != apierror.ENotFound {
		return fmt.Errorf("remove the preview %s: %w", previewID, err)
	}
	return a.g.closePreview(ctx, previewID)
}

// orphans removes the previews whose app is gone, and those of accounts that are
// connected no more: nothing would say when their pull requests are closed.
func (a *recordedApps) orphans(ctx context.Context) error {
	view := a.g.core.Store.View()
	var failed error
	for _, app := range raftstore.All(view, record.Apps) {
		if app.ParentID == "" || app.Status == record.AppDeleting {
			continue
		}
		if parent, ok := raftstore.Get(view, record.Apps, app.ParentID); !ok || parent.Status == record.AppDeleting {
			failed = a.failed(ctx, failed, app.ID, a.close(ctx, app.ID))
		}
	}
	for _, p := range raftstore.All(view, record.GitPreviews) {
		if !p.Closed && isThere(view, p) && !a.g.connected(view, p) {
			failed = a.failed(ctx, failed, p.PreviewID, a.close(ctx, p.PreviewID))
		}
	}
	return failed
}

// connected reports whether a preview's account is connected, maybe anew; one that is
// suspended is.
func (g *GitHosts) connected(r raftstore.Reader, p *record.GitPreview) bool {
	owner, _, ok := strings.Cut(p.FullName, "/")
	return ok && slices.ContainsFunc(raftstore.Find(r, record.GitInstallations, "workspace", p.WorkspaceID), func(i *record.GitInstallation) bool {
		return i.ID == p.InstallationID || strings.EqualFold(i.Account, owner)
	})
}
