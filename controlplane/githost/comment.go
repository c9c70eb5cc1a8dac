package githost

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// previewID is the id of the row of an app's preview.
func previewID(appID string, number int) string { return appID + "#" + strconv.Itoa(number) }

// notePreview writes down that a pull request has a preview, so that it gets a comment.
func (g *GitHosts) notePreview(ctx context.Context, app *record.App, preview string, p PullRequest) error {
	installation, ok := g.InstallationFor(g.core.Store.View(), app.WorkspaceID, app.GitURL)
	if !ok {
		return nil // nobody whom the comment could be from
	}
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		row := &record.GitPreview{Meta: record.Meta{ID: previewID(app.ID, p.Number)}, WorkspaceID: app.WorkspaceID, AppID: app.ID, PullRequest: p.Number}
		if there, ok := raftstore.Get(tx, record.GitPreviews, row.ID); ok {
			row = there.Clone()
		}
		row.PreviewID, row.Repo, row.FullName, row.InstallationID, row.Closed = preview, p.URL, p.FullName, installation, false
		raftstore.Put(tx, record.GitPreviews, row)
		return nil
	})
}

// closePreview writes down that a preview is gone.
func (g *GitHosts) closePreview(ctx context.Context, preview string) error {
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		for _, row := range raftstore.Find(tx, record.GitPreviews, "preview", preview) {
			row = row.Clone()
			row.Closed = true
			raftstore.Put(tx, record.GitPreviews, row)
		}
		return nil
	})
}

// isThere reports whether a preview is: somebody may have deleted its app, of whose pull
// request nothing is heard then.
func isThere(r raftstore.Reader, p *record.GitPreview) bool {
	_, there := raftstore.Get(r, record.Apps, p.PreviewID)
	return there
}

// comment begins to write each comment whose text has changed, and forgets previews that
// are closed, or gone, and have their last one.
func (k *keeper) comment(ctx context.Context) {
	view, now := k.Store.View(), k.Clock()
	for _, p := range raftstore.All(view, record.GitPreviews) {
		text := k.g.textOf(view, p)
		gone := p.Closed || !isThere(view, p)
		settled := text == p.Comment || text == p.GivenUp || gone && p.CommentID == 0 && p.Tries == 0
		switch {
		case settled && gone:
			// As a job, so that none of this preview is under way.
			k.Begin(loops.Job{What: loopComments, Host: p.InstallationID, ID: p.ID}, perInstallation, func() { k.forgetPreview(ctx, p) })
		case !settled && !p.NextAttemptAt.After(now):
			k.Begin(loops.Job{What: loopComments, Host: p.InstallationID, ID: p.ID}, perInstallation, func() { k.write(ctx, p, text) })
		}
	}
}

func (k *keeper) forgetPreview(ctx context.Context, p *record.GitPreview) {
	k.Update(ctx, loopComments, func(tx *raftstore.Tx) error {
		if row, ok := raftstore.Get(tx, record.GitPreviews, p.ID); ok && row.ModifyIndex == p.ModifyIndex {
			raftstore.Delete(tx, record.GitPreviews, p.ID)
		}
		return nil
	})
}

// marker is in a comment so that it is found again where its id was lost.
func marker(p *record.GitPreview) string { return "<!-- berth-preview " + p.ID + " -->" }

var markdown = strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "[", "\\[", "]", "\\]", "<", "&lt;", ">", "&gt;", "@", "&#64;", "#", "\\#", "!", "\\!")

