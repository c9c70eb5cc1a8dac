package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) appDeploy() *cobra.Command {
	var ref, dir string
	var detach, fresh bool
	cmd := &cobra.Command{
		Use:   "deploy APP | DIR",
		Short: "Deploy an app and print its URL",
		Long: `Deploy an app from its repository, or with --dir from a folder, and show the log
until it is live; then print its URL. It exits with 1 if the deployment fails: what
was live before goes on. Ctrl-C ends the showing; the deployment goes on.

A path, such as . or ./shop, instead of an app is deployed as by "berth deploy".

Of a folder, what git ignores is left out, and what its .berthignore names; where it
is no repository, also .git, node_modules, .venv and __pycache__.`,
		Example: `  berth app deploy shop
  berth app deploy shop --ref v1.2.3
  berth app deploy shop --dir .
  berth app deploy shop --clear-cache`,
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isPath(args[0]) {
				if ref != "" || dir != "" || fresh {
					return usage(cmd, "a folder has neither --ref, --dir nor --clear-cache")
				}
				return a.deployFolder(cmd.Context(), args[0], "", detach)
			}
			if ref != "" && dir != "" {
				return usage(cmd, "give --ref or --dir, not both")
			}
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.deploy(cmd.Context(), c, one, api.CreateDeployment{GitRef: ref, ClearCache: fresh}, dir, detach)
		},
	}
	f := cmd.Flags()
	f.StringVar(&ref, "ref", "", "branch, tag or commit (default: the app's branch)")
	f.StringVar(&dir, "dir", "", "folder to upload")
	f.BoolVar(&fresh, "clear-cache", false, "build without the caches of earlier builds")
	f.BoolVarP(&detach, "detach", "d", false, "print the deployment's id and do not wait")
	return cmd
}

// isPath reports whether an argument is written as a path, which no name of an app is.
func isPath(arg string) bool { return arg == "." || arg == ".." || strings.Contains(arg, "/") }

// deploy begins a deployment, of a folder unless dir is empty, and follows it.
func (a *app) deploy(ctx context.Context, c *api.Client, one *api.App, in api.CreateDeployment, dir string, detach bool) error {
	if dir != "" {
		source, err := a.uploadSource(ctx, c, one, dir)
		if err != nil {
			return err
		}
		in.SourceID = source.SourceID
	}
	d, err := c.DeployApp(ctx, one.ID, in, "berth-"+rand.Text())
	if err != nil {
		return err
	}
	return a.began(ctx, c, one, d, detach)
}

// began follows a deployment, unless it is left alone.
func (a *app) began(ctx context.Context, c *api.Client, one *api.App, d *api.Deployment, detach bool) error {
	if !detach {
		a.note("deployment %s of %s", d.ID, one.Name)
		return a.followDeployment(ctx, c, one, d)
	}
	if a.json {
		return a.printJSON(d)
	}
	fmt.Fprintln(a.stdout, d.ID)
	return nil
}

// followDeployment shows the log of a deployment on stderr until it has ended. Only what
// came of it is for stdout.
func (a *app) followDeployment(ctx context.Context, c *api.Client, one *api.App, d *api.Deployment) error {
	end, err := c.FollowDeployment(ctx, one.ID, d.ID, func(_ string, l api.LogLine) error {
		a.note("%s", l.Line)
		return nil
	})
	if ctx.Err() != nil {
		a.note("the deployment goes on\n  its log:   berth app build-logs %s %s\n  cancel it: berth app cancel %s %s", one.ID, d.ID, one.ID, d.ID)
		return errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(end); err != nil {
			return err
		}
	}
	if end.Status != api.DeploymentLive {
		return fmt.Errorf("the deployment has %s%s", end.Status, orNothing(": ", end.Error))
	}
	if a.json {
		return nil
	}
	if end.FinishedAt != nil {
		a.note("live after %s", end.FinishedAt.Sub(end.CreatedAt.Time).Round(100*time.Millisecond))
	}
	fmt.Fprintln(a.stdout, one.URL)
	return nil
}

func (a *app) appDeploys() *cobra.Command {
	return &cobra.Command{
		Use: "deploys APP", Aliases: []string{"deployments"}, Short: "List the deployments of an app, newest first",
		Example: `  berth app deploys shop --json | jq -r '.[] | select(.current) | .git_commit'`,
		Args:    wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all := []api.Deployment{}
			for d, err := range c.Deployments(cmd.Context(), one.ID) {
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"", "ID", "STATUS", "TRIGGER", "SOURCE", "AGE", "WHAT"}}
			for _, d := range all {
				current := ""
				if d.Current {
					current = "*"
				}
				what := d.GitMessage
				if d.Error != "" {
					what = d.Error
				}
				what, _, _ = strings.Cut(what, "\n")
				rows = append(rows, []string{current, d.ID, string(d.Status), string(d.Trigger), sourceName(d), age(d.CreatedAt.Time), orDash(what)})
			}
			return a.table(rows)
		},
	}
}

// shownCommit is how much of a commit's name people read.
const shownCommit = 10

func sourceName(d api.Deployment) string {
	switch {
	case d.GitCommit != "":
		return d.GitCommit[:min(len(d.GitCommit), shownCommit)]
	case d.SourceID != "":
		return d.SourceID
	}
	return orDash(d.GitRef)
}

func (a *app) appCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel APP [DEPLOYMENT]", Short: "Cancel a deployment that has not ended, by default the latest",
		Args: wants(1, 2, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := deploymentOf(cmd.Context(), c, one, args[1:])
			if err != nil {
				return err
			}
			d, err := c.CancelDeployment(cmd.Context(), one.ID, id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			a.note("%s is %s: %s", d.ID, d.Status, d.Error)
			return nil
		},
	}
}

// deploymentOf is the deployment that was named, or else the latest.
func deploymentOf(ctx context.Context, c *api.Client, one *api.App, named []string) (string, error) {
	if len(named) > 0 {
		return named[0], nil
	}
	for d, err := range c.Deployments(ctx, one.ID) {
		return d.ID, err
	}
	return "", fmt.Errorf("%s was never deployed", one.Name)
}

func (a *app) appRollback() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use:   "rollback APP [DEPLOYMENT]",
		Short: "Roll back to an earlier deployment, by default the one before",
		Example: `  berth app rollback shop
  berth app rollback shop dep-z2q4m6w2k4t6r2p7j5dc`,
		Args: wants(1, 2, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var in api.RollBackApp
			if len(args) == 2 {
				in.DeploymentID = args[1]
			}
			d, err := c.RollBackApp(cmd.Context(), one.ID, in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			return a.began(cmd.Context(), c, one, d, detach)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the deployment's id and do not wait")
	return cmd
}

func (a *app) appBuildLogs() *cobra.Command {
	return &cobra.Command{
		Use: "build-logs APP [DEPLOYMENT]", Short: "Show the log of a deployment, by default the latest, until it ends",
		Args: wants(1, 2, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := deploymentOf(cmd.Context(), c, one, args[1:])
			if err != nil {
				return err
			}
			end, err := c.FollowDeployment(cmd.Context(), one.ID, id, a.printLogLine)
			if err == nil {
				a.note("%s is %s%s", end.ID, end.Status, orNothing(": ", end.Error))
			}
			return err
		},
	}
}
