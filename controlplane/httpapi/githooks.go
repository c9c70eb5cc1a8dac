package httpapi

import (
	"bytes"
	"html/template"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/githost"
)

func (a *API) githubWebhook(c *gin.Context) error { return a.gitWebhook(c, githost.GitHub) }
func (a *API) gitlabWebhook(c *gin.Context) error { return a.gitWebhook(c, githost.GitLab) }
func (a *API) giteaWebhook(c *gin.Context) error  { return a.gitWebhook(c, githost.Gitea) }

func (a *API) gitWebhook(c *gin.Context, provider string) error {
	if err := a.cfg.GitHosts.CheckHook(provider, c.Request.Header); err != nil {
		return err
	}
	body, release, err := a.readHook(c)
	defer release()
	if err != nil {
		return err
	}
	out, err := a.cfg.GitHosts.Receive(c.Request.Context(), provider, c.Request.Header, body)
	if err != nil {
		return err
	}
	return accepted(c, out)
}

// connectedPage is what a person sees who comes back from GitHub.
var connectedPage = template.Must(template.New("connected").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}</style>
<h1>{{.Title}}</h1><p>{{.Text}}</p>{{with .Form}}
<form>{{range $name, $value := .}}<input type="hidden" name="{{$name}}" value="{{$value}}">{{end}}<button>Connect</button></form>{{end}}</html>
`))

// githubCallback answers a browser with a page, also where it refuses.
func (a *API) githubCallback(c *gin.Context) error {
	if c.Request.Method != http.MethodGet {
		c.Header("Allow", http.MethodGet)
		return errMethodNotAllowed // a HEAD must not use up a state
	}
	q, err := queryOf(c, "installation_id", "state", "setup_action", "code", "confirm")
	if err != nil {
		return err
	}
	in := githost.Callback{
		InstallationID: q.Get("installation_id"), State: q.Get("state"), SetupAction: q.Get("setup_action"), Code: q.Get("code"), Confirm: q.Get("confirm"),
		Ask: strings.Contains(c.GetHeader("Accept"), "text/html"),
	}
	out, err := a.cfg.GitHosts.Callback(c.Request.Context(), in)
	if !in.Ask {
		if err != nil {
			return err
		}
		return ok(c, out)
	}
	status, title, text := http.StatusOK, "GitHub is connected", connectedText(out)
	var form map[string]string
	if asked, ok := githost.Asks(err); ok {
		title, text = "Connect "+asked.Account+"?", questionText(asked)
		form = map[string]string{"installation_id": in.InstallationID, "state": in.State, "confirm": asked.Confirm}
	} else if err != nil {
		e, s := classify(c.Request.Context(), err)
		if s >= http.StatusInternalServerError {
			return err // as JSON, and in the log
		}
		status, title, text = s, "GitHub is not connected", strings.TrimSuffix(e.Message+": "+e.Detail, ": ")
	}
	var page bytes.Buffer
	if err := connectedPage.Execute(&page, map[string]any{"Title": title, "Text": text, "Form": form}); err != nil {
		return err
	}
	c.Header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	writeBytes(c, status, "text/html; charset=utf-8", page.Bytes())
	return nil
}

func questionText(q githost.Question) string {
	return "The workspace " + q.Workspace + " (" + q.WorkspaceID + ") will read the repositories of " + q.Account + " and deploy them. " + q.AskedBy +
		" asked for it. Connect it only if this is your workspace. If you did not ask for it, close this page, and remove the app in the settings of the account at GitHub."
}

func connectedText(i api.GitHubInstallation) string {
	return "The repositories of " + i.Account + " can be deployed in the workspace that asked for it. You can close this page. " +
		"If you did not ask for it, remove the app in the settings of the account at GitHub."
}
