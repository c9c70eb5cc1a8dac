package githost

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// MaxInstallations bounds those of a workspace.
	MaxInstallations = 100
	// clockSkew is by how much GitHub's clock may differ from ours.
	clockSkew = time.Minute
)

// Connect returns where a person installs the app. What comes back from there belongs to
// the caller's workspace.
func (g *GitHosts) Connect(ctx context.Context, c core.Caller) (api.GitHubConnect, error) {
	if g.github == nil {
		return api.GitHubConnect{}, errNotSetUp
	}
	view, err := g.core.View(ctx, c)
	if err != nil {
		return api.GitHubConnect{}, err
	}
	if err := core.MayCreate(view, c); err != nil {
		return api.GitHubConnect{}, err
	}
	now := g.core.Clock()
	s, err := newState(g.core.Sealer, c, now)
	if err != nil {
		return api.GitHubConnect{}, err
	}
	return api.GitHubConnect{
		URL:       g.appPage() + "/installations/new?" + url.Values{"state": {s}}.Encode(),
		ExpiresAt: api.Time{Time: now.Add(stateTime)},
	}, nil
}

// appPage is the page of the app. GitHub Enterprise Server has it elsewhere.
func (g *GitHosts) appPage() string {
	folder := "/github-apps/"
	if u, err := url.Parse(g.cfg.App.Web); err == nil {
		if host := u.Hostname(); host == "github.com" || strings.HasSuffix(host, ".ghe.com") {
			folder = "/apps/"
		}
	}
	return g.cfg.App.Web + folder + url.PathEscape(g.cfg.App.Slug)
}

// maxTries is how many callbacks of a workspace ask GitHub in triesTime. They have no other
// credential than a state, and what they ask counts against the limit of the App, which
// clones for all workspaces.
const (
	maxTries  = 20
	triesTime = time.Minute
)

// tries counts callbacks by workspace.
type tries struct {
	mu    sync.Mutex
	since time.Time
	of    map[string]int // since then
}

// take counts one more, or refuses it.
func (t *tries) take(workspaceID string, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil || now.Sub(t.since) >= triesTime || now.Before(t.since) {
		t.since, t.of = now, map[string]int{}
	}
	if t.of[workspaceID] >= maxTries {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many tries to connect", Detail: fmt.Sprintf("github is asked for a workspace %d times in %s", maxTries, triesTime),
			RetryAfter: t.since.Add(triesTime).Sub(now),
		}
	}
	t.of[workspaceID]++
	return nil
}

// Callback is what GitHub has a browser bring back.
type Callback struct {
	InstallationID, State, SetupAction string
	Code                               string // of OAuth, where the app asks for it
	Ask                                bool   // a person with a browser confirms first
	Confirm                            string // of the Question that the first call was answered with
}

