package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) raft() *cobra.Command {
	return group("raft", "Show and change the replicas of the control plane (operators)",
		"The control plane keeps its records by Raft. These commands need BERTH_ADMIN_TOKEN.",
		a.raftStatus(),
		a.operate("add-peer ID ADDRESS", "Add a replica, which votes once it is stable",
			`  berth raft add-peer r4 10.0.0.14:7001      # the address of its peer port`, 2,
			func(ctx context.Context, c *api.Client, args []string) error { return c.AddPeer(ctx, args[0], args[1]) }),
		a.operate("remove-peer ID", "Remove a replica from the members",
			`  berth raft remove-peer r2`, 1,
			func(ctx context.Context, c *api.Client, args []string) error { return c.RemovePeer(ctx, args[0]) }),
		a.raftTransfer(), a.raftBackup(), a.raftRestore(), a.raftAcceptRestore())
}

// operate is a command that makes one call and prints nothing.
func (a *app) operate(use, short, example string, n int, call func(context.Context, *api.Client, []string) error) *cobra.Command {
	_, names, _ := strings.Cut(use, " ")
	return &cobra.Command{
		Use: use, Short: short, Example: example, Args: wants(n, n, names),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			if err := call(cmd.Context(), c, args); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct{}{})
			}
			return nil
		},
	}
}

func (a *app) raftStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the leader, and how a replica sees the others",
		Example: `  berth raft status
  berth raft status --url http://127.0.0.1:8081      # as that replica sees it
  berth raft status --json | jq -r .leader_id`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			st, err := c.RaftStatus(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(st)
			}
			leader := "no leader"
			if st.LeaderID != "" {
				leader = "leader " + st.LeaderID
			}
			fmt.Fprintf(a.stdout, "%s is %s; %s, term %d, commit index %d, applied %d\n\n",
				st.NodeID, st.State, leader, st.Term, st.CommitIndex, st.AppliedIndex)
			rows := [][]string{{"ID", "ROLE", "ADDRESS", "HEALTHY", "HEARD THE LEADER", "APPLIED"}}
			for _, p := range st.Peers {
				rows = append(rows, []string{p.ID, role(st, p), p.Address, yes(p.Healthy), contact(st, p), known(p.AppliedIndex)})
			}
			return a.table(rows)
		},
	}
}

func role(st *api.RaftStatus, p api.RaftPeer) string {
	switch {
	case p.ID == st.LeaderID:
		return "leader"
	case p.Voter:
		return "follower"
	}
	return "non-voter"
}

func contact(st *api.RaftStatus, p api.RaftPeer) string {
	if p.LastContactMS < 0 || p.ID == st.LeaderID {
		return "-"
	}
	return fmt.Sprintf("%d ms ago", p.LastContactMS)
}

func known(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func (a *app) raftTransfer() *cobra.Command {
	cmd := a.operate("transfer [ID]", "Transfer leadership to another replica",
		`  berth raft transfer        # to the most up-to-date replica
  berth raft transfer r2`, 0,
		func(ctx context.Context, c *api.Client, args []string) error {
			return c.TransferLeadership(ctx, strings.Join(args, ""))
		})
	cmd.Args = wants(0, 1, "ID")
	return cmd
}

func (a *app) raftBackup() *cobra.Command {
	cmd := a.operate("backup FILE", "Write a complete backup of the control store to a file",
		`  berth raft backup berth-$(date +%F).backup`, 1,
		func(ctx context.Context, c *api.Client, args []string) error {
			return atomicfile.WriteFrom(args[0], 0o600, func(w io.Writer) error { return c.Backup(ctx, w) })
		})
	cmd.Long = "Write a complete backup of the control store to a file that only you may read.\n" +
		"It contains every workspace's records; secrets in it stay sealed with the cluster's key."
	return cmd
}

func (a *app) raftRestore() *cobra.Command {
	var sure, withoutKeys bool
	cmd := a.operate("restore FILE", "Replace the control store with a backup",
		`  berth raft restore --yes berth-2026-11-20.backup`, 1,
		func(ctx context.Context, c *api.Client, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			size := int64(-1) // of a pipe
			if info.Mode().IsRegular() {
				size = info.Size()
			}
			if withoutKeys {
				return c.RestoreWithoutKeys(ctx, f, size)
			}
			return c.Restore(ctx, f, size)
		})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !sure {
			return usage(cmd, "this replaces every record of the service; use --yes to confirm")
		}
		return run(cmd, args)
	}
	cmd.Flags().BoolVar(&sure, "yes", false, "confirm that everything is replaced")
	cmd.Flags().BoolVar(&withoutKeys, "without-keys", false, "also a backup with secrets that the cluster's sealing keys do not open: they are lost")
	return cmd
}

func (a *app) raftAcceptRestore() *cobra.Command {
	cmd := a.operate("accept-restore", "Remove what the restored backup does not know from hosts",
		`  berth raft accept-restore`, 0,
		func(ctx context.Context, c *api.Client, _ []string) error { return c.AcceptRestore(ctx) })
	cmd.Long = "Remove now what hosts have and the restored backup does not know: sandboxes,\n" +
		"volumes, snapshots and templates newer than the backup. Otherwise they are kept\n" +
		"for an hour."
	return cmd
}

