package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) github() *cobra.Command {
	return group("github", "Deploy from repositories at GitHub",
		`Connect installs the GitHub App of this Berth in an account; its repositories,
also private ones, can then be deployed. docs/apps-git.md says what pushes and
pull requests do.`,
		a.githubConnect(), a.githubInstallations(), a.githubRepos(), a.githubDisconnect(), a.githubEnv())
}

func (a *app) githubConnect() *cobra.Command {
	return &cobra.Command{
		Use: "connect", Short: "Print the URL at which GitHub is connected", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			out, err := c.ConnectGitHub(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(out)
			}
			a.note("open this in a browser within 15 minutes, and choose the repositories there")
			fmt.Fprintln(a.stdout, out.URL)
			return nil
		},
	}
}

func (a *app) githubInstallations() *cobra.Command {
	return &cobra.Command{
		Use: "installations", Short: "List the accounts that are connected, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.GitHubInstallation{}
			for i, err := range c.GitHubInstallations(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, i)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "ACCOUNT", "TYPE", "REPOSITORIES", "SUSPENDED", "AGE"}}
			for _, i := range all {
				rows = append(rows, []string{
					i.ID, i.Account, orDash(i.AccountType), orDash(i.RepositorySelection), strconv.FormatBool(i.Suspended), age(i.CreatedAt.Time),
				})
			}
			return a.table(rows)
		},
	}
}

func (a *app) githubRepos() *cobra.Command {
	var installation string
	cmd := &cobra.Command{
		Use: "repos", Short: "List the repositories that can be deployed", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.GitHubRepo{}
			for r, err := range c.GitHubRepos(cmd.Context(), installation) {
				if err != nil {
					return err
				}
				all = append(all, r)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "NAME", "PRIVATE", "BRANCH", "URL"}}
			for _, r := range all {
				rows = append(rows, []string{r.ID, r.FullName, strconv.FormatBool(r.Private), orDash(r.DefaultBranch), r.CloneURL})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().StringVar(&installation, "installation", "", "id of the installation (default: the only one)")
	return cmd
}

func (a *app) githubDisconnect() *cobra.Command {
	return &cobra.Command{
		Use: "disconnect ID…", Short: "Disconnect installations and remove the app from their accounts", Args: wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.DeleteGitHubInstallation(cmd.Context(), id) })
		},
	}
}
