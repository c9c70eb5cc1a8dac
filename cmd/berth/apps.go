package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) apps() *cobra.Command {
	g := group("app", "Deploy apps from a folder or a git repository",
		`An app is a program that Berth builds from a git repository, or from a folder of
yours, and serves at a stable URL. It sleeps when nobody looks, and wakes with the
next request. A new deployment takes over once it answers; the one before serves
until then.

An app is named by its id, or by its name if no other has it.`,
		a.appCreate(), a.appList(), a.appGet(), a.appURL(), a.appOpen(), a.appSet(), a.appDeploy(), a.deploys(deployedApps), a.cancelDeployment(deployedApps), a.rollback(deployedApps),
		a.appLogs(), a.buildLogs(deployedApps), a.appMetrics(), a.appRequests(), a.appEnv(), a.appDomains(), a.appRemove())
	g.Aliases = []string{"apps"}
	return g
}

// appSettings are the flags of a create and of a set.
type appSettings struct {
	git, branch, root, framework, runtime string
	install, build, start                 string
	port, maxInstances                    int
	idle                                  span
	noSleep, autoDeploy, previews, forks  bool
}

func (s *appSettings) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.git, "git", "", "https URL of the repository")
	f.StringVar(&s.branch, "branch", "", "branch (default: the repository's own)")
	f.StringVar(&s.root, "root", "", "directory of the app in the repository")
	f.StringVar(&s.framework, "framework", "", "framework (default: detected; \"dockerfile\" builds the Dockerfile, any other turns it off)")
	f.StringVar(&s.runtime, "runtime", "", "runtime (default: detected)")
	f.StringVar(&s.install, "install", "", "command that installs what the app needs; a Dockerfile is not used then")
	f.StringVar(&s.build, "build", "", "command that builds it; a Dockerfile is not used then")
	f.StringVar(&s.start, "start", "", "command that starts it, also in place of an image's; it must listen on 0.0.0.0, on $PORT")
	f.IntVar(&s.port, "port", 0, "port that it listens on, as $PORT says (default 3000)")
	f.IntVar(&s.maxInstances, "max-instances", 0, "how many may run at once under load, 1 to 3")
	f.Var(&s.idle, "idle", "time without a request after which it sleeps (default 15m)")
	f.BoolVar(&s.noSleep, "no-sleep", false, "never put it to sleep")
	f.BoolVar(&s.autoDeploy, "auto-deploy", false, "deploy each push to the branch")
	f.BoolVar(&s.previews, "previews", false, "give each pull request a preview (default: as --auto-deploy)")
	f.BoolVar(&s.forks, "fork-previews", false, "give one to pull requests from forks too, without secrets and databases")
}

func (a *app) appCreate() *cobra.Command {
	var s appSettings
	var env []string
	var name string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an app and print its id",
		Long: `Create an app and print its id. Nothing is built yet: "berth app deploy" does. Without
--git its source is uploaded from a folder.`,
		Example: `  berth app create shop --git https://github.com/example/shop --auto-deploy
  berth app create api --start 'uvicorn main:app --host 0.0.0.0 --port $PORT' --env LOG_LEVEL=info`,
		Args: wants(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && name != "" && name != args[0]:
				return usage(cmd, "the name is %q or %q: give one", args[0], name)
			case len(args) == 1:
				name = args[0]
			case name == "":
				return usage(cmd, "NAME is missing")
			}
			vars, err := assignments(env, a.env)
			if err != nil {
				return usage(cmd, "--env %s", err)
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			for other, err := range c.Apps(cmd.Context()) {
				if err != nil {
					break // the create says more
				}
				if other.Name == name {
					a.note("warning: %s is named %s too: from now on, commands tell them apart only by their ids", other.ID, name)
					break
				}
			}
			made, err := c.CreateApp(cmd.Context(), s.create(cmd, name, vars), "berth-"+rand.Text())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(made)
			}
			a.note("deploy it: berth app deploy %s%s", made.ID, map[bool]string{true: " --dir ."}[made.GitURL == ""])
			fmt.Fprintln(a.stdout, made.ID)
			return nil
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", "its name, if it is no argument")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "environment variable, NAME=VALUE, or NAME for this one's value (repeatable)")
	return cmd
}