func (a *app) agents() *cobra.Command {
	g := group("agents", "Show, drain, rebalance and remove hosts (operators)",
		"An agent is the daemon on one host. These commands need BERTH_ADMIN_TOKEN.",
		a.agentsList(),
		a.agentsDrain(),
		a.changeAgents("undrain ID…", "Place sandboxes on hosts again",
			`  berth agents undrain host-a`, (*api.Client).UndrainAgent),
		a.agentsRebalance(), a.agentsEvents(), a.agentsRemove())
	g.Aliases = []string{"agent", "hosts", "host"}
	return g
}

func (a *app) agentsList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the hosts, their capacity and health",
		Example: `  berth agents ls
  berth agents ls --json | jq '.[].capacity'`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			all, err := allAgents(cmd.Context(), c)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "STATE", "SANDBOXES", "MEMORY", "SLOTS", "ENGINE", "LAST SEEN"}}
			for _, h := range all {
				seen := "-"
				if h.LastSeenAt != nil {
					seen = age(h.LastSeenAt.Time) + " ago"
				}
				rows = append(rows, []string{
					h.ID, agentState(h), strconv.Itoa(h.Sandboxes),
					fmt.Sprintf("%d of %d MB", h.Capacity.ReservedMB, h.Capacity.MemoryMB),
					fmt.Sprintf("%d of %d", h.Capacity.SlotsUsed, h.Capacity.Slots),
					orDash(h.Versions.Engine), seen,
				})
			}
			return a.table(rows)
		},
	}
}

func (a *app) agentsEvents() *cobra.Command {
	return &cobra.Command{
		Use:     "events ID",
		Short:   "Show a host's events that belong to no sandbox",
		Example: `  berth agents events host-a`,
		Args:    wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			list, err := c.AgentEvents(cmd.Context(), args[0], api.EventQuery{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			for _, e := range list {
				a.showEvent(e)
			}
			return nil
		},
	}
}

// agentState summarizes a host's state.
func agentState(h api.Agent) string {
	switch {
	case h.State != "up":
		return h.State
	case !h.Ready:
		return "not ready"
	case h.Evacuation != nil && h.Evacuation.Done && h.Evacuation.Staying == 0:
		return "evacuated"
	case h.Evacuation != nil:
		return "evacuating"
	case h.Draining:
		return "draining"
	}
	return "up"
}

func (a *app) changeAgents(use, short, example string, change func(*api.Client, context.Context, string) (*api.Agent, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example, Args: wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			changed := []*api.Agent{}
			for _, id := range args {
				h, err := change(c, cmd.Context(), id)
				if err != nil {
					return err
				}
				changed = append(changed, h)
				if !a.json {
					fmt.Fprintln(a.stdout, h.ID, agentState(*h))
				}
			}
			if a.json {
				return a.printJSON(changed)
			}
			return nil
		},
	}
}

func (a *app) agentsRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm ID…",
		Short:   "Forget hosts that have no sandboxes",
		Example: `  berth agents rm host-a`,
		Args:    wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.RemoveAgent(cmd.Context(), id) })
		},
	}
}

// agentID matches the id of a host.
var agentID = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

func allAgents(ctx context.Context, c *api.Client) ([]api.Agent, error) {
	all := []api.Agent{}
	for page, next := (api.Page{Limit: api.MaxListLimit}), "first"; next != ""; page.Cursor = next {
		var items []api.Agent
		var err error
		if items, next, err = c.ListAgents(ctx, page); err != nil {
			return nil, err
		}
		all = append(all, items...)
	}
	return all, nil
}

// freeAgentID is the first of h1, h2 … that no host has.
func freeAgentID(ctx context.Context, c *api.Client) (string, error) {
	agents, err := allAgents(ctx, c)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, agent := range agents {
		taken[agent.ID] = true
	}
	n := 1
	for taken["h"+strconv.Itoa(n)] {
		n++
	}
	return "h" + strconv.Itoa(n), nil
}

// installedHostd is where the package puts the daemon. It is on no PATH.
const installedHostd = "/usr/lib/berth/hostd"

func (a *app) joinToken() *cobra.Command {
	var ttl span
	var id string
	create := &cobra.Command{
		Use:   "create",
		Short: "Create a token with which one host can join",
		Long: `Create a token with which one host can join, once. The token goes to stdout; the
command to run on the host, as root, goes to stderr. It contains the host's id:
the one given by --id (1 to 8 of a-z and 0-9), or else an unused one.`,
		Example: `  berth join-token create --id h4 --ttl 15m`,
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("id") && !agentID.MatchString(id) {
				return fmt.Errorf("--id %q: want 1 to 8 characters of a-z and 0-9", id)
			}
			c, err := a.client(envAdmin)
			if err != nil {
				return err
			}
			if id == "" {
				if id, err = freeAgentID(cmd.Context(), c); err != nil {
					return err
				}
			}
			t, err := c.CreateJoinToken(cmd.Context(), api.CreateJoinToken{TTLSeconds: ttl.seconds})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			fmt.Fprintln(a.stdout, t.Token)
			var peers strings.Builder
			for _, p := range t.Peers {
				peers.WriteString(" --peer " + p)
			}
			a.note("valid for %s, for one host; run there as root:\n  %s join%s --token %s --ca-sha256 %s --id %s",
				time.Until(t.ExpiresAt.Time).Round(time.Second), installedHostd, peers.String(), t.Token, t.CASHA256, id)
			return nil
		},
	}
	create.Flags().Var(&ttl, "ttl", "time until it expires, at most 24h (default 1h)")
	create.Flags().StringVar(&id, "id", "", "id of the host (default: the first unused of h1, h2 …)")
	return group("join-token", "Let hosts join (operators)", "These commands need BERTH_ADMIN_TOKEN.", create)
}
