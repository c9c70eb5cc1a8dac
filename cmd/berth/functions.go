package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// maxCode is what the service takes of a function's code, in bytes of its tar.gz.
const maxCode = 50 << 20

func (a *app) functions() *cobra.Command {
	g := group("function", "Deploy and call functions: handlers that run only while they are called",
		`A function is a handler in Python (handler.py) or JavaScript (handler.mjs, .js or
.cjs) that is called by requests. It sleeps a minute after the last one, and the next
wakes it.

A function is named by its id or its name.`,
		a.functionCreate(), a.functionList(), a.functionGet(), a.functionSet(), a.functionDeploy(), a.deploys(deployedFunctions), a.cancelDeployment(deployedFunctions), a.rollback(deployedFunctions),
		a.functionInvoke(), a.functionLogs(), a.buildLogs(deployedFunctions), a.functionEnv(), a.functionRemove())
	g.Aliases = []string{"functions", "fn"}
	return g
}

func (a *app) functionCreate() *cobra.Command {
	var runtime string
	var env []string
	var timeout span
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a function and print its id",
		Long:    "Create a function and print its id. It has no code yet: \"berth function deploy\" uploads it.",
		Example: "  berth function create thumbnail --runtime python --env LOG_LEVEL=info",
		Args:    wants(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := assignments(env, a.env)
			if err != nil {
				return usage(cmd, "--env %s", err)
			}
			in := api.CreateFunction{Name: args[0], Runtime: api.FunctionRuntime(runtime), Env: vars}
			if timeout.seconds != nil {
				in.TimeoutSeconds = new(int(*timeout.seconds))
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			made, err := c.CreateFunction(cmd.Context(), in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(made)
			}
			a.note("deploy it: berth function deploy %s .", made.Name)
			fmt.Fprintln(a.stdout, made.ID)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&runtime, "runtime", "", "python or node")
	f.StringArrayVarP(&env, "env", "e", nil, "environment variable, NAME=VALUE, or NAME for this one's value (repeatable)")
	f.Var(&timeout, "timeout", "how long a call may take, up to 4m (default 30s)")
	_ = cmd.MarkFlagRequired("runtime") // there is such a flag
	return cmd
}

func (a *app) functionList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List functions, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Function{}
			for one, err := range c.Functions(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, one)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "NAME", "RUNTIME", "STATUS", "INSTANCES", "LAST CALL"}}
			for _, one := range all {
				rows = append(rows, []string{one.ID, one.Name, string(one.Runtime), string(one.Status), fmt.Sprint(one.Instances), ago(one.LastInvokedAt)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) functionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get FUNCTION", Short: "Show one function", Args: wants(1, 1, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theFunction(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(one)
			}
			newest, _, err := c.ListFunctionDeployments(cmd.Context(), one.ID, api.Page{Limit: 1})
			if err != nil {
				return err
			}
			return a.showFunction(one, newest...)
		},
	}
}

// showFunction shows a function, and its newest deployment if that is none that serves.
func (a *app) showFunction(one *api.Function, newest ...api.Deployment) error {
	if a.json {
		return a.printJSON(one)
	}
	out := []string{"id", one.ID, "name", one.Name, "runtime", string(one.Runtime), "status", string(one.Status)}
	for _, f := range [][2]string{{"error", one.Error}, {"deployment", one.DeploymentID}} {
		if f[1] != "" {
			out = append(out, f[0], f[1])
		}
	}
	for _, d := range newest {
		if d.ID != one.DeploymentID {
			out = append(out, "latest deployment", fmt.Sprintf("%s, %s%s", d.ID, d.Status, orNothing(": ", gist(d.Error))))
		}
	}
	return a.fields(append(out, "timeout", (time.Duration(one.TimeoutSeconds) * time.Second).String(), "instances", fmt.Sprint(one.Instances),
		"last call", ago(one.LastInvokedAt), "created", one.CreatedAt.String())...)
}

// whenInForce says from when on a function has what was changed.
const whenInForce = "in force from the next deployment (berth function deploy %s), or the next wake"

