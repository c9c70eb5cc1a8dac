package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Create stores the settings of a new app. It builds nothing.
func (s *Apps) Create(ctx context.Context, c core.Caller, in api.CreateApp, i core.Idempotency) (api.App, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.App{}, err
	}
	a, err := s.newApp(in)
	if err != nil {
		return api.App{}, err
	}
	return create(ctx, s, c, a, in.Env, i, s.show)
}

// create stores a new app of the kind of s. The caller has made the checks that are the
// same for all workspaces.
func create[T any](ctx context.Context, s *Apps, c core.Caller, a *record.App, env map[string]string, i core.Idempotency, show func(*record.App) (T, error)) (T, error) {
	n := nounsOf[s.kind]
	return core.Once(ctx, s.core, c, "POST /v1/"+n.many, i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (out T, err error) {
			a, err := s.owned(view, c, key.ResourceID)
			if err != nil {
				return out, core.ErrKeyGone(n.one)
			}
			return core.Answered(s.core, key, func() (T, error) { return show(a) })
		},
		func(keyID string) (out T, err error) {
			a := a.Clone()
			a.ID, a.WorkspaceID, a.Kind = n.prefix+core.RandomText(appRandom), c.WorkspaceID, s.kind
			if a.Env, err = s.flows.replaceEnv(a, env, s.core.Clock()); err != nil {
				return out, err
			}
			err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
				if err := s.admit(tx, c); err != nil {
					return err
				}
				if err := s.unnamed(tx, a); err != nil {
					return err
				}
				a := a.Clone()
				a.InstallationID = s.installation(tx, a)
				raftstore.Put(tx, record.Apps, a)
				if out, err = show(a); err != nil {
					return err
				}
				return core.ClaimAnswer(tx, s.core, i, keyID, a.ID, out)
			})
			return out, err
		})
}

// nouns holds the names of a kind of apps and the prefix of their ids.
type nouns struct{ one, many, prefix string }

var nounsOf = map[record.AppKind]nouns{
	record.KindApp: {"app", "apps", appPrefix}, record.KindFunction: {"function", "functions", functionPrefix},
}

// admit returns an error if the workspace may not have one more app.
func (s *Apps) admit(tx *raftstore.Tx, c core.Caller) error {
	if err := s.core.Admit(tx, c, limits.Need{Apps: 1}); err != nil {
		return err
	}
	if active, most := len(appsOf(tx, c.WorkspaceID, s.kind)), *s.cfg.MaxPerWorkspace; active >= most {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "max " + nounsOf[s.kind].many + " reached", Fields: map[string]any{"max": most, "active": active},
		}
	}
	return nil
}

// installation returns the id of the installation for an app's repository, or "".
func (s *Apps) installation(r raftstore.Reader, a *record.App) string {
	if s.cfg.InstallationFor == nil || a.GitURL == "" {
		return ""
	}
	id, _ := s.cfg.InstallationFor(r, a.WorkspaceID, a.GitURL)
	return id
}

// newApp checks the body of a create request. The app that it returns has no env.
func (s *Apps) newApp(in api.CreateApp) (*record.App, error) {
	if !core.OneOf(in.Source, api.AppFromGit, api.AppFromUpload) {
		return nil, apierror.Invalid("invalid source", "want git or upload")
	}
	a := &record.App{
		Status: record.AppCreated, Name: in.Name, GitURL: in.GitURL, GitBranch: in.GitBranch, Framework: in.Framework, Runtime: in.Runtime,
		InstallCommand: in.InstallCommand, BuildCommand: in.BuildCommand, StartCommand: in.StartCommand, RootDirectory: in.RootDirectory,
		Port: or(in.Port, defaultPort), CPU: core.OrZero(in.CPU), MemoryMB: core.OrZero(in.MemoryMB), MaxInstances: or(in.MaxInstances, 1),
		AutoHibernate: or(in.AutoHibernate, true), IdleTimeoutSeconds: or(in.IdleTimeoutSeconds, s.defaultIdle()), AutoDeploy: in.AutoDeploy, Previews: in.Previews, ForkPreviews: in.ForkPreviews,
	}
	if cmp.Or(core.OrZero(in.Source), api.AppFromGit) == api.AppFromUpload && in.GitURL != "" {
		return nil, apierror.Invalid("invalid git_url", "the source of this app is uploaded")
	}
	if err := s.check(a, core.OrZero(in.Source) == api.AppFromUpload); err != nil {
		return nil, err
	}
	return a, validEnv(in.Env)
}

// defaultIdle returns the idle_timeout_seconds of an app that sets none.
func (s *Apps) defaultIdle() int { return max(int(*s.cfg.Idle/time.Second), s.minIdle()) }

func (s *Apps) minIdle() int { return int(*s.cfg.MinIdle / time.Second) }

// or returns *v, or otherwise if v is nil.
func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// check checks the settings of an app and cleans its root directory. An app with an uploaded
// source has no git_url.
func (s *Apps) check(a *record.App, uploaded bool) error {
	if err := validName(a.Name); err != nil {
		return err
	}
	if !uploaded || a.GitURL != "" {
		if err := validGitURL(a.GitURL, s.cfg.AllowHTTP); err != nil {
			return err
		}
	}
	if a.GitBranch != "" {
		if err := validRef("git_branch", a.GitBranch); err != nil {
			return err
		}
	}
	for _, f := range []struct{ name, value string }{{"framework", a.Framework}, {"runtime", a.Runtime}} {
		if err := text(f.name, f.value, maxWord); err != nil {
			return err
		}
	}
	for _, f := range []struct{ name, value string }{
		{"install_command", a.InstallCommand}, {"build_command", a.BuildCommand}, {"start_command", a.StartCommand},
	} {
		if err := validCommand(f.name, f.value); err != nil {
			return err
		}
	}
	var err error
	if a.RootDirectory, err = validRoot(a.RootDirectory); err != nil {
		return err
	}
	for _, f := range []struct {
		name           string
		v, least, most int
	}{
		{"port", a.Port, 1, maxPort}, {"cpu", a.CPU, 0, maxCPU}, {"memory_mb", a.MemoryMB, 0, maxMemoryMB}, {"max_instances", a.MaxInstances, 1, maxInstances},
	} {
		if err := inRange(f.name, f.v, f.least, f.most); err != nil {
			return err
		}
	}
	if err := freePort(a.Port); err != nil {
		return err
	}
	if least := s.minIdle(); a.IdleTimeoutSeconds < least {
		return &apierror.Error{Code: apierror.EInvalid, Message: fmt.Sprintf("idle_timeout_seconds must be >= %d", least)}
	}
	if most := int(MaxIdle / time.Second); a.IdleTimeoutSeconds > most {
		return apierror.Invalid("invalid idle_timeout_seconds", "want at most %d", most)
	}
	return nil
}