// textOf is what the comment of a preview is to say.
func (g *GitHosts) textOf(r raftstore.Reader, p *record.GitPreview) string {
	name := p.AppID
	if parent, ok := raftstore.Get(r, record.Apps, p.AppID); ok {
		name = markdown.Replace(oneLine(parent.Name, 100))
	}
	head := marker(p) + "\n"
	preview, ok := raftstore.Get(r, record.Apps, p.PreviewID)
	if p.Closed || !ok {
		return head + "The preview of **" + name + "** was removed."
	}
	var last *record.Deployment
	for _, d := range raftstore.Find(r, record.Deployments, "app", p.PreviewID) {
		if last == nil || d.CreateIndex > last.CreateIndex {
			last = d
		}
	}
	status, commit := "waits to be deployed", ""
	if last != nil {
		switch last.Status {
		case record.DeploymentLive:
			status = "is live"
		case record.DeploymentFailed:
			status = "failed: " + markdown.Replace(oneLine(last.Error, 200))
		default:
			status = "is being deployed"
		}
		if len(last.GitCommit) >= 8 {
			commit = "\n\nCommit " + last.GitCommit[:8]
		}
	}
	text := head + "The preview of **" + name + "** " + status + "."
	if preview.DeploymentID != "" && g.cfg.AppURL != nil {
		text += "\n\n" + g.cfg.AppURL(preview.ID)
	}
	return text + commit
}

// write makes one attempt to write a comment.
func (k *keeper) write(ctx context.Context, p *record.GitPreview, text string) {
	id, err := k.g.setComment(ctx, p, text)
	if ctx.Err() != nil {
		return
	}
	k.Update(ctx, loopComments, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.GitPreviews, p.ID)
		if !ok {
			return nil
		}
		row = row.Clone()
		row.CommentID = id
		switch next, again := k.again(err, row.Tries); {
		case err == nil:
			row.Comment, row.Tries, row.NextAttemptAt = text, 0, time.Time{}
		case again:
			row.Tries, row.NextAttemptAt = row.Tries+1, next
		default:
			row.GivenUp, row.Tries, row.NextAttemptAt = text, 0, time.Time{}
		}
		raftstore.Put(tx, record.GitPreviews, row)
		return nil
	})
	if err != nil {
		k.Logger.InfoContext(ctx, "comment on a pull request could not be written", "app_id", p.AppID, "pull_request", p.PullRequest, "error", err)
	}
}

// setComment makes the comment of a preview, or changes it, and returns its id.
func (g *GitHosts) setComment(ctx context.Context, p *record.GitPreview, text string) (id int64, err error) {
	owner, repo, _ := strings.Cut(p.FullName, "/")
	auth, err := g.github.asInstallation(ctx, p.InstallationID, repo, toComment)
	if err != nil {
		return p.CommentID, err
	}
	if id = p.CommentID; id == 0 {
		if id, err = g.findComment(ctx, p, auth); err != nil {
			return 0, err
		}
	}
	at := "/repos/" + owner + "/" + repo + "/issues/"
	in := map[string]string{"body": text}
	if id != 0 {
		err := g.github.do(ctx, request{method: http.MethodPatch, url: fmt.Sprintf("%scomments/%d", at, id), auth: auth, limit: p.InstallationID, in: in}, nil)
		if answered(err) != http.StatusNotFound {
			return id, err
		}
		// Somebody has deleted it.
	}
	var made struct {
		ID int64 `json:"id"`
	}
	err = g.github.do(ctx, request{
		method: http.MethodPost, url: fmt.Sprintf("%s%d/comments", at, p.PullRequest), auth: auth, limit: p.InstallationID, in: in,
	}, &made)
	return made.ID, err
}

// findComment looks for a comment that an attempt has made whose answer was lost.
func (g *GitHosts) findComment(ctx context.Context, p *record.GitPreview, auth string) (int64, error) {
	const perPage, maxPages = 100, 10
	owner, repo, _ := strings.Cut(p.FullName, "/")
	for page := 1; page <= maxPages; page++ {
		var out []struct {
			ID   int64  `json:"id"`
			Body string `json:"body"`
			User struct {
				Type string `json:"type"`
			} `json:"user"`
		}
		at := fmt.Sprintf("/repos/%s/%s/issues/%d/comments?per_page=%d&page=%d", owner, repo, p.PullRequest, perPage, page)
		if err := g.github.do(ctx, request{method: http.MethodGet, url: at, auth: auth, limit: p.InstallationID}, &out); err != nil {
			return 0, err
		}
		for _, c := range out {
			// Anybody can write the marker; a comment of another can only not be changed.
			if c.User.Type == "Bot" && strings.HasPrefix(c.Body, marker(p)) {
				return c.ID, nil
			}
		}
		if len(out) < perPage {
			break
		}
	}
	return 0, nil
}