func (a *app) functionSet() *cobra.Command {
	var name string
	var timeout span
	cmd := &cobra.Command{
		Use: "set FUNCTION", Short: "Change the settings of a function",
		Long:    "Change the settings of a function. A timeout is in force from the next deployment or wake\non: what runs goes on as it is.",
		Example: "  berth function set thumbnail --timeout 2m",
		Args:    wants(1, 1, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var in api.PatchFunction
			if cmd.Flags().Changed("name") {
				in.Name = api.SetTo(name)
			}
			if timeout.seconds != nil {
				in.TimeoutSeconds = api.SetTo(int(*timeout.seconds))
			}
			if !in.Name.Set && !in.TimeoutSeconds.Set {
				return usage(cmd, "no setting is given")
			}
			c, one, err := a.theFunction(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			changed, err := c.PatchFunction(cmd.Context(), one.ID, in)
			if err != nil {
				return err
			}
			if in.TimeoutSeconds.Set {
				a.note(whenInForce, one.Name)
			}
			return a.showFunction(changed)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "another name")
	cmd.Flags().Var(&timeout, "timeout", "how long a call may take, up to 4m, from the next deployment or wake on")
	return cmd
}

func (a *app) functionDeploy() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "deploy FUNCTION [DIR]", Short: "Deploy a folder as the code of a function",
		Long: `Deploy a folder, the present one if none is named, as the code of a function, and show
the log until it is live. It exits with 1 if the deployment fails: what was live before
goes on. What git ignores, or .berthignore names, is left out.`,
		Example: "  berth function deploy thumbnail ./thumbnail",
		Args:    wants(1, 2, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 1 {
				dir = args[1]
			}
			ctx := cmd.Context()
			c, one, err := a.theFunction(ctx, args[0])
			if err != nil {
				return err
			}
			var d *api.Deployment
			err = a.sendFolder(ctx, dir, maxCode, func(tarball io.Reader, length int64) error {
				d, err = c.DeployFunctionArchive(ctx, one.ID, tarball, length)
				return err
			})
			if err != nil {
				return err
			}
			return a.began(ctx, deployedFunctions, c, deployedFunction(one), d, detach)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the deployment's id and do not wait")
	return cmd
}

func deployedFunction(one *api.Function) deployed { return deployed{id: one.ID, name: one.Name} }

var deployedFunctions = deployable{
	noun: "function",
	find: func(a *app, ctx context.Context, name string) (*api.Client, deployed, error) {
		c, one, err := a.theFunction(ctx, name)
		if err != nil {
			return nil, deployed{}, err
		}
		return c, deployedFunction(one), nil
	},
	complete: func(a *app) cobra.CompletionFunc { return a.completeFunctions },
	list:     (*api.Client).ListFunctionDeployments, follow: (*api.Client).FollowFunctionDeployment,
	cancel: (*api.Client).CancelFunctionDeployment, rollBack: (*api.Client).RollBackFunction,
}

func (a *app) functionInvoke() *cobra.Command {
	var method, data string
	var headers []string
	cmd := &cobra.Command{
		Use: "invoke FUNCTION [PATH]", Aliases: []string{"call"}, Short: "Call a function and print its answer",
		Long: `Call a function and print the body of its answer. It exits with 1 if the status is 400
or more. --data @FILE sends a file, and @- what comes on stdin.`,
		Example: `  berth function invoke thumbnail
  berth function invoke thumbnail '/scale?width=100' -d @photo.jpg > small.jpg`,
		Args: wants(1, 2, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := a.dataOf(data)
			if err != nil {
				return err
			}
			header := http.Header{}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return usage(cmd, "--header %q: want NAME: VALUE", h)
				}
				header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
			}
			if !cmd.Flags().Changed("data") {
				if body = nil; method == http.MethodPost {
					body = []byte("{}") // a POST has a body
				}
			}
			if len(body) > 0 && header.Get("Content-Type") == "" {
				header.Set("Content-Type", map[bool]string{true: "application/octet-stream", false: "application/json"}[strings.HasPrefix(data, "@")])
			}
			c, one, err := a.theFunction(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			path := ""
			if len(args) > 1 {
				path = args[1]
			}
			resp, err := c.InvokeFunction(cmd.Context(), one.ID, strings.ToUpper(method), path, header, body)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := io.Copy(a.stdout, resp.Body); err != nil {
				return err
			}
			if resp.StatusCode >= http.StatusBadRequest {
				return fmt.Errorf("the answer is %s", resp.Status)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&method, "method", "X", http.MethodPost, "method")
	f.StringVarP(&data, "data", "d", "", "body, or @FILE")
	f.StringArrayVarP(&headers, "header", "H", nil, "header, NAME: VALUE (repeatable)")
	return cmd
}

// dataOf is a body: the text itself, or what a file has.
func (a *app) dataOf(data string) ([]byte, error) {
	switch file, ok := strings.CutPrefix(data, "@"); {
	case !ok:
		return []byte(data), nil
	case file == "-":
		return io.ReadAll(a.stdin)
	default:
		return os.ReadFile(file)
	}
}

func (a *app) functionLogs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs FUNCTION", Short: "Show what a function has written, with a line for each call", Example: "  berth function logs thumbnail --tail 50 -f",
		Args: wants(1, 1, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theFunction(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return c.FollowFunctionLogs(cmd.Context(), one.ID, tail, a.printLogLine)
			}
			body, err := c.FunctionLogs(cmd.Context(), one.ID, tail)
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

func (a *app) functionEnv() *cobra.Command {
	var secret bool
	cmd := &cobra.Command{
		Use: "env FUNCTION [NAME=VALUE…]", Short: "Set variables of a function, or list them",
		Long: `Set variables of a function, or list them where none is given. A NAME alone takes its
value from your environment. They are there from the next deployment or wake on: what
runs goes on with what it has.`,
		Example: "  berth function env thumbnail STRIPE_KEY --secret",
		Args:    wants(1, -1, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := assignments(args[1:], a.env)
			if err != nil {
				return usage(cmd, "%s", err)
			}
			c, one, err := a.theFunction(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			given := &secret
			if !cmd.Flags().Changed("secret") {
				given = nil // it stays as it is
			}
			for _, name := range slices.Sorted(maps.Keys(vars)) {
				if _, err := c.PutFunctionVariable(cmd.Context(), one.ID, name, api.PutAppVariable{Value: vars[name], Secret: given}); err != nil {
					return err
				}
			}
			env, err := c.FunctionEnv(cmd.Context(), one.ID)
			switch {
			case err != nil:
				return err
			case a.json:
				return a.printJSON(env)
			case len(vars) > 0:
				a.note(whenInForce, one.Name)
				return nil
			}
			rows := [][]string{{"NAME", "VALUE", "SECRET", "UPDATED"}}
			for _, v := range env {
				rows = append(rows, []string{v.Key, v.Value, yes(v.Secret), age(v.UpdatedAt.Time)})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().BoolVar(&secret, "secret", false, "mask the values when they are read, and in logs")
	return cmd
}

func (a *app) functionRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm FUNCTION…", Aliases: []string{"delete"}, Short: "Delete functions with their code and deployments",
		Args: wants(1, -1, "FUNCTION"), ValidArgsFunction: a.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error {
				one, err := findFunction(cmd.Context(), c, name)
				if err != nil {
					return err
				}
				return c.DeleteFunction(cmd.Context(), one.ID)
			})
		},
	}
}

// theFunction returns a client and the function that an argument names.
func (a *app) theFunction(ctx context.Context, name string) (*api.Client, *api.Function, error) {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, nil, err
	}
	one, err := findFunction(ctx, c, name)
	return c, one, err
}

// findFunction finds a function by its id or its name.
func findFunction(ctx context.Context, c *api.Client, name string) (*api.Function, error) {
	if strings.HasPrefix(name, "fn-") {
		if one, err := c.GetFunction(ctx, name); err == nil || api.StatusOf(err) != http.StatusNotFound {
			return one, err
		}
	}
	for one, err := range c.Functions(ctx) {
		if err != nil {
			return nil, unlisted(err, "functions", "fn-…")
		}
		if one.Name == name {
			return &one, nil
		}
	}
	return nil, fmt.Errorf("there is no function %q: berth function ls shows those that there are", name)
}

// completeFunctions completes the names of functions.
func (a *app) completeFunctions(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	page, _, err := c.ListFunctions(ctx, api.Page{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, one := range page {
		out = append(out, one.Name+"\t"+one.ID+", "+string(one.Status))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
