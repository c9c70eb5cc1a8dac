// Package githost connects git hosts: installations of the operator's GitHub App, pushes
// and pull requests that arrive as signed webhooks, tokens to clone with, commit statuses
// and comments, and the environment of previews. What an event does to apps it asks of an
// interface (Apps). DESIGN.md in this folder says what a webhook can be trusted with.
package githost

import (
	"crypto/rsa"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/timescale"
)

// The names of the git hosts, as in the paths of their webhooks.
const (
	GitHub = "github"
	GitLab = "gitlab"
	Gitea  = "gitea"
)

// App is the operator's GitHub App.
type App struct {
	ID            string
	Slug          string
	PrivateKey    *rsa.PrivateKey
	WebhookSecret string
	API           string // default https://api.github.com
	Web           string // default https://github.com

	// With them a person who connects an installation shows by OAuth that it is theirs.
	// Without, only an installation that was made after they asked for it can be
	// connected.
	ClientID, ClientSecret string
}

// Config is what the integration needs beside the core.
type Config struct {
	App          *App   // nil: GitHub is not set up
	GitLabSecret string // "": GitLab is not set up
	GiteaSecret  string // likewise

	// AllowHTTP lets App.Web be an http:// address of any host: for development alone.
	AllowHTTP bool

	// AppURL is where an app is served; nil: it is not said to git hosts.
	AppURL func(appID string) string

	Transport http.RoundTripper // to GitHub; nil: one of its own
	Timeout   time.Duration     // of one call; default 10 s
	// Delays are those between the attempts to act on an event, and to tell a git host
	// something.
	Delays []time.Duration
}

// DefaultDelays are for Config.Delays.
func DefaultDelays() []time.Duration {
	return []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute}
}

func (c *Config) defaults() error {
	if c.Timeout == 0 {
		c.Timeout = timescale.Limit(10 * time.Second)
	}
	if len(c.Delays) == 0 {
		c.Delays = DefaultDelays()
	}
	if c.App == nil {
		return nil
	}
	a := *c.App
	for _, u := range []struct {
		at              *string
		name, otherwise string
		plain           bool
	}{{&a.API, "BERTH_GITHUB_API", "https://api.github.com", false}, {&a.Web, "BERTH_GITHUB_WEB", "https://github.com", c.AllowHTTP}} {
		if *u.at == "" {
			*u.at = u.otherwise
		}
		*u.at = strings.TrimRight(*u.at, "/")
		if err := checkBase(*u.at, u.plain); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
	}
	c.App = &a
	return nil
}

// checkBase refuses an address of GitHub that would get the app's tokens in the clear,
// unless plain allows that.
func checkBase(raw string, plain bool) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no URL", raw)
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is not https://host, without user, query and fragment", raw)
	case u.Scheme == "http" && !plain:
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("%q has no TLS: http:// is for loopback alone", raw)
		}
	}
	return nil
}

// GitHosts are the use cases of the git hosts.
type GitHosts struct {
	core      *core.Core
	cfg       Config
	github    *client // nil: it is not set up
	providers map[string]Provider
	apps      Apps
	tries     tries
}

// New makes the use cases.
func New(c *core.Core, cfg Config) (*GitHosts, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	g := &GitHosts{core: c, cfg: cfg, providers: map[string]Provider{}, apps: noApps{}}
	if cfg.App != nil {
		g.github = newClient(cfg, c.Clock)
		if cfg.App.WebhookSecret != "" {
			g.providers[GitHub] = githubHook{secret: []byte(cfg.App.WebhookSecret)}
		}
	}
	if cfg.GitLabSecret != "" {
		g.providers[GitLab] = gitlabHook{secret: []byte(cfg.GitLabSecret)}
	}
	if cfg.GiteaSecret != "" {
		g.providers[Gitea] = giteaHook{secret: []byte(cfg.GiteaSecret)}
	}
	return g, nil
}

// Serve gives the events that arrive to apps. It is called once, before the loops run.
func (g *GitHosts) Serve(apps Apps) { g.apps = apps }

// errNotSetUp is the answer where the operator has no GitHub App.
var errNotSetUp = &apierror.Error{
	Code: apierror.ENotImplemented, Message: "github is not set up",
	Detail: "the operator sets BERTH_GITHUB_APP_ID, BERTH_GITHUB_APP_SLUG, BERTH_GITHUB_PRIVATE_KEY and BERTH_GITHUB_WEBHOOK_SECRET",
}

// hookSettings are the settings without which a git host's webhooks are not taken.
var hookSettings = map[string]string{GitLab: "BERTH_GITLAB_WEBHOOK_SECRET", Gitea: "BERTH_GITEA_WEBHOOK_SECRET"}

func errNoHook(provider string) error {
	if setting, ok := hookSettings[provider]; ok {
		return &apierror.Error{Code: apierror.ENotImplemented, Message: provider + " is not set up", Detail: "the operator sets " + setting}
	}
	return errNotSetUp
}
