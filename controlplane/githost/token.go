package githost

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// The app's own token: GitHub takes one that is valid for at most ten minutes, and
	// its clock may be behind.
	appTokenTime = 9 * time.Minute
	appTokenSkew = time.Minute
	// tokenMargin is how long a token of an installation must still be valid to be given
	// out. They are valid for an hour; a clone of a large repository takes minutes.
	tokenMargin = 15 * time.Minute
	// cloneUser is the user that GitHub wants with a token over HTTPS.
	cloneUser = "x-access-token"
)

// token is one of an installation.
type token struct {
	value   string
	expires time.Time
}

// asApp is the Authorization of the app itself.
func (c *client) asApp() (string, error) {
	now := c.clock()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer: c.app.ID, IssuedAt: jwt.NewNumericDate(now.Add(-appTokenSkew)), ExpiresAt: jwt.NewNumericDate(now.Add(appTokenTime)),
	}).SignedString(c.app.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("sign a token of the github app: %w", err)
	}
	return "Bearer " + signed, nil
}

// Permissions that tokens are asked for; each no more than it takes.
var (
	toClone   = map[string]string{"contents": "read"}
	toList    = map[string]string{"metadata": "read"}
	toReport  = map[string]string{"statuses": "write"}
	toDeploy  = map[string]string{"deployments": "write"}
	toComment = map[string]string{"pull_requests": "write"}
)

// token returns a token of an installation with some permissions, for one repository, or
// for all if repo is "".
func (c *client) token(ctx context.Context, installationID, repo string, may map[string]string) (string, error) {
	key := installationID + "/" + strings.ToLower(repo)
	for _, p := range slices.Sorted(maps.Keys(may)) {
		key += " " + p + ":" + may[p]
	}
	now := c.clock()
	c.mu.Lock()
	t, ok := c.tokens[key]
	c.mu.Unlock()
	if ok && t.expires.Sub(now) > tokenMargin {
		return t.value, nil
	}
	auth, err := c.asApp()
	if err != nil {
		return "", err
	}
	in := struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions"`
	}{Permissions: may}
	if repo != "" {
		in.Repositories = []string{repo}
	}
	var out struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	err = c.do(ctx, request{
		method: http.MethodPost, url: "/app/installations/" + url.PathEscape(installationID) + "/access_tokens", auth: auth, limit: "app", in: in,
	}, &out)
	if err != nil {
		return "", err
	}
	if out.Token == "" || strings.ContainsFunc(out.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", unreachable(fmt.Errorf("it answered with a token that is none"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(_ string, t token) bool { return t.expires.Sub(now) <= tokenMargin })
	c.tokens[key] = token{out.Token, out.ExpiresAt}
	return out.Token, nil
}

// forget drops the tokens of an installation.
func (c *client) forget(installationID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(key string, _ token) bool { return strings.HasPrefix(key, installationID+"/") })
}

// asInstallation is the Authorization of an installation, for one repository's name.
func (c *client) asInstallation(ctx context.Context, installationID, repo string, may map[string]string) (string, error) {
	t, err := c.token(ctx, installationID, repo, may)
	if err != nil {
		return "", err
	}
	return "Bearer " + t, nil
}

// CloneToken returns the credential with which a workspace clones one repository of an
// installation of its own. It can read that repository's content for up to an hour, and
// do nothing else.
func (g *GitHosts) CloneToken(ctx context.Context, workspaceID, installationID, repoURL string) (username, password string, err error) {
	if g.github == nil {
		return "", "", errNotSetUp
	}
	i, ok := raftstore.Get(g.core.Store.View(), record.GitInstallations, installationID)
	switch {
	case !ok || i.WorkspaceID != workspaceID:
		return "", "", apierror.NotFound().With("the workspace has no such installation; connect GitHub again", nil)
	case i.Suspended:
		return "", "", errSuspended
	}
	owner, name, ok := g.splitURL(repoURL)
	if !ok || !strings.EqualFold(owner, i.Account) {
		return "", "", apierror.Invalid("repository is not of the installation", "the installation is in the account %s", i.Account)
	}
	t, err := g.github.token(ctx, installationID, name, toClone)
	switch answered(err) {
	case 0:
		return cloneUser, t, err
	case http.StatusNotFound:
		return "", "", errGone.With("it was removed at GitHub; connect it again", err)
	case http.StatusUnprocessableEntity:
		return "", "", &apierror.Error{
			Code: apierror.EUnprocessable, Message: "repository is not accessible", Err: err,
			Detail: "the installation does not include it; add it in the settings of the GitHub App in the account " + i.Account,
		}
	}
	return "", "", err
}

var (
	errSuspended = &apierror.Error{Code: apierror.EConflict, Message: "installation is suspended", Detail: "its account suspended it at GitHub"}
	errGone      = &apierror.Error{Code: apierror.EConflict, Message: "installation is gone"}
)

// splitURL is the owner and the name in the URL of a repository at GitHub.
func (g *GitHosts) splitURL(repoURL string) (owner, name string, ok bool) {
	if g.cfg.App == nil {
		return "", "", false
	}
	path, ok := strings.CutPrefix(record.NormalGitURL(repoURL), strings.ToLower(g.cfg.App.Web)+"/")
	u, err := url.Parse(repoURL)
	if !ok || err != nil || !validFullName(path) {
		return "", "", false
	}
	// As it was written: the normal form has lost the case of the letters.
	parts := strings.Split(strings.TrimRight(u.Path, "/"), "/")
	owner, name = parts[len(parts)-2], parts[len(parts)-1]
	if strings.HasSuffix(strings.ToLower(name), ".git") {
		name = name[:len(name)-len(".git")]
	}
	return owner, name, true
}
