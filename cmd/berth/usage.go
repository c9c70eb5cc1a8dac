package main

import (
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) usage() *cobra.Command {
	var month string
	var asCSV bool
	cmd := &cobra.Command{
		Use: "usage", Short: "Show what the workspace has used in a month, and what it cost",
		Example: `  berth usage
  berth usage --month 2026-03 --csv > march.csv`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			u, err := c.Usage(cmd.Context(), month)
			if err != nil {
				return err
			}
			return a.printUsage(u, asCSV)
		},
	}
	usageFlags(cmd, &month, &asCSV)
	return cmd
}

func (a *app) workspacesUsage() *cobra.Command {
	var month string
	var asCSV bool
	cmd := &cobra.Command{
		Use: "usage ID", Short: "Show what a workspace has used in a month, also after it was deleted",
		Example: `  berth admin workspaces usage ws-q5t3nz7k --month 2026-03`,
		Args:    wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			u, err := c.WorkspaceUsage(cmd.Context(), args[0], month)
			if err != nil {
				return err
			}
			return a.printUsage(u, asCSV)
		},
	}
	usageFlags(cmd, &month, &asCSV)
	return cmd
}

func usageFlags(cmd *cobra.Command, month *string, asCSV *bool) {
	cmd.Flags().StringVar(month, "month", "", "YYYY-MM, in UTC; default the present one")
	cmd.Flags().BoolVar(asCSV, "csv", false, "print CSV")
}

// printUsage prints a line for each product and resource.
func (a *app) printUsage(u *api.Usage, asCSV bool) error {
	switch {
	case a.json:
		return a.printJSON(u)
	case asCSV:
		w := csv.NewWriter(a.stdout)
		rows := [][]string{{"workspace_id", "month", "product", "resource", "quantity", "cost_microusd"}}
		for _, l := range u.Lines {
			rows = append(rows, []string{u.WorkspaceID, u.Month, l.Product, l.Resource, strconv.FormatFloat(l.Quantity, 'f', -1, 64), strconv.FormatInt(l.CostMicroUSD, 10)})
		}
		return w.WriteAll(rows)
	}
	rows := [][]string{{"PRODUCT", "RESOURCE", "QUANTITY", "USD"}}
	for _, l := range u.Lines {
		rows = append(rows, []string{l.Product, l.Resource, strconv.FormatFloat(l.Quantity, 'f', 0, 64), dollars(l.CostMicroUSD)})
	}
	rows = append(rows, []string{"total " + u.Month, "", "", dollars(u.CostMicroUSD)})
	if err := a.table(rows); err != nil {
		return err
	}
	if u.CreditMicroUSD != nil {
		a.note("of %s USD that are free in a month", dollars(*u.CreditMicroUSD))
	}
	if u.BudgetMicroUSD != nil {
		a.note("of %s USD that may be used in a month", dollars(*u.BudgetMicroUSD))
	}
	if u.Paused {
		a.note("the workspace is paused: upgrade it, or wait for the next month")
	}
	return nil
}

// dollars shows micro-USD exactly to the hundredth of a cent, cut off.
func dollars(micro int64) string { return fmt.Sprintf("%d.%04d", micro/1e6, micro%1e6/100) }
