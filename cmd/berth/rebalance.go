package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) agentsRebalance() *cobra.Command {
	var in api.Rebalance
	var atOnce, within int
	var detach, stop bool
	cmd := &cobra.Command{
		Use:   "rebalance",
		Short: "Move what sleeps on the fuller hosts to the emptier ones",
		Long: "Move hibernated sandboxes and sleeping databases from the fuller hosts to the\n" +
			"emptier ones, so that a new host gets its share: through the snapshot store, under\n" +
			"the same id. How full a host is, is the disk that is reserved there, by its memory;\n" +
			"100 % is an even share. What runs is never touched, nor are hosts that are drained,\n" +
			"have had trouble or have no snapshot store. With --dry-run nothing moves, and the\n" +
			"command shows what would. Otherwise it shows how far it has come, and at the end\n" +
			"what could not be moved and why; then its exit code is 1. It may be interrupted:\n" +
			"the rebalancing goes on, until --stop.",
		Example: `  berth host rebalance --dry-run
  berth host rebalance --at-once 8`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			if stop {
				return c.StopRebalancing(cmd.Context())
			}
			in.AtOnce, in.Percent = &atOnce, &within
			b, err := c.Rebalance(cmd.Context(), in)
			if err != nil {
				return err
			}
			if !in.DryRun && !detach {
				if b, err = a.awaitRebalanced(cmd.Context(), c, b); err != nil {
					return err
				}
			}
			return a.showRebalanced(b)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&in.DryRun, "dry-run", false, "only show what would move")
	f.IntVar(&atOnce, "at-once", 4, "sandboxes that move at a time, at most 64")
	f.IntVar(&within, "within", 20, "percent of an even share by which hosts may differ, from 5 to 1000")
	f.BoolVar(&detach, "detach", false, "do not wait for its end")
	f.BoolVar(&stop, "stop", false, "give up a rebalancing; what is under way still arrives")
	cmd.MarkFlagsMutuallyExclusive("stop", "dry-run")
	cmd.MarkFlagsMutuallyExclusive("stop", "detach")
	return cmd
}

// awaitRebalanced shows how far a rebalancing has come until nothing moves any more.
func (a *app) awaitRebalanced(ctx context.Context, c *api.Client, b *api.Rebalancing) (*api.Rebalancing, error) {
	tick := time.NewTicker(evacuateLook)
	defer tick.Stop()
	for shown := ""; ; {
		if b.BeganAt == nil {
			return nil, fmt.Errorf("the rebalancing was given up")
		}
		line := fmt.Sprintf("%d moved, %d moving, %d waiting, %d failed", b.Moved, b.Moving, b.Waiting, b.Failed)
		if line != shown && !a.json {
			fmt.Fprintln(a.stdout, line)
		}
		shown = line
		if b.Done {
			return b, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var err error
		if b, err = c.GetRebalancing(ctx); err != nil {
			return nil, err
		}
	}
}

// showRebalanced shows how full hosts are, what moves, and what does not. The error says
// that something could not be moved.
func (a *app) showRebalanced(b *api.Rebalancing) error {
	var failed error
	if b.Failed > 0 {
		failed = fmt.Errorf("%d could not be moved", b.Failed)
	}
	if a.json {
		if err := a.printJSON(b); err != nil {
			return err
		}
		return failed
	}
	percent := func(n int) string { return strconv.Itoa(n) + " %" }
	rows := [][]string{{"HOST", "SANDBOXES", "DISK", "SHARE", "AFTER"}}
	for _, h := range b.Hosts {
		rows = append(rows, []string{h.ID, strconv.Itoa(h.Sandboxes), fmt.Sprintf("%d MB", h.DiskMB), percent(h.Share), percent(h.ShareAfter)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if len(b.Moves) > 0 {
		rows = [][]string{{"MOVES", "ID", "WORKSPACE", "FROM", "TO", "DISK", "STATE"}}
		for _, m := range b.Moves {
			rows = append(rows, []string{m.Kind, m.ID, m.WorkspaceID, m.From, m.To, fmt.Sprintf("%d MB", m.DiskMB), m.State})
		}
		if err := a.table(rows); err != nil {
			return err
		}
	}
	if b.DryRun {
		a.note("%d would move", b.Planned)
	}
	if len(b.Stays) > 0 {
		rows = [][]string{{"STAYS", "ID", "WORKSPACE", "WHY"}}
		for _, s := range b.Stays {
			rows = append(rows, []string{s.Kind, s.ID, s.WorkspaceID, s.Reason})
		}
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return failed
}
