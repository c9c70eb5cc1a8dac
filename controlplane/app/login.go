package app

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

// tokenPause is the pause after a git host could give no token for now.
const tokenPause = 2 * time.Second

// login holds the credentials to clone a repository. Only guestapp gets them; they are in
// no row and no log.
type login struct{ username, token string }

// login returns the credentials for a deployment's repository, if any. If the git host is
// out of order, login asks the caller to wait, for a while. After that, or if there will
// never be a token, the repository is cloned without one: it may be public, and then the
// clone succeeds. If the clone fails, the deployment says why it had no token.
func (f *Flows) login(ctx context.Context, data *deploy, d *record.Deployment, a *record.App) (l login, wait bool) {
	url := repositoryOf(d, a)
	if f.cfg.CloneToken == nil || d.Source != sourceGit || !strings.HasPrefix(strings.ToLower(url), "https://") {
		return login{}, false
	}
	var err error
	l.username, l.token, err = f.cfg.CloneToken(ctx, a.WorkspaceID, a.InstallationID, url)
	if err == nil {
		data.NoToken, data.TokenBy = "", time.Time{}
		return l, false
	}
	now := f.Clock()
	if data.TokenBy.IsZero() {
		data.TokenBy = now.Add(f.cfg.GuestSilent)
	}
	if code := apierror.CodeOf(err); (code == apierror.EBadGateway || code == apierror.EUnavailable) && now.Before(data.TokenBy) {
		return login{}, true
	}
	data.NoToken = clean(reasonOf(err), maxReason)
	f.Logger.WarnContext(ctx, "app is cloned without a token", "app_id", a.ID, "deployment_id", d.ID, "error", err)
	return login{}, false
}

var errTold = errors.New("the guest's answer has the token of its clone in it")

// without returns err, or another error if err contains the token: a guest may say
// anything.
func (l login) without(err error) error {
	if err == nil || l.token == "" || !strings.Contains(err.Error(), l.token) {
		return err
	}
	return &apierror.Error{Code: apierror.EUnprocessable, Message: "the build was refused", Err: errTold}
}
