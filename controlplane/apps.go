package controlplane

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
)

// Apps contains the settings of apps. A nil one has its default.
type Apps struct {
	DeployBudget *time.Duration `env:"BERTH_DEPLOY_BUDGET" envDefault:"12m"` // of a deployment, from the start of its build
	AppSweep     *time.Duration `env:"BERTH_APP_SWEEP" envDefault:"30s"`     // between two looks for idle apps
	AppMinIdle   *time.Duration `env:"BERTH_APP_MIN_IDLE" envDefault:"60s"`  // the least idle_timeout_seconds
	AppIdle      *time.Duration `env:"BERTH_APP_IDLE" envDefault:"15m"`      // idle_timeout_seconds of an app that sets none
	AppDrain     *time.Duration `env:"BERTH_APP_DRAIN" envDefault:"5m"`      // how long open requests of a replaced instance may take

	AppHealth *time.Duration `env:"BERTH_APP_HEALTH" envDefault:"1m"` // how long an app that was started may take to answer

	LastRequest *time.Duration `env:"BERTH_APP_LAST_REQUEST" envDefault:"1m"` // between two writes of an app's last_request_at

	FunctionIdle *time.Duration `env:"BERTH_FUNCTION_IDLE" envDefault:"60s"` // how long a function may be without a request before it sleeps

	AppMaxPerWorkspace *int `env:"BERTH_APP_MAX_PER_WORKSPACE" envDefault:"100"`

	AppCacheMB *int `env:"BERTH_APP_CACHE_MB" envDefault:"1024"` // of caches that a build may keep for the next one; 0: none is kept

	// GitAllowHTTP lets clone URLs be http:// ones, and of any host: for development
	// alone.
	GitAllowHTTP bool `env:"BERTH_GIT_ALLOW_HTTP"`
}

// validate checks the values that are set.
func (c *Apps) validate() error {
	for name, d := range map[string]*time.Duration{
		"BERTH_DEPLOY_BUDGET": c.DeployBudget, "BERTH_APP_SWEEP": c.AppSweep, "BERTH_APP_MIN_IDLE": c.AppMinIdle, "BERTH_APP_DRAIN": c.AppDrain,
		"BERTH_FUNCTION_IDLE": c.FunctionIdle, "BERTH_APP_IDLE": c.AppIdle, "BERTH_APP_HEALTH": c.AppHealth, "BERTH_APP_LAST_REQUEST": c.LastRequest,
	} {
		if d != nil && *d < time.Second {
			return fmt.Errorf("%s is %s, want at least 1s", name, *d)
		}
	}
	switch {
	case core.OrZero(c.AppMinIdle)%time.Second != 0:
		return fmt.Errorf("BERTH_APP_MIN_IDLE is %s, want whole seconds", *c.AppMinIdle)
	case core.OrZero(c.AppMinIdle) > 24*time.Hour:
		return fmt.Errorf("BERTH_APP_MIN_IDLE is %s, want at most 24h", *c.AppMinIdle)
	case core.OrZero(c.AppIdle)%time.Second != 0:
		return fmt.Errorf("BERTH_APP_IDLE is %s, want whole seconds", *c.AppIdle)
	case core.OrZero(c.AppIdle) > app.MaxIdle:
		return fmt.Errorf("BERTH_APP_IDLE is %s, want at most %s", *c.AppIdle, app.MaxIdle)
	case core.OrZero(c.LastRequest) > time.Hour:
		return fmt.Errorf("BERTH_APP_LAST_REQUEST is %s, want at most 1h", *c.LastRequest)
	case core.OrZero(c.AppCacheMB) < 0 || core.OrZero(c.AppCacheMB) > 1024:
		return fmt.Errorf("BERTH_APP_CACHE_MB is %d, want 0 to 1024", *c.AppCacheMB)
	case core.OrZero(c.AppMaxPerWorkspace) < 0:
		return fmt.Errorf("BERTH_APP_MAX_PER_WORKSPACE is %d, want 0 or more", *c.AppMaxPerWorkspace)
	}
	return nil
}

// newApps creates the use cases of apps, and of the git hosts that they come from.
func (s *Server) newApps(c *core.Core, sandboxes *sandbox.Sandboxes, templates *template.Templates, databases app.Databases) (*app.Apps, *githost.GitHosts, error) {
	gitHosts, err := s.cfg.githosts(s.cfg.GitAllowHTTP)
	if err != nil {
		return nil, nil, err
	}
	a := s.cfg.Apps
	return joinApps(c, app.Config{
		Sandboxes: sandboxes, Templates: templates, Databases: databases, URL: s.cfg.appURL(), Budget: core.OrZero(a.DeployBudget), Sweep: core.OrZero(a.AppSweep),
		MinIdle: a.AppMinIdle, Idle: a.AppIdle, Drain: core.OrZero(a.AppDrain), FunctionIdle: a.FunctionIdle, MaxPerWorkspace: a.AppMaxPerWorkspace, AllowHTTP: a.GitAllowHTTP,
		CacheMB: a.AppCacheMB, Health: core.OrZero(a.AppHealth), WriteRequests: core.OrZero(a.LastRequest),
	}, gitHosts)
}

// edgeOf is what the edge asks and tells of apps, where this replica leads.
func edgeOf(apps *app.Apps) edge.Apps {
	return edge.Apps{Awake: apps.Awake, Heard: func(replica string, seen []edge.Activity) {
		heard := make([]app.Activity, len(seen))
		for i, a := range seen {
			heard[i] = app.Activity(a)
		}
		apps.Heard(replica, heard)
	}}
}

// warnApps says loudly what only a machine for development may have.
func (s *Server) warnApps(ctx context.Context) {
	if s.cfg.GitAllowHTTP {
		s.log.WarnContext(ctx, "apps may be cloned from any address, also of private networks, and without TLS", "remedy", "unset BERTH_GIT_ALLOW_HTTP, unless this is a machine for development")
	}
}
