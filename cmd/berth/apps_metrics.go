package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) appMetrics() *cobra.Command {
	return &cobra.Command{
		Use: "metrics APP", Short: "Show how many requests an app gets, how fast it answers, and what it uses",
		Long: `Show the requests that the replicas have counted, each since it started, those of
the last minutes, and what the app's instances use now.`,
		Example: "  berth app metrics shop",
		Args:    wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			m, err := c.GetAppMetrics(cmd.Context(), one.ID)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			return a.printAppMetrics(m)
		},
	}
}

// lastMinutes is how many minutes with requests are shown.
const lastMinutes = 10

func (a *app) printAppMetrics(m *api.AppMetrics) error {
	q, since := m.Requests, "nobody has counted any"
	if m.Since != nil {
		since = "since " + m.Since.String()
	}
	pairs := []string{
		"status", string(m.Status),
		"requests", fmt.Sprintf("%d, %s", q.Count, since),
		"answers", fmt.Sprintf("%d 2xx, %d 3xx, %d 4xx, %d 5xx, %d upgraded, %d without", q.Statuses.S2xx, q.Statuses.S3xx, q.Statuses.S4xx, q.Statuses.S5xx, q.Statuses.S1xx, q.Statuses.None),
		"first byte", fmt.Sprintf("p50 %s, p95 %s, p99 %s", ms(q.Latency.P50MS), ms(q.Latency.P95MS), ms(q.Latency.P99MS)),
		"bytes", size(q.ReceivedBytes) + " received, " + size(q.SentBytes) + " sent",
		"open", strconv.Itoa(m.OpenRequests),
		"wakes", fmt.Sprintf("%d, for which %d requests waited", m.Wakes, q.Held),
	}
	if len(m.Missing) > 0 {
		pairs = append(pairs, "missing", "what was counted by "+strings.Join(m.Missing, ", "))
	}
	for _, i := range m.Instances {
		said := i.Error
		if u := i.Usage; u != nil {
			said = fmt.Sprintf("%.1f s CPU, %s memory, %s disk", u.CPUSeconds, size(u.MemoryBytes), size(u.DiskBytes))
		}
		pairs = append(pairs, "instance", said)
	}
	if err := a.fields(pairs...); err != nil || len(m.Minutes) == 0 {
		return err
	}
	rows := [][]string{{"MINUTE", "REQUESTS", "5XX", "P50", "P95", "SENT"}}
	for _, one := range m.Minutes[max(len(m.Minutes)-lastMinutes, 0):] {
		rows = append(rows, []string{
			one.At.Local().Format("15:04"), strconv.FormatInt(one.Requests, 10), strconv.FormatInt(one.Errors, 10), ms(one.P50MS), ms(one.P95MS), size(one.SentBytes),
		})
	}
	fmt.Fprintln(a.stdout)
	return a.table(rows)
}

func ms(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + " ms" }

func (a *app) appRequests() *cobra.Command {
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use: "requests APP", Short: "Show the latest requests to an app",
		Long: `Show the latest requests to an app: when each began, its status, how long it took,
how much was sent, and its method and path. The replicas keep a few hundred in
memory, and forget them when they restart.`,
		Example: `  berth app requests shop -f
  berth app requests shop --json | jq 'select(.status >= 500)'`,
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return c.FollowAppRequests(cmd.Context(), one.ID, tail, a.printRequest)
			}
			requests, err := c.AppRequests(cmd.Context(), one.ID, tail)
			if err != nil {
				return err
			}
			for _, r := range requests {
				if err := a.printRequest(r); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVarP(&tail, "tail", "n", 100, "how many of those that are there, 1 to 1000")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "also show those that end from now on")
	return cmd
}

func (a *app) printRequest(r api.AppRequest) error {
	if a.json {
		return a.printLine(r)
	}
	status, notes := strconv.Itoa(r.Status), ""
	if r.Status == 0 {
		status = "left"
	}
	if r.Class != "real" {
		notes += "  " + r.Class
	}
	if r.Held {
		notes += "  woke it"
	}
	path := r.Path
	if r.PathCut {
		path += "…"
	}
	_, err := fmt.Fprintf(a.stdout, "%s  %-4s %6d ms %9s  %s %s%s\n", r.At.Local().Format(time.TimeOnly), status, r.DurationMS, size(r.SentBytes), r.Method, path, notes)
	return err
}
