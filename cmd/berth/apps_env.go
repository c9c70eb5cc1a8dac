package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) appEnv() *cobra.Command {
	return group("env", "Show and change the environment variables of an app",
		`Deployments from now on have the variables as they are then. Secret ones are stored
encrypted, masked when they are read, and left out of the logs of builds.`,
		a.appEnvList(), a.appEnvSet(), a.appEnvImport(), a.appEnvRemove())
}

func (a *app) appEnvList() *cobra.Command {
	return &cobra.Command{
		Use: "ls APP", Aliases: []string{"list"}, Short: "List the variables of an app, with secret values masked",
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			env, err := c.AppEnv(cmd.Context(), one.ID)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(env)
			}
			rows := [][]string{{"NAME", "VALUE", "SECRET", "SCOPE", "UPDATED"}}
			for _, v := range env {
				rows = append(rows, []string{v.Key, v.Value, yes(v.Secret), orDash(v.Scope), age(v.UpdatedAt.Time)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) appEnvSet() *cobra.Command {
	var in api.PutAppVariable
	var given func() (*bool, *string)
	var database string
	cmd := &cobra.Command{
		Use:   "set APP [NAME=VALUE…]",
		Short: "Set variables of an app",
		Long: `Set variables of an app. A NAME alone takes its value from your environment, so that
a secret need not be in the command's arguments.

With --database, DATABASE_URL leads to that database of the workspace, which is woken
if it sleeps. The variable is secret, because the password is in it, unless
--secret=false is given.`,
		Example: `  berth app env set shop LOG_LEVEL=info
  berth app env set shop STRIPE_KEY --secret
  berth app env set shop --database orders`,
		Args: wants(1, -1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := assignments(args[1:], a.env)
			switch _, twice := vars[databaseVariable]; {
			case err != nil:
				return usage(cmd, "%s", err)
			case len(vars) == 0 && database == "":
				return usage(cmd, "NAME=VALUE is missing")
			case twice && database != "":
				return usage(cmd, "give %s or --database, not both", databaseVariable)
			}
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if database != "" {
				url, err := a.databaseURL(cmd.Context(), c, database)
				if err != nil {
					return err
				}
				if vars == nil {
					vars = map[string]string{}
				}
				vars[databaseVariable] = url
			}
			secret, scope := given()
			set := []api.AppVariable{}
			for _, name := range sortedKeys(vars) {
				in.Value, in.Secret, in.Scope = vars[name], secret, scope
				if name == databaseVariable && database != "" && secret == nil {
					in.Secret = new(true)
				}
				v, err := c.PutAppVariable(cmd.Context(), one.ID, name, in)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				set = append(set, *v)
			}
			if a.json {
				return a.printJSON(set)
			}
			a.note("set; the next deployment has it: berth app deploy %s", one.ID)
			return nil
		},
	}
	given = secretFlags(cmd)
	cmd.Flags().StringVar(&database, "database", "", "id or label of a database: sets "+databaseVariable+" to its URL")
	return cmd
}

// databaseVariable is where frameworks look for a database.
const databaseVariable = "DATABASE_URL"

// databaseURL returns the URL with which an app connects to a database. The router takes
// TLS alone, and the URL of the API says nothing of that.
func (a *app) databaseURL(ctx context.Context, c *api.Client, name string) (string, error) {
	id, err := findDatabase(ctx, c, name)
	if err != nil {
		return "", err
	}
	conn, err := a.awake(ctx, c, id)
	switch {
	case err != nil:
		return "", err
	case conn.ConnectionURL == "":
		return "", errNoRouter
	}
	return conn.ConnectionURL + "?sslmode=require", nil
}

// secretFlags adds the flags of a variable. What is not given stays as it is.
func secretFlags(cmd *cobra.Command) (given func() (secret *bool, scope *string)) {
	secret := cmd.Flags().Bool("secret", false, "mask the value when it is read, and leave it out of the logs of builds; one that is secret stays so without it")
	scope := cmd.Flags().String("scope", "", `"production" keeps it out of previews`)
	return func() (*bool, *string) {
		out, of := secret, scope
		if !cmd.Flags().Changed("secret") {
			out = nil
		}
		if !cmd.Flags().Changed("scope") {
			of = nil
		}
		return out, of
	}
}

// maxDotenv bounds what is read of a .env file, in bytes. The service takes less.
const maxDotenv = 4 << 20

func (a *app) appEnvImport() *cobra.Command {
	var in api.ImportAppEnv
	var given func() (*bool, *string)
	cmd := &cobra.Command{
		Use: "import APP FILE", Short: `Set the variables of a .env file; "-" is stdin`, Example: "  berth app env import shop .env --secret",
		Args: wants(2, 2, "APP and FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var from io.Reader = a.stdin
			if args[1] != "-" {
				f, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer f.Close()
				from = f
			}
			text, err := io.ReadAll(io.LimitReader(from, maxDotenv))
			if err != nil {
				return err
			}
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			in.Dotenv = string(text)
			in.Secret, in.Scope = given()
			env, err := c.ImportAppEnv(cmd.Context(), one.ID, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(env)
			}
			a.note("imported; the app has %d variables, from its next deployment on", len(env))
			return nil
		},
	}
	given = secretFlags(cmd)
	return cmd
}

func (a *app) appEnvRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm APP NAME…", Aliases: []string{"delete"}, Short: "Remove variables of an app",
		Args: wants(2, -1, "APP and NAME"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.removeEach(args[1:], func(name string) error { return c.DeleteAppVariable(cmd.Context(), one.ID, name) })
		},
	}
}
