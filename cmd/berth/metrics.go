package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// metrics is the command that shows what a sandbox uses.
func (a *app) metrics() *cobra.Command {
	return a.usageOf("metrics ID", "Show what a sandbox uses and has used", "  berth metrics $id --minutes 5", a.completeSandboxes,
		func(ctx context.Context, c *api.Client, id string, minutes int) (any, string, *api.ResourceUsage, []string, error) {
			out, err := c.GetSandboxUsage(ctx, id, minutes)
			if err != nil {
				return nil, "", nil, nil, err
			}
			return out, string(out.Status), &out.Usage, nil, nil
		})
}

func (a *app) dbMetrics() *cobra.Command {
	return a.usageOf("metrics DB", "Show what a database uses and has used", "  berth db metrics $db", a.completeDatabases,
		func(ctx context.Context, c *api.Client, name string, minutes int) (any, string, *api.ResourceUsage, []string, error) {
			id, err := findDatabase(ctx, c, name)
			if err != nil {
				return nil, "", nil, nil, err
			}
			out, err := c.GetDatabaseUsage(ctx, id, minutes)
			if err != nil {
				return nil, "", nil, nil, err
			}
			var more []string
			if out.Clients != nil {
				more = append(more, "clients", strconv.Itoa(*out.Clients))
			}
			if out.ArchiveLagSeconds != nil {
				more = append(more, "archive lag", fmt.Sprintf("%.1f s", *out.ArchiveLagSeconds))
			}
			return out, string(out.Status), out.Usage, more, nil
		})
}

type askUsage func(ctx context.Context, c *api.Client, id string, minutes int) (all any, status string, u *api.ResourceUsage, more []string, err error)

func (a *app) usageOf(use, short, example string, complete cobra.CompletionFunc, ask askUsage) *cobra.Command {
	var minutes int
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: short + `: CPU time, memory, disk and network, as its
host measures them, and what it used of late in steps of ten seconds.`,
		Args: wants(1, 1, "ID"), ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all, status, u, more, err := ask(cmd.Context(), c, args[0], minutes)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			return a.printStats(status, u, more)
		},
	}
	cmd.Flags().IntVar(&minutes, "minutes", 1, "how much of the last hour to show, 0 to 60")
	return cmd
}

// printStats prints totals as fields, and a history as a table below them.
func (a *app) printStats(status string, u *api.ResourceUsage, more []string) error {
	pairs := append([]string{"status", status}, more...)
	if u == nil {
		return a.fields(pairs...)
	}
	pairs = append(pairs,
		"cpu time", fmt.Sprintf("%.1f s of %d CPU since %s", u.CPUSeconds, u.CPU, u.Since),
		"memory", size(u.MemoryBytes)+" of "+size(u.MemoryLimitBytes),
		"disk", size(u.DiskBytes)+" of "+size(u.DiskLimitBytes),
		"network", size(u.NetworkReceivedBytes)+" received, "+size(u.NetworkSentBytes)+" sent")
	if err := a.fields(pairs...); err != nil || len(u.History) == 0 {
		return err
	}
	rows := [][]string{{"AT", "CPU", "MEMORY", "DISK", "RECEIVED", "SENT"}}
	for _, s := range u.History {
		busy := 0.0
		if s.Seconds > 0 {
			busy = 100 * s.CPUSeconds / s.Seconds
		}
		rows = append(rows, []string{
			s.At.Local().Format(time.TimeOnly), fmt.Sprintf("%.0f %%", busy), size(s.MemoryBytes), size(s.DiskBytes), size(s.NetworkReceivedBytes), size(s.NetworkSentBytes),
		})
	}
	fmt.Fprintln(a.stdout)
	return a.table(rows)
}