// installation is one as GitHub describes it.
type installation struct {
	ID      int64 `json:"id"`
	AppID   int64 `json:"app_id"`
	Account struct {
		ID    int64  `json:"id"`
		Login string `json:"login"`
		Type  string `json:"type"`
	} `json:"account"`
	Selection   string     `json:"repository_selection"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	SuspendedAt *time.Time `json:"suspended_at"`
}

// Callback records an installation for the workspace that its state names; with Ask, once
// the person with the browser has confirmed that, and until then its error has a Question.
// The same call again has the same answer.
func (g *GitHosts) Callback(ctx context.Context, in Callback) (api.GitHubInstallation, error) {
	if g.github == nil {
		return api.GitHubInstallation{}, errNotSetUp
	}
	now := g.core.Clock()
	s, err := openState(g.core.Sealer, in.State, now)
	if err != nil {
		return api.GitHubInstallation{}, err
	}
	view, err := g.core.Current(ctx)
	if err != nil {
		return api.GitHubInstallation{}, err
	}
	if i, err := used(view, s, in.InstallationID); i != nil || err != nil {
		return showInstallation(i), err
	}
	switch {
	case in.InstallationID == "" && in.SetupAction == "request":
		return api.GitHubInstallation{}, &apierror.Error{
			Code: apierror.EConflict, Message: "installation waits for approval", Detail: "an owner of the account approves it at GitHub; then " + beginAgain,
		}
	case !numberID.MatchString(in.InstallationID):
		return api.GitHubInstallation{}, apierror.Invalid("invalid installation_id", "want a number")
	}
	if err := g.tries.take(s.Workspace, now); err != nil {
		return api.GitHubInstallation{}, err
	}
	found, err := g.lookUp(ctx, in.InstallationID)
	if err != nil {
		return api.GitHubInstallation{}, err
	}
	if in.Confirm != "" {
		err = g.checkConfirm(in.Confirm, s, in.InstallationID)
	} else if err = g.mayConnect(ctx, s, found, in.Code); err == nil && in.Ask {
		err = g.ask(view, s, in.InstallationID, found.Account.Login)
	}
	if err != nil {
		return api.GitHubInstallation{}, err
	}
	row, err := g.record(ctx, s, found)
	if err != nil {
		return api.GitHubInstallation{}, err
	}
	return showInstallation(row), nil
}

// used is the installation that a state has connected, if it has.
func used(r raftstore.Reader, s state, installationID string) (*record.GitInstallation, error) {
	receipt, ok := raftstore.Get(r, record.GitReceipts, stateReceipt(s))
	if !ok {
		return nil, nil
	}
	if i, ok := raftstore.Get(r, record.GitInstallations, installationID); ok && receipt.About == installationID && i.WorkspaceID == s.Workspace {
		return i, nil
	}
	return nil, &apierror.Error{Code: apierror.EConflict, Message: "state was used already", Detail: beginAgain}
}

func stateReceipt(s state) string { return "state:" + s.Nonce }

// lookUp asks GitHub for an installation of this app.
func (g *GitHosts) lookUp(ctx context.Context, id string) (installation, error) {
	var found installation
	auth, err := g.github.asApp()
	if err != nil {
		return found, err
	}
	err = g.github.do(ctx, request{method: http.MethodGet, url: "/app/installations/" + url.PathEscape(id), auth: auth, limit: "app"}, &found)
	switch {
	case answered(err) == http.StatusNotFound:
		return found, apierror.NotFound().With("github knows no such installation of this app", err)
	case err != nil:
		return found, err
	case strconv.FormatInt(found.ID, 10) != id || found.Account.Login == "" || found.AppID != 0 && strconv.FormatInt(found.AppID, 10) != g.cfg.App.ID:
		return found, unreachable(fmt.Errorf("it described another installation than %s", id))
	}
	return found, nil
}

// mayConnect refuses an installation that the person with the browser has no right to:
// the id in the URL is theirs to choose, and ids are easily guessed.
func (g *GitHosts) mayConnect(ctx context.Context, s state, i installation, code string) error {
	fresh := !i.CreatedAt.Before(s.Issued.Add(-clockSkew))
	if g.cfg.App.ClientID == "" {
		if !fresh {
			return &apierror.Error{
				Code: apierror.EConflict, Message: "installation is older than the request", Detail: "remove it at GitHub, and " + beginAgain,
			}
		}
		return nil
	}
	if code == "" {
		return (&apierror.Error{Code: apierror.EForbidden, Message: "code is required"}).With(
			"the GitHub App must request user authorization during installation", nil)
	}
	auth, err := g.asPerson(ctx, code)
	if err != nil {
		return err
	}
	seen, err := g.sees(ctx, auth, i.ID)
	theirs := false
	if err == nil && seen {
		theirs, err = g.owns(ctx, auth, i)
	}
	if err == nil && seen && !theirs && fresh {
		theirs, err = g.administers(ctx, auth, i.ID)
	}
	switch {
	case err != nil:
		return err
	case !theirs:
		return &apierror.Error{Code: apierror.EForbidden, Message: "installation is not yours", Detail: "an owner of its account connects it"}
	}
	return nil
}

// asPerson exchanges a code for the Authorization of the person who has it.
func (g *GitHosts) asPerson(ctx context.Context, code string) (string, error) {
	var out struct {
		AccessToken string `json:"access_token"`
		Error       string `json:"error"`
	}
	in := map[string]string{"client_id": g.cfg.App.ClientID, "client_secret": g.cfg.App.ClientSecret, "code": code}
	err := g.github.do(ctx, request{method: http.MethodPost, url: g.cfg.App.Web + "/login/oauth/access_token", limit: "oauth", in: in}, &out)
	switch {
	case err != nil:
		return "", err
	case out.AccessToken == "":
		return "", &apierror.Error{Code: apierror.EForbidden, Message: "invalid code", Detail: beginAgain, Err: fmt.Errorf("github answered %q", oneLine(out.Error, 100))}
	}
	return "Bearer " + out.AccessToken, nil
}

// sees reports whether a person can see an installation.
func (g *GitHosts) sees(ctx context.Context, auth string, id int64) (bool, error) {
	const perPage, maxPages = 100, 20
	for page := 1; page <= maxPages; page++ {
		var out struct {
			Installations []installation `json:"installations"`
		}
		at := fmt.Sprintf("/user/installations?per_page=%d&page=%d", perPage, page)
		if err := g.github.do(ctx, request{method: http.MethodGet, url: at, auth: auth}, &out); err != nil {
			return false, err
		}
		for _, i := range out.Installations {
			if i.ID == id {
				return true, nil
			}
		}
		if len(out.Installations) < perPage {
			break
		}
	}
	return false, nil
}

// administers reports whether a person administers all repositories of an installation, as
// whoever installs the app does. Of a new installation that is enough: an App without the
// permission to read members cannot ask for more.
func (g *GitHosts) administers(ctx context.Context, auth string, id int64) (bool, error) {
	const perPage, maxPages = 100, 10
	installationID := strconv.FormatInt(id, 10)
	own, err := g.github.asInstallation(ctx, installationID, "", toList)
	if err != nil {
		return false, err
	}
	var all struct {
		Total int `json:"total_count"`
	}
	if err := g.github.do(ctx, request{method: http.MethodGet, url: "/installation/repositories?per_page=1&page=1", auth: own, limit: installationID}, &all); err != nil {
		return false, err
	}
	administered := 0
	for page := 1; page <= maxPages; page++ {
		var out struct { // those that the person can read
			Repositories []struct {
				Permissions struct {
					Admin bool `json:"admin"`
				} `json:"permissions"`
			} `json:"repositories"`
		}
		at := fmt.Sprintf("/user/installations/%d/repositories?per_page=%d&page=%d", id, perPage, page)
		if err := g.github.do(ctx, request{method: http.MethodGet, url: at, auth: auth}, &out); err != nil {
			return false, err
		}
		for _, r := range out.Repositories {
			if !r.Permissions.Admin {
				return false, nil
			}
		}
		administered += len(out.Repositories)
		if len(out.Repositories) < perPage {
			break
		}
	}
	return administered > 0 && administered == all.Total, nil
}

// owns reports whether a person owns the account of an installation. Whoever can read one
// of its repositories sees it, but must not open all of them to a workspace.
func (g *GitHosts) owns(ctx context.Context, auth string, i installation) (bool, error) {
	var who struct {
		ID int64 `json:"id"`
	}
	if err := g.github.do(ctx, request{method: http.MethodGet, url: "/user", auth: auth}, &who); err != nil {
		return false, err
	}
	if who.ID == i.Account.ID && who.ID != 0 {
		return true, nil
	}
	var member struct {
		State string `json:"state"`
		Role  string `json:"role"`
	}
	err := g.github.do(ctx, request{
		method: http.MethodGet, url: "/user/memberships/orgs/" + url.PathEscape(i.Account.Login), auth: auth,
	}, &member)
	if status := answered(err); status == http.StatusNotFound || status == http.StatusForbidden && !isBusy(err) {
		return false, nil
	}
	return member.State == "active" && member.Role == "admin", err
}

func isBusy(err error) bool { return apierror.CodeOf(err) == apierror.EUnavailable }

// record writes an installation down, with its state as used.
func (g *GitHosts) record(ctx context.Context, s state, i installation) (*record.GitInstallation, error) {
	var row *record.GitInstallation
	id := strconv.FormatInt(i.ID, 10)
	err := g.core.Update(ctx, func(tx *raftstore.Tx) error {
		before, err := used(tx, s, id)
		if row = before; before != nil || err != nil {
			return err
		}
		if err := core.MayCreate(tx, core.Caller{WorkspaceID: s.Workspace}); err != nil {
			return err
		}
		if !stillMay(tx, s, g.core.Clock()) {
			return &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: "who began this may connect nothing to the workspace any more"}
		}
		row = &record.GitInstallation{Meta: record.Meta{ID: id}, WorkspaceID: s.Workspace}
		if there, ok := raftstore.Get(tx, record.GitInstallations, id); ok {
			if there.WorkspaceID != s.Workspace {
				return &apierror.Error{Code: apierror.EConflict, Message: "installation belongs to another workspace", Detail: "it is disconnected there first"}
			}
			row = there.Clone()
		} else if n := len(raftstore.Find(tx, record.GitInstallations, "workspace", s.Workspace)); n >= MaxInstallations {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "max installations reached", Fields: map[string]any{"max": MaxInstallations, "active": n},
			}
		}
		row.Account, row.AccountType, row.Selection = i.Account.Login, i.Account.Type, i.Selection
		row.Suspended, row.ChangedAt, row.ConnectedBy = i.SuspendedAt != nil, i.UpdatedAt.UTC(), s.By
		raftstore.Put(tx, record.GitInstallations, row)
		raftstore.Put(tx, record.GitReceipts, &record.GitReceipt{Meta: record.Meta{ID: stateReceipt(s)}, ExpiresAt: s.Expires.Add(clockSkew), About: id})
		return nil
	})
	return row, err
}

// stillMay reports whether who asked for an installation may still write in the
// workspace: the role may have been taken away, or the key may have gone or expired, since.
func stillMay(r raftstore.Reader, s state, now time.Time) bool {
	if u, ok := raftstore.Get(r, record.Users, s.By); ok {
		role, member := u.RoleIn(s.Workspace)
		return member && role != record.RoleViewer
	}
	k, ok := raftstore.Get(r, record.APIKeys, s.By)
	if !ok || k.WorkspaceID != s.Workspace || !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) {
		return false
	}
	role, valid := core.KeyRole(r, k)
	return valid && role != record.RoleViewer
}

func showInstallation(i *record.GitInstallation) api.GitHubInstallation {
	if i == nil {
		return api.GitHubInstallation{}
	}
	return api.GitHubInstallation{
		ID: i.ID, Account: i.Account, AccountType: i.AccountType, RepositorySelection: i.Selection, Suspended: i.Suspended,
		CreatedAt: api.Time{Time: i.CreatedAt},
	}
}
