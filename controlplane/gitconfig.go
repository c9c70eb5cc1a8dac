package controlplane

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/githost"
)

// GitHosts contains the settings of the git hosts. A secret is given itself, or as the
// path of a file, which begins with a slash.
type GitHosts struct {
	GitHubAppID         string `env:"BERTH_GITHUB_APP_ID"`
	GitHubAppSlug       string `env:"BERTH_GITHUB_APP_SLUG"`    // the last part of the URL of the app's page
	GitHubPrivateKey    string `env:"BERTH_GITHUB_PRIVATE_KEY"` // PEM file
	GitHubWebhookSecret string `env:"BERTH_GITHUB_WEBHOOK_SECRET"`
	GitHubClientID      string `env:"BERTH_GITHUB_CLIENT_ID"` // with it, who connects an installation must own it
	GitHubClientSecret  string `env:"BERTH_GITHUB_CLIENT_SECRET"`
	GitHubAPI           string `env:"BERTH_GITHUB_API" envDefault:"https://api.github.com"`
	GitHubWeb           string `env:"BERTH_GITHUB_WEB" envDefault:"https://github.com"`

	GitLabWebhookSecret string `env:"BERTH_GITLAB_WEBHOOK_SECRET"`
	GiteaWebhookSecret  string `env:"BERTH_GITEA_WEBHOOK_SECRET"`
}

// minHookSecret is the least length of a secret, in bytes: whoever guesses it deploys
// what they like.
const minHookSecret = 16

var appID = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)

// githosts reads the settings for package githost. allowHTTP is BERTH_GIT_ALLOW_HTTP.
func (c *GitHosts) githosts(allowHTTP bool) (out githost.Config, err error) {
	out.AllowHTTP = allowHTTP
	if out.GitLabSecret, err = hookSecret("BERTH_GITLAB_WEBHOOK_SECRET", c.GitLabWebhookSecret); err != nil {
		return out, err
	}
	if out.GiteaSecret, err = hookSecret("BERTH_GITEA_WEBHOOK_SECRET", c.GiteaWebhookSecret); err != nil {
		return out, err
	}
	out.App, err = c.githubApp()
	return out, err
}

// checkGitHosts finds mistakes before anything runs.
func (c *GitHosts) checkGitHosts(allowHTTP bool) error {
	cfg, err := c.githosts(allowHTTP)
	if err == nil {
		_, err = githost.New(core.New(core.Core{}), cfg)
	}
	return err
}

func (c *GitHosts) githubApp() (*githost.App, error) {
	all := []struct{ name, value string }{
		{"BERTH_GITHUB_APP_ID", c.GitHubAppID}, {"BERTH_GITHUB_APP_SLUG", c.GitHubAppSlug},
		{"BERTH_GITHUB_PRIVATE_KEY", c.GitHubPrivateKey}, {"BERTH_GITHUB_WEBHOOK_SECRET", c.GitHubWebhookSecret},
	}
	var set, missing []string
	for _, s := range all {
		if s.value == "" {
			missing = append(missing, s.name)
		} else {
			set = append(set, s.name)
		}
	}
	switch {
	case len(set) == 0:
		return nil, nil
	case len(missing) > 0:
		return nil, fmt.Errorf("%s is set without %s", set[0], strings.Join(missing, ", "))
	case !appID.MatchString(c.GitHubAppID):
		return nil, fmt.Errorf("BERTH_GITHUB_APP_ID is %q, want a number", c.GitHubAppID)
	case (c.GitHubClientID == "") != (c.GitHubClientSecret == ""):
		return nil, fmt.Errorf("BERTH_GITHUB_CLIENT_ID and BERTH_GITHUB_CLIENT_SECRET go together")
	}
	app := &githost.App{
		ID: c.GitHubAppID, Slug: c.GitHubAppSlug, API: c.GitHubAPI, Web: c.GitHubWeb, ClientID: c.GitHubClientID,
	}
	pem, err := os.ReadFile(c.GitHubPrivateKey)
	if err != nil {
		return nil, fmt.Errorf("BERTH_GITHUB_PRIVATE_KEY: %w", err)
	}
	if app.PrivateKey, err = jwt.ParseRSAPrivateKeyFromPEM(pem); err != nil {
		return nil, fmt.Errorf("BERTH_GITHUB_PRIVATE_KEY: %s: %w", c.GitHubPrivateKey, err)
	}
	if app.WebhookSecret, err = hookSecret("BERTH_GITHUB_WEBHOOK_SECRET", c.GitHubWebhookSecret); err != nil {
		return nil, err
	}
	app.ClientSecret, err = secretOf("BERTH_GITHUB_CLIENT_SECRET", c.GitHubClientSecret)
	return app, err
}

func hookSecret(name, value string) (string, error) {
	secret, err := secretOf(name, value)
	if err == nil && value != "" && len(secret) < minHookSecret {
		err = fmt.Errorf("%s has %d characters, want at least %d", name, len(secret), minHookSecret)
	}
	return secret, err
}

// secretOf is a secret, or what the file has that it names.
func secretOf(name, value string) (string, error) {
	if !strings.HasPrefix(value, "/") {
		return value, nil
	}
	raw, err := os.ReadFile(value)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// warnGitHosts says what is weaker than it need be.
func (s *Server) warnGitHosts(ctx context.Context) {
	if s.cfg.GitHubAppID != "" && s.cfg.GitHubClientID == "" {
		s.log.WarnContext(ctx, "who connects a new GitHub installation need not show that it is theirs", "remedy", "set BERTH_GITHUB_CLIENT_ID and BERTH_GITHUB_CLIENT_SECRET")
	}
}
