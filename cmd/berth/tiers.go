package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// tiers shows the table of tiers, which the operator edits in a file of the replicas.
func (a *app) tiers() *cobra.Command {
	return &cobra.Command{
		Use: "tiers", Short: "List the tiers of workspaces and their quotas",
		Long: "The tiers are in the file that BERTH_TIERS of the replicas names. This shows what the replica that answers has read.",
		Example: `  berth admin tiers
  berth admin tiers --json | jq '.[] | select(.name == "free").quotas'`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			all, err := c.ListTiers(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"NAME", "SANDBOXES", "CPU", "MEMORY", "DISK", "DATABASES", "APPS", "MEMBERS", "RATE"}}
			for _, t := range all {
				name, q := t.Name, t.Quotas
				if t.Default {
					name += " (default)"
				}
				rows = append(rows, []string{
					name, quotaText(q.Sandboxes, ""), quotaText(q.CPU, ""), quotaText(q.MemoryMB, " MB"), quotaText(q.DiskMB, " MB"),
					quotaText(q.Databases, ""), quotaText(q.Apps, ""), quotaText(q.Members, ""), rateText(q),
				})
			}
			return a.table(rows)
		},
	}
}

// quotaText is a quota in a table; "-" is none.
func quotaText(q *int, unit string) string {
	if q == nil || *q < 0 {
		return "-"
	}
	return fmt.Sprint(*q) + unit
}

// rateText is the rate of requests: what is sustained, and the burst. Without numbers of
// its own, a tier has those of the API.
func rateText(q api.Quotas) string {
	second, burst := 25, 50
	for _, f := range []struct{ quota, to *int }{{q.RequestsPerSecond, &second}, {q.RequestsBurst, &burst}} {
		switch {
		case f.quota == nil:
		case *f.quota < 0:
			return "-"
		default:
			*f.to = *f.quota
		}
	}
	return fmt.Sprintf("%d/s, burst %d", second, burst)
}
