package githost

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Installations returns a page of the workspace's installations, newest first.
func (g *GitHosts) Installations(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.GitHubInstallation, next string, err error) {
	if g.github == nil {
		return nil, "", errNotSetUp
	}
	view, err := g.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.GitInstallations, "workspace", c.WorkspaceID), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, showInstallation), next, nil
}

// DeleteInstallation disconnects an installation, and removes the app from its account,
// so that it can be installed anew. It fails while GitHub cannot be reached.
func (g *GitHosts) DeleteInstallation(ctx context.Context, c core.Caller, id string) error {
	if g.github == nil {
		return errNotSetUp
	}
	view, err := g.core.View(ctx, c)
	if err != nil {
		return err
	}
	if _, err := ownInstallation(view, c.WorkspaceID, id); err != nil {
		return err
	}
	auth, err := g.github.asApp()
	if err != nil {
		return err
	}
	err = g.github.do(ctx, request{method: http.MethodDelete, url: "/app/installations/" + url.PathEscape(id), auth: auth, limit: "app"}, nil)
	if status := answered(err); err != nil && status != http.StatusNotFound && status != http.StatusGone {
		return err
	}
	g.github.forget(id)
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		if _, err := ownInstallation(tx, c.WorkspaceID, id); err != nil {
			return nil // GitHub's own event was faster
		}
		raftstore.Delete(tx, record.GitInstallations, id)
		return nil
	})
}

// ownInstallation finds one of a workspace. Another workspace's is no different from none.
func ownInstallation(r raftstore.Reader, workspaceID, id string) (*record.GitInstallation, error) {
	i, ok := raftstore.Get(r, record.GitInstallations, id)
	if !ok || i.WorkspaceID != workspaceID {
		return nil, apierror.NotFound()
	}
	return i, nil
}

// maxPerPage is the most repositories that GitHub lists at once.
const maxPerPage = 100

// Repos returns a page of the repositories of an installation, as GitHub lists them. An
// empty id is that of the workspace's only installation.
func (g *GitHosts) Repos(ctx context.Context, c core.Caller, installationID string, o core.ListOptions) (page []api.GitHubRepo, next string, err error) {
	if g.github == nil {
		return nil, "", errNotSetUp
	}
	view, err := g.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	if installationID == "" {
		all := raftstore.Find(view, record.GitInstallations, "workspace", c.WorkspaceID)
		if len(all) != 1 {
			return nil, "", apierror.Invalid("installation_id is required", "the workspace has %d installations", len(all))
		}
		installationID = all[0].ID
	}
	i, err := ownInstallation(view, c.WorkspaceID, installationID)
	if err != nil {
		return nil, "", err
	}
	if i.Suspended {
		return nil, "", errSuspended
	}
	at, perPage := 1, min(cmp.Or(o.Limit, core.DefaultLimit), maxPerPage)
	if o.Cursor != "" {
		if at, perPage, err = readRepoCursor(o.Cursor); err != nil {
			return nil, "", err
		}
	}
	return g.listRepos(ctx, i.ID, at, perPage)
}

func (g *GitHosts) listRepos(ctx context.Context, installationID string, at, perPage int) (page []api.GitHubRepo, next string, err error) {
	auth, err := g.github.asInstallation(ctx, installationID, "", toList)
	if err == nil {
		var out struct {
			Total        int `json:"total_count"`
			Repositories []struct {
				ID            int64  `json:"id"`
				FullName      string `json:"full_name"`
				CloneURL      string `json:"clone_url"`
				Private       bool   `json:"private"`
				DefaultBranch string `json:"default_branch"`
			} `json:"repositories"`
		}
		err = g.github.do(ctx, request{
			method: http.MethodGet, url: fmt.Sprintf("/installation/repositories?per_page=%d&page=%d", perPage, at), auth: auth, limit: installationID,
		}, &out)
		for _, r := range out.Repositories {
			page = append(page, api.GitHubRepo{
				ID: strconv.FormatInt(r.ID, 10), FullName: r.FullName, CloneURL: r.CloneURL, Private: r.Private, DefaultBranch: r.DefaultBranch,
			})
		}
		if len(page) > 0 && at*perPage < out.Total {
			next = fmt.Sprintf("%d.%d", at+1, perPage)
		}
	}
	if answered(err) == http.StatusNotFound {
		err = errGone.With("it was removed at GitHub; connect it again", err)
	}
	return page, next, err
}

// readRepoCursor reads page.size: GitHub counts pages, so that their size must not change.
func readRepoCursor(cursor string) (page, perPage int, err error) {
	first, second, _ := strings.Cut(cursor, ".")
	p, wrong := strconv.ParseUint(first, 10, 20)
	n, alsoWrong := strconv.ParseUint(second, 10, 20)
	if wrong != nil || alsoWrong != nil || p < 1 || n < 1 || n > maxPerPage {
		return 0, 0, &apierror.Error{Code: apierror.EInvalid, Message: "invalid cursor"}
	}
	return int(p), int(n), nil
}

// InstallationFor is the installation through which a workspace reaches a repository: the
// one in the account that the repository is of. Whether that includes the repository,
// GitHub says when a token for it is asked for.
func (g *GitHosts) InstallationFor(r raftstore.Reader, workspaceID, repoURL string) (installationID string, ok bool) {
	owner, _, ok := g.splitURL(repoURL)
	if !ok {
		return "", false
	}
	for _, i := range raftstore.Find(r, record.GitInstallations, "workspace", workspaceID) {
		if strings.EqualFold(i.Account, owner) && !i.Suspended {
			return i.ID, true
		}
	}
	return "", false
}
