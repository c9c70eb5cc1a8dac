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
	return a.began(ctx, deployedApps, c, deployedApp(one), d, detach)
}

// began follows a deployment, unless it is left alone.
func (a *app) began(ctx context.Context, k deployable, c *api.Client, one deployed, d *api.Deployment, detach bool) error {
	if !detach {
		a.note("deployment %s of %s", d.ID, one.name)
		return a.followDeployment(ctx, k, c, one, d)
	}
	if a.json {
		return a.printJSON(d)
	}
	fmt.Fprintln(a.stdout, d.ID)
	return nil
}

// followDeployment shows the log of a deployment on stderr until it has ended. Only what
// came of it is for stdout.
func (a *app) followDeployment(ctx context.Context, k deployable, c *api.Client, one deployed, d *api.Deployment) error {
	last := ""
	end, err := k.follow(c, ctx, one.id, d.ID, func(_ string, l api.LogLine) error {
		a.note("%s", l.Line)
		last = l.Line
		return nil
	})
	if ctx.Err() != nil {
		a.note("the deployment goes on\n  its log:   berth %[1]s build-logs %[2]s %[3]s\n  cancel it: berth %[1]s cancel %[2]s %[3]s", k.noun, one.id, d.ID)
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
		why := end.Error
		if !a.json && strings.HasSuffix(last, why) { // all of it was shown
			why = gist(why)
		}
		return fmt.Errorf("the deployment has %s%s", end.Status, orNothing(": ", why))
	}
	if a.json {
		return nil
	}
	after := ""
	if end.FinishedAt != nil {
		after = " after " + end.FinishedAt.Sub(end.CreatedAt.Time).Round(100*time.Millisecond).String()
	}
	if one.url == "" {
		a.note("live%s; call it: berth %s invoke %s", after, k.noun, one.name)
		return nil
	}
	a.note("live%s", after)
	fmt.Fprintln(a.stdout, one.url)
	return nil
}

// deployable is a kind of what has deployments.
type deployable struct {
	noun string // also that of its commands
	find func(a *app, ctx context.Context, name string) (*api.Client, deployed, error)

	complete func(a *app) cobra.CompletionFunc
	list     func(c *api.Client, ctx context.Context, id string, p api.Page) ([]api.Deployment, string, error)
	follow   func(c *api.Client, ctx context.Context, id, deploymentID string, line func(string, api.LogLine) error) (*api.Deployment, error)
	cancel   func(c *api.Client, ctx context.Context, id, deploymentID string) (*api.Deployment, error)
	rollBack func(c *api.Client, ctx context.Context, id string, in api.RollBackApp) (*api.Deployment, error)
}

// deployed is an app or a function.
type deployed struct{ id, name, url string }

func deployedApp(one *api.App) deployed { return deployed{one.ID, one.Name, one.URL} }

var deployedApps = deployable{
	noun: "app",
	find: func(a *app, ctx context.Context, name string) (*api.Client, deployed, error) {
		c, one, err := a.theApp(ctx, name)
		if err != nil {
			return nil, deployed{}, err
		}
		return c, deployedApp(one), nil
	},
	complete: func(a *app) cobra.CompletionFunc { return a.completeApps },
	list:     (*api.Client).ListDeployments, follow: (*api.Client).FollowDeployment, cancel: (*api.Client).CancelDeployment,
	rollBack: func(c *api.Client, ctx context.Context, id string, in api.RollBackApp) (*api.Deployment, error) {
		return c.RollBackApp(ctx, id, in, "berth-"+rand.Text())
	},
}

// arg is what stands for one in the usage of a command.
func (k deployable) arg() string { return strings.ToUpper(k.noun) }

func (a *app) deploys(k deployable) *cobra.Command {
	return &cobra.Command{
		Use: "deploys " + k.arg(), Aliases: []string{"deployments"}, Short: "List its deployments, newest first",
		Example: "  berth " + k.noun + " deploys shop --json | jq -r '.[] | select(.current) | .id'",
		Args:    wants(1, 1, k.arg()), ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := k.find(a, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all, err := everyPage(func(p api.Page) ([]api.Deployment, string, error) { return k.list(c, cmd.Context(), one.id, p) })
			if err != nil {
				return err
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
				rows = append(rows, []string{current, d.ID, string(d.Status), string(d.Trigger), sourceName(d), age(d.CreatedAt.Time), orDash(gist(what))})
			}
			return a.table(rows)
		},
	}
}

// gist is a text of several lines in one: the first, and the last where the first only
// announces the others.
func gist(text string) string {
	first, rest, _ := strings.Cut(text, "\n")
	if rest == "" || !strings.HasSuffix(first, ":") {
		return first
	}
	return first + " … " + strings.TrimSpace(rest[strings.LastIndex(rest, "\n")+1:])
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

func (a *app) cancelDeployment(k deployable) *cobra.Command {
	return &cobra.Command{
		Use: "cancel " + k.arg() + " [DEPLOYMENT]", Short: "Cancel a deployment that has not ended, by default the latest",
		Args: wants(1, 2, k.arg()), ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := k.find(a, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := k.named(cmd.Context(), c, one, args[1:])
			if err != nil {
				return err
			}
			d, err := k.cancel(c, cmd.Context(), one.id, id)
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

// named is the deployment that was named, or else the latest.
func (k deployable) named(ctx context.Context, c *api.Client, one deployed, named []string) (string, error) {
	if len(named) > 0 {
		return named[0], nil
	}
	newest, _, err := k.list(c, ctx, one.id, api.Page{Limit: 1})
	if err != nil {
		return "", err
	}
	if len(newest) == 0 {
		return "", fmt.Errorf("%s was never deployed", one.name)
	}
	return newest[0].ID, nil
}

func (a *app) rollback(k deployable) *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use:   "rollback " + k.arg() + " [DEPLOYMENT]",
		Short: "Roll back to an earlier deployment, by default the one before",
		Example: fmt.Sprintf(`  berth %[1]s rollback shop
  berth %[1]s rollback shop dep-z2q4m6w2k4t6r2p7j5dc`, k.noun),
		Args: wants(1, 2, k.arg()), ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := k.find(a, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var in api.RollBackApp
			if len(args) == 2 {
				in.DeploymentID = args[1]
			}
			d, err := k.rollBack(c, cmd.Context(), one.id, in)
			if err != nil {
				return err
			}
			return a.began(cmd.Context(), k, c, one, d, detach)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the deployment's id and do not wait")
	return cmd
}

func (a *app) buildLogs(k deployable) *cobra.Command {
	return &cobra.Command{
		Use: "build-logs " + k.arg() + " [DEPLOYMENT]", Short: "Show the log of a deployment, by default the latest, until it ends",
		Args: wants(1, 2, k.arg()), ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := k.find(a, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := k.named(cmd.Context(), c, one, args[1:])
			if err != nil {
				return err
			}
			end, err := k.follow(c, cmd.Context(), one.id, id, a.printLogLine)
			if err == nil {
				a.note("%s is %s%s", end.ID, end.Status, orNothing(": ", gist(end.Error)))
			}
			return err
		},
	}
}
