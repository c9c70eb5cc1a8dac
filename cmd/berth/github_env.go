package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) githubEnv() *cobra.Command {
	return group("env", "Set the variables of a repository's previews",
		`Previews of pull requests get their app's variables without those of scope
production, and these ones. A repository is given by its id; see berth github repos.`,
		a.githubEnvSet(), a.githubEnvList(), a.githubEnvRemove())
}

func (a *app) githubEnvSet() *cobra.Command {
	var secret bool
	cmd := &cobra.Command{
		Use: "set REPO KEY=VALUE…", Short: "Set variables; KEY=- reads the value from standard input", Args: wants(2, -1, "REPO and KEY=VALUE"),
		Example: `  berth github env set 735512345 API_URL=https://api.staging.example.com
  berth github env set 735512345 --secret API_KEY=- < key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			in := api.PutRepoVariable{}
			if cmd.Flags().Changed("secret") {
				in.Secret = &secret
			}
			for _, pair := range args[1:] {
				key, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usage(cmd, "%q is not KEY=VALUE", pair)
				}
				if value == "-" {
					raw, err := io.ReadAll(io.LimitReader(a.stdin, 1<<20))
					if err != nil {
						return fmt.Errorf("read the value of %s: %w", key, err)
					}
					value = strings.TrimSuffix(string(raw), "\n")
				}
				in.Value = value
				if _, err := c.PutPreviewVariable(cmd.Context(), args[0], key, in); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&secret, "secret", false, "mask the values when they are read; one that is secret stays so without it")
	return cmd
}

func (a *app) githubEnvList() *cobra.Command {
	return &cobra.Command{
		Use: "ls REPO", Aliases: []string{"list"}, Short: "List the variables", Args: wants(1, 1, "REPO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all, err := c.ListPreviewEnv(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"KEY", "VALUE", "AGE"}}
			for _, v := range all {
				rows = append(rows, []string{v.Key, v.Value, age(v.UpdatedAt.Time)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) githubEnvRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm REPO KEY…", Aliases: []string{"delete"}, Short: "Remove variables", Args: wants(2, -1, "REPO and KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args[1:], func(key string) error { return c.DeletePreviewVariable(cmd.Context(), args[0], key) })
		},
	}
}
