package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// evacuateLook is how often it is asked how far an evacuation has come.
const evacuateLook = 500 * time.Millisecond

func (a *app) agentsDrain() *cobra.Command {
	var evacuate, detach bool
	var atOnce int
	cmd := a.changeAgents("drain ID…", "Place no new sandboxes on hosts; with --evacuate, move what is there to others",
		`  berth agents drain host-a
  berth host drain --evacuate host-a`, (*api.Client).DrainAgent)
	cmd.Long = "Place no new sandboxes on hosts. Existing ones keep running, unless --evacuate\n" +
		"moves them: they are hibernated, moved through the snapshot store under the same\n" +
		"id, and those that ran are woken there, after some seconds. The command shows how\n" +
		"far it has come, and at the end what stays and why; then its exit code is 1.\n" +
		"It may be interrupted: the evacuation goes on. Again, it tries again what could\n" +
		"not be moved. \"undrain\" gives it up."
	f := cmd.Flags()
	f.BoolVar(&evacuate, "evacuate", false, "move what sleeps or can sleep to other hosts")
	f.IntVar(&atOnce, "at-once", 4, "with --evacuate: sandboxes of a host that move at a time, at most 64")
	f.BoolVar(&detach, "detach", false, "with --evacuate: do not wait for its end")
	drain := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !evacuate {
			return drain(cmd, args)
		}
		c, err := a.client(envAdmin)
		if err != nil {
			return err
		}
		hosts := make([]*api.Agent, len(args))
		for i, id := range args {
			if hosts[i], err = c.EvacuateAgent(cmd.Context(), id, api.EvacuateAgent{AtOnce: &atOnce}); err != nil {
				return err
			}
		}
		if !detach {
			err = a.awaitEvacuated(cmd.Context(), c, hosts)
		}
		if a.json {
			return errors.Join(a.printJSON(hosts), err)
		}
		return err
	}
	return cmd
}

// awaitEvacuated shows how far hosts have been emptied until nothing moves any more. The
// error says that something stays.
func (a *app) awaitEvacuated(ctx context.Context, c *api.Client, hosts []*api.Agent) error {
	tick := time.NewTicker(evacuateLook)
	defer tick.Stop()
	stay := 0
	for i := range hosts {
		for shown := ""; ; {
			e := hosts[i].Evacuation
			if e == nil {
				return fmt.Errorf("the evacuation of %s was given up", hosts[i].ID)
			}
			line := fmt.Sprintf("%s: %d moved, %d moving, %d waiting, %d staying", hosts[i].ID, e.Moved, e.Moving, e.Waiting, e.Staying)
			if line != shown && !a.json {
				fmt.Fprintln(a.stdout, line)
			}
			shown = line
			if e.Done {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			h, err := c.GetAgent(ctx, hosts[i].ID)
			if err != nil {
				return err
			}
			hosts[i] = h
		}
		stay += hosts[i].Evacuation.Staying
	}
	if stay == 0 {
		return nil
	}
	if !a.json {
		rows := [][]string{{"HOST", "STAYS", "ID", "WORKSPACE", "WHY"}}
		for _, h := range hosts {
			for _, s := range h.Evacuation.Stays {
				rows = append(rows, []string{h.ID, s.Kind, s.ID, s.WorkspaceID, s.Reason})
			}
		}
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d could not be moved", stay)
}
