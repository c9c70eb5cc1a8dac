package app

import (
	"cmp"
	"context"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Push is a push to an app's repository, or a pull request there.
type Push struct {
	Trigger api.DeploymentTrigger // TriggerPush, the default, or TriggerPullRequest
	GitRef  string                // branch, tag or commit
	// Commit is the commit that was pushed to GitRef, which is built. If it is empty, the
	// build takes the commit that GitRef names by then. Message and Author are those of
	// the commit.
	Commit, Message, Author string
}

// Pushed begins a deployment of a push, in place of one that waits for an earlier push. It
// acts on the word of a git host, which has proven that it may do so.
func (s *Apps) Pushed(ctx context.Context, workspaceID, appID string, p Push) (api.Deployment, error) {
	if err := validRef("git_ref", p.GitRef); err != nil {
		return api.Deployment{}, err
	}
	if p.Commit != "" && !commitID.MatchString(p.Commit) {
		return api.Deployment{}, apierror.Invalid("invalid git_commit", "want 40 or 64 hexadecimal digits")
	}
	d := &record.Deployment{
		Trigger: string(cmp.Or(p.Trigger, api.TriggerPush)), GitRef: p.GitRef,
		GitCommit: p.Commit, GitMessage: clean(p.Message, maxMessage), GitAuthor: cleanLine(p.Author, maxAuthor),
	}
	return s.begin(ctx, core.Caller{WorkspaceID: workspaceID}, appID, d, core.Idempotency{}, "", func(tx *raftstore.Tx, a *record.App, d *record.Deployment) error {
		if a.GitURL == "" {
			return &apierror.Error{Code: apierror.EConflict, Message: "the source of this app is uploaded"}
		}
		return sourceOf(tx, a, d)
	})
}

// pushed reports whether a git host has named the commit of a deployment.
func pushed(d *record.Deployment) bool {
	return d.GitCommit != "" && (d.Trigger == triggerPush || d.Trigger == triggerPullRequest)
}

// refOf returns what a guest is to clone. For a push it is exactly the pushed commit,
// because the branch may have moved on since.
func refOf(d *record.Deployment) string {
	if pushed(d) {
		return d.GitCommit
	}
	return d.GitRef
}

// repositoryOf returns the clone URL of a deployment. The app's may have been changed since
// it was asked for, and its ref is one of the former repository. Rows of early versions have
// none.
func repositoryOf(d *record.Deployment, a *record.App) string { return cmp.Or(d.GitURL, a.GitURL) }
