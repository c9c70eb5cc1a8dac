package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) token() *cobra.Command {
	g := group("token", "Create, list and revoke API keys",
		"An API key lets a program act in your current workspace. These commands need BERTH_JWT.",
		a.tokenCreate(), a.tokenList(), a.tokenRemove())
	g.Aliases = []string{"tokens", "key", "keys"}
	return g
}

func (a *app) tokenCreate() *cobra.Command {
	var in api.CreateToken
	var ttl span
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Create an API key and print it once",
		Example: `  export BERTH_TOKEN=$(berth token create --name laptop)`,
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			if ttl.seconds != nil {
				in.ExpiresAt = api.NewTime(time.Now().Add(time.Duration(*ttl.seconds) * time.Second))
			}
			for i, scope := range in.Scopes {
				if in.Scopes[i], err = appScope(cmd.Context(), c, scope); err != nil {
					return err
				}
			}
			t, err := c.CreateToken(cmd.Context(), in)
			if err != nil {
				return err
			}
			return a.printToken(t)
		},
	}
	tokenFlags(cmd, &in, &ttl)
	return cmd
}

// appScope is a scope with the id of an app or a function in place of its name.
func appScope(ctx context.Context, c *api.Client, scope string) (string, error) {
	name, is := strings.CutPrefix(scope, "app:")
	if !is || strings.HasPrefix(name, "app-") || strings.HasPrefix(name, "fn-") {
		return scope, nil
	}
	var ids []string
	app, err := findApp(ctx, c, name)
	if _, none := errors.AsType[*noAppError](err); err != nil && !none {
		return "", err
	}
	if err == nil {
		ids = append(ids, app.ID)
	}
	for one, err := range c.Functions(ctx) {
		if err != nil {
			return "", err
		}
		if one.Name == name {
			ids = append(ids, one.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("--scope %s: there is no app and no function of that name: berth app ls and berth function ls show those that there are", scope)
	case 1:
		return "app:" + ids[0], nil
	}
	return "", fmt.Errorf("--scope %s: an app and a function have that name; name one by its id: app:%s or app:%s", scope, ids[0], ids[1])
}

// tokenFlags adds the flags of a command that creates a key.
func tokenFlags(cmd *cobra.Command, in *api.CreateToken, ttl *span) {
	cmd.Flags().StringVar(&in.Name, "name", "", "what the key is for")
	_ = cmd.MarkFlagRequired("name") // there is such a flag
	cmd.Flags().StringSliceVar(&in.Scopes, "scope", nil, "what it may do: all, read-only, sandboxes, databases, apps, volumes, webhooks or app:ID, for one app or function (default all)")
	cmd.Flags().Var(ttl, "ttl", "time until it expires, such as 720h (default never)")
}

func (a *app) printToken(t *api.NewToken) error {
	if a.json {
		return a.printJSON(t)
	}
	a.note("store it now: it is not shown again; to revoke it: berth token rm %s", t.Prefix)
	fmt.Fprintln(a.stdout, t.Key)
	return nil
}

func (a *app) tokenList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the workspace's API keys, newest first",
		Example: `  berth token ls`,
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			all := []api.Token{}
			for page, next := (api.Page{Limit: api.MaxListLimit}), "first"; next != ""; page.Cursor = next {
				var items []api.Token
				if items, next, err = c.ListTokens(cmd.Context(), page); err != nil {
					return err
				}
				all = append(all, items...)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"PREFIX", "NAME", "SCOPES", "AGE", "EXPIRES", "LAST USED"}}
			for _, t := range all {
				expires := ""
				if t.ExpiresAt != nil {
					expires = t.ExpiresAt.String()
					if t.ExpiresAt.Before(time.Now()) {
						expires += " (expired)"
					}
				}
				used := "-"
				if t.LastUsedAt != nil {
					used = age(t.LastUsedAt.Time) + " ago"
				}
				rows = append(rows, []string{t.Prefix, orDash(t.Name), strings.Join(t.Scopes, ","), age(t.CreatedAt.Time), orDash(expires), used})
			}
			return a.table(rows)
		},
	}
}

func (a *app) tokenRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm PREFIX…",
		Aliases: []string{"revoke"},
		Short:   "Revoke API keys by their prefixes",
		Example: `  berth token rm k3v7q2xa`,
		Args:    wants(1, -1, "PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(prefix string) error { return c.RevokeToken(cmd.Context(), prefix) })
		},
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the versions of berth and, if BERTH_URL is set, of the service",
		Example: `  berth version`,
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := api.VersionInfo{Version: version, Commit: commit, GoVersion: runtime.Version(), API: api.Version}
			server, problem := a.serverVersion(cmd.Context())
			if a.json {
				return a.printJSON(map[string]any{"client": client, "server": server})
			}
			fmt.Fprintf(a.stdout, "berth    %s (commit %s, %s)\n", client.Version, client.Commit, client.GoVersion)
			if server != nil {
				fmt.Fprintf(a.stdout, "service  %s (commit %s, %s)\n", server.Version, server.Commit, server.GoVersion)
			} else if problem != nil {
				a.note("service: %s", problem)
			}
			return nil
		},
	}
}

// serverVersion asks the service, if there is an address. The command does not
// fail if it does not answer.
func (a *app) serverVersion(ctx context.Context) (*api.VersionInfo, error) {
	if len(a.baseURLs()) == 0 {
		return nil, nil
	}
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	v, err := c.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("no answer from %s: %w", strings.Join(a.baseURLs(), ", "), err)
	}
	return v, nil
}
