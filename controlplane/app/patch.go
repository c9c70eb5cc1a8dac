package app

import (
	"context"
	"slices"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var errNoFields = &apierror.Error{
	Code: apierror.EInvalid,
	Message: "no updatable fields provided (supported: name, git_url, git_branch, framework, runtime, install_command, build_command, start_command, " +
		"root_directory, env, port, cpu, memory_mb, max_instances, auto_hibernate, idle_timeout_seconds, auto_deploy, previews, fork_previews)",
}

// Patch changes settings of an app. Settings that the build depends on take effect with the
// next deployment, at the latest that of the next wake.
func (s *Apps) Patch(ctx context.Context, c core.Caller, id string, in api.PatchApp) (api.App, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.App{}, err
	}
	env := core.OrZero(in.Env.Value) // null means the default
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		before, err := s.owned(tx, c, id)
		if err != nil {
			return err
		}
		if !changes(in) {
			return errNoFields
		}
		if err := validEnv(env); err != nil {
			return err
		}
		a := before.Clone()
		s.apply(a, in)
		if err := s.check(a, before.GitURL == "" && !in.GitURL.Set); err != nil {
			return err
		}
		if a.GitURL != before.GitURL {
			// An app's builds use the workspace's credentials. With a key for one app, a
			// caller could reach every repository by changing the URL.
			if err := core.Authorize(c, core.Write, core.Resource{Area: core.AreaApps}); err != nil {
				return err
			}
			a.InstallationID = s.installation(tx, a)
		}
		if in.Env.Set {
			if a.Env, err = s.flows.replaceEnv(before, env, tx.Now()); err != nil {
				return err
			}
		}
		changed(before, a)
		if a.GitURL != before.GitURL || a.Framework != before.Framework || a.Runtime != before.Runtime || a.RootDirectory != before.RootDirectory {
			dropCache(tx, a) // little of it would be useful
		}
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	if err != nil {
		return api.App{}, err
	}
	return written(s, c, id, s.show)
}

// changes reports whether a patch sets any field.
func changes(in api.PatchApp) bool {
	return in.Name.Set || in.GitURL.Set || in.GitBranch.Set || in.Framework.Set || in.Runtime.Set || in.InstallCommand.Set ||
		in.BuildCommand.Set || in.StartCommand.Set || in.RootDirectory.Set || in.Env.Set || in.Port.Set || in.CPU.Set || in.MemoryMB.Set ||
		in.MaxInstances.Set || in.AutoHibernate.Set || in.IdleTimeoutSeconds.Set || in.AutoDeploy.Set || in.Previews.Set || in.ForkPreviews.Set
}

// apply sets the fields of a patch except env.
func (s *Apps) apply(a *record.App, in api.PatchApp) {
	set(&a.Name, in.Name, "")
	set(&a.GitURL, in.GitURL, "")
	set(&a.GitBranch, in.GitBranch, "")
	set(&a.Framework, in.Framework, "")
	set(&a.Runtime, in.Runtime, "")
	set(&a.InstallCommand, in.InstallCommand, "")
	set(&a.BuildCommand, in.BuildCommand, "")
	set(&a.StartCommand, in.StartCommand, "")
	set(&a.RootDirectory, in.RootDirectory, "")
	set(&a.Port, in.Port, defaultPort)
	set(&a.CPU, in.CPU, 0)
	set(&a.MemoryMB, in.MemoryMB, 0)
	set(&a.MaxInstances, in.MaxInstances, 1)
	set(&a.AutoHibernate, in.AutoHibernate, true)
	set(&a.IdleTimeoutSeconds, in.IdleTimeoutSeconds, s.defaultIdle())
	set(&a.AutoDeploy, in.AutoDeploy, false)
	if in.Previews.Set {
		a.Previews = in.Previews.Value
	}
	set(&a.ForkPreviews, in.ForkPreviews, false)
}

// set applies one field; null means its default.
func set[T any](to *T, p api.Patch[T], otherwise T) {
	if p.Set {
		*to = or(p.Value, otherwise)
	}
}

// changed notes in a row that its settings and variables differ from the former ones.
func changed(before, after *record.App) {
	if !slices.EqualFunc(before.Env, after.Env, sameVariable) {
		after.EnvRevision++
	}
	if invalidates(before, after) {
		after.Revision++
		after.Stale = after.DeploymentID != ""
	}
}

// invalidates reports whether a change of settings makes an app's artifact unusable. It
// compares exactly the settings that the specification's table of apps names.
func invalidates(before, after *record.App) bool {
	return before.StartCommand != after.StartCommand || before.Port != after.Port || before.RootDirectory != after.RootDirectory ||
		before.Framework != after.Framework || before.InstallCommand != after.InstallCommand || before.BuildCommand != after.BuildCommand ||
		!slices.EqualFunc(before.Env, after.Env, sameVariable)
}