func (s *appSettings) create(cmd *cobra.Command, name string, env map[string]string) api.CreateApp {
	in := api.CreateApp{
		Name: name, GitURL: s.git, GitBranch: s.branch, RootDirectory: s.root, Framework: s.framework, Runtime: s.runtime,
		InstallCommand: s.install, BuildCommand: s.build, StartCommand: s.start, Env: env, AutoDeploy: s.autoDeploy,
	}
	if s.git == "" {
		in.Source = new(api.AppFromUpload)
	}
	given := cmd.Flags().Changed
	if given("port") {
		in.Port = &s.port
	}
	if given("max-instances") {
		in.MaxInstances = &s.maxInstances
	}
	if s.idle.seconds != nil {
		in.IdleTimeoutSeconds = new(int(*s.idle.seconds))
	}
	if given("no-sleep") {
		in.AutoHibernate = new(!s.noSleep)
	}
	if given("previews") {
		in.Previews = &s.previews
	}
	in.ForkPreviews = s.forks
	return in
}

// patch has the settings that were given. An empty text is the default of one.
func (s *appSettings) patch(cmd *cobra.Command) (in api.PatchApp, any bool) {
	given := cmd.Flags().Changed
	for name, f := range map[string]struct {
		field *api.Patch[string]
		value string
	}{
		"git": {&in.GitURL, s.git}, "branch": {&in.GitBranch, s.branch}, "root": {&in.RootDirectory, s.root}, "framework": {&in.Framework, s.framework},
		"runtime": {&in.Runtime, s.runtime}, "install": {&in.InstallCommand, s.install}, "build": {&in.BuildCommand, s.build}, "start": {&in.StartCommand, s.start},
	} {
		switch {
		case !given(name):
		case f.value == "":
			*f.field, any = api.SetNull[string](), true
		default:
			*f.field, any = api.SetTo(f.value), true
		}
	}
	if given("port") {
		in.Port, any = api.SetTo(s.port), true
	}
	if given("max-instances") {
		in.MaxInstances, any = api.SetTo(s.maxInstances), true
	}
	if s.idle.seconds != nil {
		in.IdleTimeoutSeconds, any = api.SetTo(int(*s.idle.seconds)), true
	}
	if given("no-sleep") {
		in.AutoHibernate, any = api.SetTo(!s.noSleep), true
	}
	if given("auto-deploy") {
		in.AutoDeploy, any = api.SetTo(s.autoDeploy), true
	}
	if given("previews") {
		in.Previews, any = api.SetTo(s.previews), true
	}
	if given("fork-previews") {
		in.ForkPreviews, any = api.SetTo(s.forks), true
	}
	return in, any
}

func (a *app) appSet() *cobra.Command {
	var s appSettings
	var name string
	cmd := &cobra.Command{
		Use:   "set APP",
		Short: "Change the settings of an app",
		Long: `Change the settings of an app. An empty value is the default of one. What runs goes
on as it was built, until the next deployment, or the next wake where the app is
built anew then.`,
		Example: `  berth app set shop --start 'node server.js' --idle 1h
  berth app set shop --no-sleep=false --build ''`,
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, any := s.patch(cmd)
			if cmd.Flags().Changed("name") {
				in.Name, any = api.SetTo(name), true
			}
			if !any {
				return usage(cmd, "no setting is given")
			}
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			changed, err := c.PatchApp(cmd.Context(), one.ID, in)
			if err != nil {
				return err
			}
			return a.showApp(changed)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", "another name")
	return cmd
}

func (a *app) appList() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List apps, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.App{}
			for one, err := range c.Apps(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, one)
			}
			switch {
			case a.json:
				return a.printJSON(all)
			case quiet:
				for _, one := range all {
					fmt.Fprintln(a.stdout, one.ID)
				}
				return nil
			}
			rows := [][]string{{"ID", "NAME", "STATUS", "INSTANCES", "LAST REQUEST", "URL"}}
			for _, one := range all {
				rows = append(rows, []string{one.ID, one.Name, string(one.Status), fmt.Sprint(one.Instances), ago(one.LastRequestAt), one.URL})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	return cmd
}

// ago is how long ago a moment was.
func ago(t *api.Time) string {
	if t == nil {
		return "never"
	}
	return age(t.Time) + " ago"
}

func (a *app) appGet() *cobra.Command {
	return &cobra.Command{
		Use: "get APP", Short: "Show one app", Example: "  berth app get shop --json | jq -r .status",
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.showApp(one)
		},
	}
}

// previewsOf says which pull requests get previews.
func previewsOf(one *api.App) string {
	if one.Previews && one.ForkPreviews {
		return "yes, of forks too"
	}
	return yes(one.Previews)
}

