package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) admin() *cobra.Command {
	return group("admin", "Workspaces and their limits, and the audit log (operators)", "These commands need BERTH_ADMIN_TOKEN.", a.adminAudit(), a.tiers(),
		group("routers", "Refuse routers of databases that are processes of their own", "A router is known by its certificate alone: there is no list of them.",
			a.operate("rm NAME", "Refuse a router of databases from now on, for ever",
				`  berth admin routers rm r1      # one that is to come back gets another name: controlplane init --router`, 1,
				func(ctx context.Context, c *api.Client, args []string) error { return c.RemoveRouter(ctx, args[0]) })),
		group("workspaces", "List, create, limit and suspend workspaces",
			"A workspace has the limits of its tier, unless it has quotas of its own.",
			a.workspacesList(), a.workspacesCreate(), a.workspacesSet(), a.workspacesUsage(), a.workspacesToken()))
}

func (a *app) workspacesList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the workspaces, their limits and what they use",
		Example: `  berth admin workspaces ls
  berth admin workspaces ls --json | jq '.[] | {id, limits, usage}'`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			all, err := everyPage(func(p api.Page) ([]api.Workspace, string, error) { return c.ListWorkspaces(cmd.Context(), p) })
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "NAME", "TIER", "STATE", "SANDBOXES", "CPU", "MEMORY", "DISK", "MEMBERS"}}
			for _, w := range all {
				rows = append(rows, []string{
					w.ID, w.Name, w.Tier, workspaceState(w), ofLimit(w.Usage.Sandboxes, w.Limits.Sandboxes), ofLimit(w.Usage.CPU, w.Limits.CPU),
					ofLimit(w.Usage.MemoryMB, w.Limits.MemoryMB) + " MB", ofLimit(w.Usage.DiskMB, w.Limits.DiskMB) + " MB", ofLimit(w.Usage.Members, w.Limits.Members),
				})
			}
			return a.table(rows)
		},
	}
}

func workspaceState(w api.Workspace) string {
	switch {
	case w.Suspended:
		return "suspended"
	case w.PausedAt != nil:
		return "paused"
	case w.SubscriptionStatus != "":
		return w.SubscriptionStatus
	}
	return "-"
}

func ofLimit(used int, limit *int) string {
	if limit == nil || *limit < 0 {
		return strconv.Itoa(used)
	}
	return fmt.Sprintf("%d of %d", used, *limit)
}

func (a *app) workspacesCreate() *cobra.Command {
	var in api.CreateWorkspace
	var quotas []string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a workspace without members, and print its id",
		Example: `  id=$(berth admin workspaces create ci --tier pro)
  export BERTH_TOKEN=$(berth admin workspaces token $id --name ci)`,
		Args: wants(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if in.Quotas, err = readQuotas(cmd, quotas); err != nil {
				return err
			}
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			in.Name = args[0]
			w, err := c.CreateWorkspace(cmd.Context(), in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(w)
			}
			fmt.Fprintln(a.stdout, w.ID)
			return nil
		},
	}
	cmd.Flags().StringVar(&in.Tier, "tier", "", "its tier (default: the default tier)")
	cmd.Flags().StringSliceVar(&quotas, "quota", nil, "a quota of its own, NAME=NUMBER; -1 is no limit")
	return cmd
}

func (a *app) workspacesSet() *cobra.Command {
	var tier, subscription string
	var suspended bool
	var quotas []string
	cmd := &cobra.Command{
		Use: "set ID", Short: "Change a workspace's tier, quotas or subscription, or suspend it",
		Example: `  berth admin workspaces set ws-q5t3nz7k --tier team
  berth admin workspaces set ws-q5t3nz7k --quota sandboxes=40,cpu=-1     # all of its own
  berth admin workspaces set ws-q5t3nz7k --suspended                     # or --suspended=false`,
		Args: wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var in api.PatchWorkspace
			var err error
			if in.Quotas, err = readQuotas(cmd, quotas); err != nil {
				return err
			}
			if cmd.Flags().Changed("tier") {
				in.Tier = &tier
			}
			if cmd.Flags().Changed("suspended") {
				in.Suspended = &suspended
			}
			if cmd.Flags().Changed("subscription") {
				in.SubscriptionStatus = &subscription
			}
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			w, err := c.PatchWorkspace(cmd.Context(), args[0], in)
			if err == nil && a.json {
				return a.printJSON(w)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&tier, "tier", "", "its tier; empty: the default tier")
	cmd.Flags().BoolVar(&suspended, "suspended", false, "whether creates are refused with 403")
	cmd.Flags().StringVar(&subscription, "subscription", "", "active, trialing, past_due, canceled, or empty")
	cmd.Flags().StringSliceVar(&quotas, "quota", nil, "the quotas of its own, NAME=NUMBER; -1 is no limit; empty: none")
	return cmd
}

// readQuotas reads --quota. It returns nil if the flag is not given.
func readQuotas(cmd *cobra.Command, given []string) (*api.Quotas, error) {
	if !cmd.Flags().Changed("quota") {
		return nil, nil
	}
	q := &api.Quotas{}
	fields := map[string]**int{
		"sandboxes": &q.Sandboxes, "creates_per_hour": &q.CreatesPerHour, "cpu": &q.CPU, "memory_mb": &q.MemoryMB, "snapshots": &q.Snapshots,
		"volume_mb": &q.VolumeMB, "disk_mb": &q.DiskMB, "templates": &q.Templates, "builds": &q.Builds, "databases": &q.Databases, "apps": &q.Apps, "keys": &q.Keys,
		"members": &q.Members, "orgs": &q.Orgs, "app_instances": &q.AppInstances,
		"requests_per_second": &q.RequestsPerSecond, "requests_burst": &q.RequestsBurst,
		"monthly_credit_cents": &q.CreditCents, "monthly_budget_cents": &q.BudgetCents, "monthly_cpu_seconds": &q.CPUSecondsPerMonth,
	}
	for _, g := range given {
		name, value, _ := strings.Cut(g, "=")
		field, known := fields[name]
		n, err := strconv.Atoi(value)
		if !known {
			return nil, usage(cmd, "--quota %q: the quotas are %s", g, strings.Join(sortedKeys(fields), ", "))
		}
		if err != nil {
			return nil, usage(cmd, "--quota %q: want NAME=NUMBER, such as sandboxes=40", g)
		}
		*field = &n
	}
	return q, nil
}

func (a *app) workspacesToken() *cobra.Command {
	var in api.CreateToken
	var ttl span
	cmd := &cobra.Command{
		Use: "token ID", Short: "Create an API key of a workspace and print it once",
		Example: `  export BERTH_TOKEN=$(berth admin workspaces token ws-q5t3nz7k --name ci --scope sandboxes)`,
		Args:    wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			if ttl.seconds != nil {
				in.ExpiresAt = api.NewTime(time.Now().Add(time.Duration(*ttl.seconds) * time.Second))
			}
			t, err := c.CreateWorkspaceToken(cmd.Context(), args[0], in)
			if err != nil {
				return err
			}
			return a.printToken(t)
		},
	}
	tokenFlags(cmd, &in, &ttl)
	return cmd
}