func (a *app) showApp(one *api.App) error {
	if a.json {
		return a.printJSON(one)
	}
	out := []string{"id", one.ID, "name", one.Name, "status", string(one.Status), "url", one.URL}
	add := func(name, value string) {
		if value != "" {
			out = append(out, name, value)
		}
	}
	add("error", one.Error)
	add("repository", one.GitURL)
	add("branch", one.GitBranch)
	add("root", one.RootDirectory)
	add("framework", one.Framework)
	add("runtime", one.Runtime)
	add("install", one.InstallCommand)
	add("build", one.BuildCommand)
	add("start", one.StartCommand)
	sleeps := "never"
	if one.AutoHibernate {
		sleeps = "after " + (time.Duration(one.IdleTimeoutSeconds) * time.Second).String() + " without a request"
	}
	out = append(out, "port", fmt.Sprint(one.Port), "instances", fmt.Sprintf("%d of at most %d", one.Instances, one.MaxInstances), "sleeps", sleeps,
		"auto-deploy", yes(one.AutoDeploy), "previews", previewsOf(one))
	add("deployment", one.DeploymentID)
	add("sandbox", one.SandboxID)
	return a.fields(append(out, "last request", ago(one.LastRequestAt), "created", one.CreatedAt.String())...)
}

func (a *app) appURL() *cobra.Command {
	return &cobra.Command{
		Use: "url APP", Short: "Print the URL of an app", Example: "  curl $(berth app url shop)",
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"url": one.URL})
			}
			fmt.Fprintln(a.stdout, one.URL)
			return nil
		},
	}
}

func (a *app) appOpen() *cobra.Command {
	return &cobra.Command{
		Use: "open APP", Short: "Show an app in the browser, and print its URL", Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, one.URL)
			for _, opener := range []string{"xdg-open", "open"} {
				if path, err := exec.LookPath(opener); err == nil && strings.HasPrefix(one.URL, "http") {
					return exec.CommandContext(cmd.Context(), path, one.URL).Run()
				}
			}
			return nil // who has no browser has the URL
		},
	}
}

func (a *app) appRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm APP…", Aliases: []string{"delete"}, Short: "Delete apps with their deployments, variables and uploaded sources",
		Args: wants(1, -1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error {
				one, err := findApp(cmd.Context(), c, name)
				if err != nil {
					return err
				}
				return c.DeleteApp(cmd.Context(), one.ID)
			})
		},
	}
}

func (a *app) appLogs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs APP", Short: "Show what an app has written since it started", Example: "  berth app logs shop --tail 50 -f",
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return c.FollowAppLogs(cmd.Context(), one.ID, tail, a.printInstances())
			}
			body, err := c.AppLogs(cmd.Context(), one.ID, tail)
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(a.stdout, body)
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new lines, until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", 0, "number of existing lines to show (default: all that are kept)")
	return cmd
}

// theApp returns a client and the app that an argument names.
func (a *app) theApp(ctx context.Context, name string) (*api.Client, *api.App, error) {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, nil, err
	}
	one, err := findApp(ctx, c, name)
	return c, one, err
}

// noAppError says that no app has a name.
type noAppError struct{ name string }

func (e *noAppError) Error() string {
	return fmt.Sprintf("there is no app %q: berth app ls shows those that there are", e.name)
}

// unlisted explains why a name could not be looked up with a key that may list nothing: one
// for a single app.
func unlisted(err error, what, id string) error {
	if api.StatusOf(err) != http.StatusForbidden {
		return err
	}
	return fmt.Errorf("this key may not list %s, so it finds none by its name: give the id, %s", what, id)
}

// findApp finds an app by its id, or by a name that it alone has.
func findApp(ctx context.Context, c *api.Client, name string) (*api.App, error) {
	if strings.HasPrefix(name, "app-") {
		if one, err := c.GetApp(ctx, name); err == nil || api.StatusOf(err) != http.StatusNotFound {
			return one, err
		}
	}
	var found []api.App
	for one, err := range c.Apps(ctx) {
		if err != nil {
			return nil, unlisted(err, "apps", "app-…")
		}
		if one.Name == name {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return nil, &noAppError{name}
	case 1:
		return &found[0], nil
	}
	text := fmt.Sprintf("%d apps are named %q; name one by its id:", len(found), name)
	for _, one := range found {
		text += "\n  " + one.ID + "  " + one.URL
	}
	return nil, errors.New(text)
}

// completeApps completes the names of apps.
func (a *app) completeApps(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	page, _, err := c.ListApps(ctx, api.Page{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, one := range page {
		out = append(out, one.Name+"\t"+one.ID+", "+string(one.Status))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
